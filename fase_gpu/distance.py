"""Cosine distance matrices (SPEC 2), a tile of tasks at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch

from fase_gpu.results import Status

# A float32 sum drifts with its length and with how early it grows large, so squares and products are summed in slices.
# Opposite bfloat16 vectors of 4096 dimensions: off by 2.7e-6 in one sum, by 6e-7 in slices; near-duplicates by 1e-11.
_SLICE: Final = 256
_MOST_SLICES: Final = 16
# Of norms, which need fewer digits and are summed in eight lanes.
_NORM_SLICE: Final = 512
# Beyond this squared distance from its task's mean, a row's products are large enough for float32 sums to be off by
# more than 1e-6 where they all round the same way (constant or spiky rows: 5e-6 was seen). Such tasks, and rows whose
# length leaves the range in which float32 squares keep their digits, are done in float64.
WIDE: Final = 0.25
LENGTHS: Final = (1e-15, 1e15)
# Rows start at multiples of 64 bytes: MKL's products depend on the alignment of a matrix, which would let a task's
# numbers depend on its place in the tile.
_ALIGNED: Final = 64
# Beyond this size a float64 product is taken task by task: MKL's depends on whether there is one matrix or several.
_LARGE: Final = 64
# Bytes of embeddings that are looked at together: what a core's cache holds, or what fills a GPU.
_TILE_BYTES: Final = {"cpu": 1 << 21, "cuda": 1 << 28}
# At least so many rows, however long: every call for a tile costs some microseconds.
_TILE_ROWS: Final = 320
_MOST_TILE_TASKS: Final = 64
# NumPy's BLAS multiplies up to so many rows, where torch's would be slower, and so many products of a matrix and slice,
# beyond which it may use threads that nobody here has a say in.
_SMALL: Final = 32
_MOST_PRODUCTS: Final = 1 << 18
# Beyond this size what lies below so many blocks on the diagonal is copied from above them, not multiplied.
_BLOCKED: Final = 200
_BLOCKS: Final = 4
# A user's matrix may be off by what its own arithmetic loses (TF32: 2.5e-5), not by more.
SLACK: Final = 1e-4


class Tile(NamedTuple):
    """Distances of B tasks, made exact where a stage relies on it: symmetric, zero on the diagonal and in padding."""

    distance: torch.Tensor
    """[B, N, N] float32; all zero for a task that is not OK."""
    status: torch.Tensor
    """[B] int8, Status."""


class Tasks(Protocol):
    """Embeddings [B, N, d] of which some tasks at a time are looked at: a tensor, or what copies only those."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, tasks: Any, /) -> torch.Tensor: ...


def inside(n: torch.Tensor, size: int) -> torch.Tensor:
    """Mask [B, size] of the positions below n [B]."""
    return torch.arange(size, device=n.device) < n[:, None]


def cosine_distances(x: Tasks, n: torch.Tensor, min_distance: float) -> Tile:
    """Distances 1 - cos of every pair of samples of a task.

    x   [B, N, d] embeddings, any float dtype; what lies beyond a task's n samples may be any of its own rows
    n   [B] int64

    Within 1e-6 of float64 on the same values. The rows are scaled to unit length and the task's mean is subtracted
    before the product, so that what cancels is the distance to the mean and not 1: near-duplicates keep their digits.
    Rows of norm 1 + a and 1 + b put the half squared difference off by (a + b) of itself and by (a - b)^2 / 2, so that
    float32 norms are enough. Where float32 products may be TF32's or bfloat16's, all is done in float64.

    Rows are read a few tasks at a time, which stay in the cache from the first look to the product. What follows is
    small and done for all tasks at once.
    """
    tasks, size, d = x.shape
    mask = inside(n, size)
    status = torch.full_like(n, Status.OK, dtype=torch.int8)
    gram = torch.empty(tasks, size, size, dtype=torch.float32, device=n.device)
    step = max(1, _TILE_BYTES.get(n.device.type, _TILE_BYTES["cuda"]) // (4 * size * (d + size)), _TILE_ROWS // size)
    if not float32_products_are_exact(n.device):
        for first in range(0, tasks, step):
            part = slice(first, first + step)
            gram[part], status[part] = _exact_distances(x[part], mask[part])
        return Tile(_finish(gram, mask, status, min_distance), status)
    norm = torch.empty(tasks, size, dtype=torch.float32, device=n.device)
    step = min(step, _MOST_TILE_TASKS)
    whole = bool(mask.all())
    # One row more than there are, and zeros behind all: see _gram.
    parts = len(slices(d))
    room = torch.zeros(
        min(step, tasks), size + 1, parts, aligned(-(-d // parts), torch.float32), dtype=torch.float32, device=n.device
    )
    for first in range(0, tasks, step):
        part = slice(first, first + step)
        rows = x[part]
        norm[part] = norms(rows)
        scale = (1 / norm[part]) if whole else torch.where(mask[part], 1 / norm[part], 0)
        sliced = room[: rows.shape[0]]
        unit = sliced.flatten(2)[:, :size]
        torch.mul(rows, scale[..., None], out=unit[..., :d])
        mean = unit.sum(1, keepdim=True)
        unit -= mean.div_(size) if whole else mean.div_(n[part, None, None].clamp_min(1))
        _gram(sliced, gram[part])
    square = gram.diagonal(dim1=1, dim2=2).clone()
    usual = (norm > LENGTHS[0]) & (norm < LENGTHS[1])
    unusual = (~usual & mask).any(1)
    wide = ((square > WIDE) & mask).any(1) & ~unusual
    distance = gram
    some = max(1, _TILE_BYTES["cpu"] // (8 * size * size))
    for products, squares in zip(_parts(gram, some), _parts(square, some), strict=True):
        twice = (squares[:, :, None] + squares[:, None, :]).sub_(products + products.mT)
        torch.mul(twice, 0.5, out=products)
    for few in _parts(torch.nonzero(wide).flatten(), step):
        distance[few] = _wide_distances(x[few.numpy()])
    for few in _parts(torch.nonzero(unusual).flatten(), step):
        distance[few], status[few] = _exact_distances(x[few.numpy()], mask[few])
    return Tile(_finish(distance, mask, status, min_distance), status)


def given_distances(distance: torch.Tensor, n: torch.Tensor, min_distance: float) -> Tile:
    """A user's matrices [B, N, N] of any float dtype, checked and raised to min_distance; the diagonal is not read."""
    mask = inside(n, distance.shape[1])
    pairs = mask[:, :, None] & mask[:, None, :]
    pairs.diagonal(dim1=1, dim2=2).fill_(False)
    distance = torch.where(pairs, distance, 0).to(torch.float32)
    finite = distance.isfinite().flatten(1).all(1)
    skew = (distance - distance.mT).abs() > SLACK * (1 + distance.abs())
    wrong = (skew | (distance < -SLACK)).flatten(1).any(1)
    status = torch.where(wrong, Status.NOT_A_DISTANCE, Status.OK)
    status = torch.where(finite, status, Status.NOT_FINITE).to(torch.int8)
    distance = 0.5 * distance + 0.5 * distance.mT  # halved first: the sum of two finite numbers may not be finite
    return Tile(_finish(distance, mask, status, min_distance), status)


def float32_products_are_exact(device: torch.device) -> bool:
    """Whether a matrix product there never rounds its float32 operands first: on a CPU that was not told to."""
    if device.type != "cpu":
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it was set through torch.backends' fp32_precision, where this getter has no answer
        return False


def slices(d: int) -> list[slice]:
    """The slices of d dimensions in which products are summed."""
    step = max(_SLICE, _SLICE * -(-d // (_SLICE * _MOST_SLICES)))
    return [slice(start, start + step) for start in range(0, d, step)]


def norms(x: torch.Tensor) -> torch.Tensor:
    """Lengths [B, N] of the rows of [B, N, d], float64 from float64 and else float32, the squares summed in slices."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if x.shape[-1] <= _NORM_SLICE:
        norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=dtype)
        return norm
    # Slices of equal lengths where they can be: a view of whole rows is read much faster.
    d = x.shape[-1]
    for parts_of_row in range(-(-d // _NORM_SLICE), 4 * -(-d // _NORM_SLICE)):
        if d % parts_of_row == 0:
            parts = torch.linalg.vector_norm(x.view(*x.shape[:-1], parts_of_row, -1), dim=-1, dtype=dtype)
            norm = torch.linalg.vector_norm(parts, dim=-1)
            return norm
    whole = x.shape[-1] // _NORM_SLICE * _NORM_SLICE
    rest = torch.linalg.vector_norm(x[..., whole:], dim=-1, keepdim=True, dtype=dtype)
    parts = x[..., :whole].view(*x.shape[:-1], whole // _NORM_SLICE, _NORM_SLICE)
    parts = torch.linalg.vector_norm(parts, dim=-1, dtype=dtype)
    norm = torch.linalg.vector_norm(torch.cat([parts, rest], -1), dim=-1)
    return norm


def aligned(d: int, dtype: torch.dtype) -> int:
    """d rounded up so that every row of a matrix starts aligned."""
    unit = _ALIGNED // dtype.itemsize
    return -(-d // unit) * unit


def _by_numpy(size: int, columns: int) -> bool:
    return size <= _SMALL and size * (size + 1) * columns <= _MOST_PRODUCTS


def _gram(rows: torch.Tensor, out: torch.Tensor) -> None:
    """Products [B, N, N] of the first N rows of [B, N + 1, S, K], of which S slices of K columns are summed apart.

    NumPy's BLAS is two to three times as fast as torch's for matrices as small as these. It would take the product of a
    matrix and its own transpose for another kind, which is slower: one row more makes them two matrices.
    """
    size = out.shape[1]
    if _by_numpy(size, rows.shape[3]) and out.device.type == "cpu":
        parts = rows.transpose(1, 2).numpy()
        with np.errstate(all="ignore"):  # of rows that are not finite, which are seen to later
            products = np.matmul(parts[:, :, :size], parts.swapaxes(2, 3))
        out.copy_(torch.from_numpy(np.add.reduce(products, 1))[..., :size])
        return
    block = -(-size // _BLOCKS) if size > _BLOCKED else size
    for first in range(0, size, block):
        upper = out[:, first : first + block, first:]
        for s in range(rows.shape[2]):
            factor = rows[:, first:size, s]
            upper.baddbmm_(factor[:, :block], factor.mT, beta=int(s > 0))
        out[:, first + block :, first : first + block] = upper[:, :, block:].mT


def _aligned_rows(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An empty [B, N, d] for the rows of x, with d rounded up so that rows start aligned, and zeros behind them."""
    d = x.shape[2]
    rows = torch.empty(*x.shape[:2], aligned(d, dtype), dtype=dtype, device=x.device)
    rows[..., d:] = 0
    return rows


def _parts(x: torch.Tensor, step: int) -> Iterator[torch.Tensor]:
    for first in range(0, x.shape[0], step):
        yield x[first : first + step]


def _wide_distances(x: torch.Tensor) -> torch.Tensor:
    """[B, N, N] float32, with products in float64, of finite rows whose lengths are usual ones."""
    tasks, size, d = x.shape
    parts = len(slices(d))
    columns = aligned(-(-d // parts), torch.float64)
    rows = torch.zeros(tasks, size + 1, parts, columns, dtype=torch.float64, device=x.device)
    flat = rows.flatten(2)[:, :size]
    flat[..., :d] = x
    gram = torch.empty(tasks, size, size, dtype=torch.float64, device=x.device)
    if _by_numpy(size, columns):
        _gram(rows, gram)
    else:
        torch.stack([task @ task.mT for task in flat], out=gram)
    length = gram.diagonal(dim1=1, dim2=2).sqrt()
    gram /= length[:, :, None] * length[:, None, :]
    return (2 - gram - gram.mT).mul_(0.5).to(torch.float32)


def _exact_distances(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64, whatever the lengths: distances [B, N, N] float32 (anything in bad tasks) and status [B] int8."""
    unit, status = exact_rows(x, mask)
    if unit.shape[1] > _LARGE:
        gram = torch.stack([rows @ rows.mT for rows in unit])
    else:
        pair = unit if unit.shape[0] > 1 else unit.repeat(2, 1, 1)
        gram = torch.bmm(pair, pair.mT)[: unit.shape[0]]
    return (2 - gram - gram.mT).mul_(0.5).to(torch.float32), status


def exact_rows(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit rows [B, N, d] in float64, whatever their lengths, zero where the mask is not, and status [B] int8."""
    wide = x.to(torch.float64)
    largest = wide.abs().amax(-1)
    status = torch.full(mask.shape[:1], Status.OK, dtype=torch.int8, device=x.device)
    status.masked_fill_(((largest == 0) & mask).any(1), Status.ZERO_VECTOR)
    status.masked_fill_((~largest.isfinite() & mask).any(1), Status.NOT_FINITE)
    # Scaled by the largest coordinate first, so that no square over- or underflows.
    unit = _aligned_rows(x, torch.float64)
    torch.div(wide, largest[..., None], out=unit[..., : x.shape[2]])
    unit /= torch.linalg.vector_norm(unit, dim=-1, keepdim=True)
    return unit.masked_fill_(~mask[..., None], 0).nan_to_num_(0.0), status


def _finish(distance: torch.Tensor, mask: torch.Tensor, status: torch.Tensor, min_distance: float) -> torch.Tensor:
    """Clamp in place, then zero what is no distance: the diagonal, padding and bad tasks."""
    distance.clamp_min_(min_distance)
    distance.diagonal(dim1=1, dim2=2).zero_()
    bad = ~mask | (status != Status.OK)[:, None]
    if bad.device.type != "cpu" or bool(bad.any()):
        distance.masked_fill_(bad[:, :, None] | bad[:, None, :], 0)
    return distance


def rounded(distance: torch.Tensor) -> torch.Tensor:
    """Rounded to 6 decimals, as the released code does (SPEC 7)."""
    return (distance.to(torch.float64) * 1e6).round_().div_(1e6).to(torch.float32)
