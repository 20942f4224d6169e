"""Cosine distance matrices (SPEC 2), a tile of tasks at a time."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from fase_gpu.results import Status

# float32 squares of norms outside this range lose digits or overflow; such tasks take the float64 way.
_NORM_RANGE: Final = (1e-15, 1e15)
# float32 sums over more terms than this drift: without blocks, opposite bfloat16 vectors of 4096 dimensions were off by
# 2.4e-6, with them by 6e-7, and near-duplicates by 1e-11 (tests/test_distance.py holds all to 1e-6).
_NORM_BLOCK: Final = 256
_GRAM_BLOCK: Final = 512
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

    The rows are scaled to unit length and the task's mean is subtracted before the product, so that what cancels is the
    distance to the mean and not 1: near-duplicates keep their digits. Rows of norm 1 + a and 1 + b put the half squared
    difference off by its own size times (a + b), and by (a - b)^2 / 2, so that float32 norms are enough.
    """
    mask = inside(n, x.shape[1])
    unit, status = _unit_rows(x, mask)
    unit -= unit.sum(1, keepdim=True) / n.clamp_min(1).to(torch.float32)[:, None, None]
    gram = torch.bmm(unit[..., :_GRAM_BLOCK], unit[..., :_GRAM_BLOCK].mT)
    for start in range(_GRAM_BLOCK, unit.shape[2], _GRAM_BLOCK):
        block = unit[..., start : start + _GRAM_BLOCK]
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
    norm = _norms(x, wide)
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


def _norms(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Lengths of the rows [..., d], the squares summed in blocks."""
    blocks = x.shape[-1] // _NORM_BLOCK
    whole = blocks * _NORM_BLOCK
    norm: torch.Tensor
    if blocks <= 2:
        norm = torch.linalg.vector_norm(x, dim=-1, dtype=dtype)
        return norm
    parts = torch.linalg.vector_norm(x[..., :whole].view(*x.shape[:-1], blocks, _NORM_BLOCK), dim=-1, dtype=dtype)
    rest = torch.linalg.vector_norm(x[..., whole:], dim=-1, keepdim=True, dtype=dtype)
    norm = torch.linalg.vector_norm(torch.cat([parts, rest], -1), dim=-1)
    return norm


def _finish(distance: torch.Tensor, mask: torch.Tensor, status: torch.Tensor, min_distance: float) -> torch.Tensor:
    """Clamp in place, then zero what is no distance: the diagonal, padding and bad tasks."""
    distance.clamp_min_(min_distance)
    distance.diagonal(dim1=1, dim2=2).zero_()
    bad = ~mask | (status != Status.OK)[:, None]
    return distance.masked_fill_(bad[:, :, None] | bad[:, None, :], 0)


def rounded(distance: torch.Tensor) -> torch.Tensor:
    """Rounded to 6 decimals, as the released code does (SPEC 7)."""
    return (distance.to(torch.float64) * 1e6).round_().div_(1e6).to(torch.float32)
