"""Cosine distance matrices (SPEC 2), a tile of tasks at a time."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from fase_gpu.results import Status

# A float32 sum drifts with its length and with how early it grows large, so products are summed in slices. Opposite
# bfloat16 vectors of 4096 dimensions: off by 2.7e-6 in one sum, by 6e-7 in slices; near-duplicates by 1e-11.
_SLICE: Final = 128
_MOST_SLICES: Final = 16
_NORM_SLICE: Final = 256
# What float32 does not do to 1e-6 is done in float64: rows whose length leaves this range, and tasks in which a single
# coordinate makes up much of a row, so that all later products are added to a large sum and round the same way.
_LENGTHS: Final = (1e-15, 1e15)
_SPIKE: Final = 0.5
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

    Within 1e-6 of float64 on the same values. The rows are scaled to unit length and the task's mean is subtracted
    before the product, so that what cancels is the distance to the mean and not 1: near-duplicates keep their digits.
    Rows of norm 1 + a and 1 + b put the half squared difference off by (a + b) of itself and by (a - b)^2 / 2, so that
    float32 norms are enough. A GPU, whose float32 products may be TF32's, does it all in float64.
    """
    mask = inside(n, x.shape[1])
    if x.device.type != "cpu":
        distance, status = _exact_distances(x, mask)
        return Tile(_finish(distance, mask, status, min_distance), status)
    norm = _norms(x)
    usual = (((norm > _LENGTHS[0]) & (norm < _LENGTHS[1])) | ~mask).all(1)
    unit = torch.mul(x, torch.where(mask, 1 / norm, 0)[..., None]).to(torch.float32)
    unit -= unit.sum(1, keepdim=True) / n.clamp_min(1).to(torch.float32)[:, None, None]
    d = unit.shape[2]
    step = max(_SLICE, -(-d // _MOST_SLICES))
    gram = torch.bmm(unit[..., :step], unit[..., :step].mT)
    for start in range(step, d, step):
        part = unit[..., start : start + step]
        gram.baddbmm_(part, part.mT)
    square = gram.diagonal(dim1=1, dim2=2)
    distance = torch.sub(square[:, :, None] + square[:, None, :], gram + gram.mT).mul_(0.5)
    status = torch.full_like(n, Status.OK, dtype=torch.int8)
    flat = unit.flatten(1)
    spiky = torch.maximum(flat.amax(1), -flat.amin(1)) > _SPIKE
    odd = torch.nonzero(spiky | ~usual).flatten()
    if odd.numel():
        distance[odd], status[odd] = _exact_distances(x[odd], mask[odd])
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


def _norms(x: torch.Tensor) -> torch.Tensor:
    """Lengths [B, N] of the rows of [B, N, d], float64 from float64 and else float32, the squares summed in slices."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    slices = x.shape[-1] // _NORM_SLICE
    whole = slices * _NORM_SLICE
    norm: torch.Tensor
    if slices <= 2:
        norm = torch.linalg.vector_norm(x, dim=-1, dtype=dtype)
        return norm
    parts = torch.linalg.vector_norm(x[..., :whole].view(*x.shape[:-1], slices, _NORM_SLICE), dim=-1, dtype=dtype)
    rest = torch.linalg.vector_norm(x[..., whole:], dim=-1, keepdim=True, dtype=dtype)
    norm = torch.linalg.vector_norm(torch.cat([parts, rest], -1), dim=-1)
    return norm


def _exact_distances(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64, whatever the lengths: distances [B, N, N] float32 (anything in bad tasks) and status [B] int8."""
    wide = x.to(torch.float64)
    largest = wide.abs().amax(-1)
    status = torch.full(mask.shape[:1], Status.OK, dtype=torch.int8, device=x.device)
    status.masked_fill_(((largest == 0) & mask).any(1), Status.ZERO_VECTOR)
    status.masked_fill_((~largest.isfinite() & mask).any(1), Status.NOT_FINITE)
    # Scaled by the largest coordinate first, so that no square over- or underflows.
    unit = torch.where(mask[..., None], wide / largest[..., None], 0)
    unit /= torch.linalg.vector_norm(unit, dim=-1, keepdim=True)
    unit.nan_to_num_(0.0)
    gram = torch.bmm(unit, unit.mT)
    return (2 - gram - gram.mT).mul_(0.5).to(torch.float32), status


def _finish(distance: torch.Tensor, mask: torch.Tensor, status: torch.Tensor, min_distance: float) -> torch.Tensor:
    """Clamp in place, then zero what is no distance: the diagonal, padding and bad tasks."""
    distance.clamp_min_(min_distance)
    distance.diagonal(dim1=1, dim2=2).zero_()
    bad = ~mask | (status != Status.OK)[:, None]
    return distance.masked_fill_(bad[:, :, None] | bad[:, None, :], 0)


def rounded(distance: torch.Tensor) -> torch.Tensor:
    """Rounded to 6 decimals, as the released code does (SPEC 7)."""
    return (distance.to(torch.float64) * 1e6).round_().div_(1e6).to(torch.float32)
