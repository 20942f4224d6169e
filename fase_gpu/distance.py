"""Cosine distance matrices (SPEC 2), a tile of tasks at a time."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from fase_gpu.results import Status

# float32 squares of norms outside this range lose digits or overflow; such tasks take the float64 way.
_NORM_RANGE: Final = (1e-15, 1e15)
# A float32 sum over more dimensions than this drifts by more than 1e-7 (measured; see tests/test_distance.py).
_BLOCK: Final = 1024
# A user's matrix may be off by what its own arithmetic loses (TF32: 2.5e-5), not by more.
_SLACK: Final = 1e-4


class Tile(NamedTuple):
    """Distances of B tasks, made exact where a stage relies on it: symmetric, zero on the diagonal and in padding."""

    distance: torch.Tensor
    """[B, N, N] float32; all zero for a task that is not OK."""
    status: torch.Tensor
    """[B] int8, Status."""


def inside(n: torch.Tensor, size: int) -> torch.Tensor:
    """Mask [B, size] of the positions below n [B]."""
    return torch.arange(size, device=n.device) < n[:, None]


def cosine_distances(x: torch.Tensor, n: torch.Tensor, min_distance: float) -> Tile:
    """Distances 1 - cos of every pair of samples of a task.

    x   [B, N, d] embeddings, any float dtype; what lies beyond a task's n samples may be any of its own rows
    n   [B] int64

    The rows are scaled to unit length and the task's first sample is subtracted before the product, so that what
    cancels is the distance to that sample and not 1: near-duplicates keep their digits. With rows of norm 1 + a and
    1 + b the half squared difference is off by (a - b)^2 / 2 only, which is why the float32 norms are enough.
    """
    mask = inside(n, x.shape[1])
    unit, status = _unit_rows(x, mask)
    unit -= unit[:, :1].clone()
    gram = torch.bmm(unit[..., :_BLOCK], unit[..., :_BLOCK].mT)
    for start in range(_BLOCK, unit.shape[2], _BLOCK):
        block = unit[..., start : start + _BLOCK]
        gram.baddbmm_(block, block.mT)
    square = gram.diagonal(dim1=1, dim2=2)
    distance = gram + gram.mT
    distance = torch.sub(square[:, :, None] + square[:, None, :], distance).mul_(0.5)
    return Tile(_finish(distance, mask, status, min_distance), status)


def given_distances(distance: torch.Tensor, n: torch.Tensor, min_distance: float) -> Tile:
    """A user's matrices [B, N, N] of any float dtype, checked and raised to min_distance; the diagonal is not read."""
    mask = inside(n, distance.shape[1])
    pairs = mask[:, :, None] & mask[:, None, :]
    pairs.diagonal(dim1=1, dim2=2).fill_(False)
    distance = torch.where(pairs, distance, 0).to(torch.float32)
    finite = distance.isfinite().flatten(1).all(1)
    skew = (distance - distance.mT).abs() > _SLACK * (1 + distance.abs())
    wrong = (skew | (distance < -_SLACK)).flatten(1).any(1)
    status = torch.where(wrong, Status.NOT_A_DISTANCE, Status.OK)
    status = torch.where(finite, status, Status.NOT_FINITE).to(torch.int8)
    distance = torch.add(distance, distance.mT).mul_(0.5)
    return Tile(_finish(distance, mask, status, min_distance), status)


def _unit_rows(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of length 1 in float32 (zero outside the mask and in bad tasks), and the status [B]."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    norm = torch.linalg.vector_norm(x, dim=-1, dtype=wide)
    plain = ((norm > _NORM_RANGE[0]) & (norm < _NORM_RANGE[1])) | ~mask
    status = torch.full(mask.shape[:1], Status.OK, dtype=torch.int8, device=x.device)
    scale = torch.where(mask, 1 / norm, 0)
    if x.device.type == "cpu" and bool(plain.all()):
        return torch.mul(x, scale[..., None]).to(torch.float32), status
    # Norms too large or small for float32 squares: scale by the largest component first, in float64.
    largest = x.abs().amax(-1).to(torch.float64)
    rows = x.to(torch.float64) / largest[..., None]
    length = torch.linalg.vector_norm(rows, dim=-1)
    not_finite = (~largest.isfinite() & mask).any(1)
    zero = ((largest == 0) & mask).any(1)
    status[zero] = Status.ZERO_VECTOR
    status[not_finite] = Status.NOT_FINITE
    ok = (mask & (status == Status.OK)[:, None])[..., None]
    extreme = torch.where(ok & ~plain[..., None], rows / length[..., None], 0).to(torch.float32)
    usual = torch.where(ok & plain[..., None], x * scale[..., None], 0).to(torch.float32)
    return extreme + usual, status


def _finish(distance: torch.Tensor, mask: torch.Tensor, status: torch.Tensor, min_distance: float) -> torch.Tensor:
    """Clamp in place, then zero what is no distance: the diagonal, padding and bad tasks."""
    distance.clamp_min_(min_distance)
    distance.diagonal(dim1=1, dim2=2).zero_()
    bad = ~mask | (status != Status.OK)[:, None]
    return distance.masked_fill_(bad[:, :, None] | bad[:, None, :], 0)


def rounded(distance: torch.Tensor) -> torch.Tensor:
    """Rounded to 6 decimals, as the released code does (SPEC 7)."""
    return (distance.to(torch.float64) * 1e6).round_().div_(1e6).to(torch.float32)
