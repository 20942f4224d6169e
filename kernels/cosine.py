"""Cosine distance matrices of tasks of up to 1024 samples (SPEC 2), in tiles of 64 x 64.

A first launch computes the tiles on the diagonal, and with them the lengths of the rows; a second one the tiles above
it, which are written twice. float32 rows are measured in a launch before these.

What is multiplied and how is in gram.py.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from fase_gpu.kernels.gram import (
    HAS_NO_NUMBER,
    IS_ZERO,
    centred_distance,
    direct_distance,
    is_odd,
    lifts_of,
    measured,
    products,
    raised,
    rows_of,
    squared_lengths,
)
from fase_gpu.kernels.shipped import Shipped
from fase_gpu.kernels.status import EMPTY, NOT_FINITE, OK, SINGLE, ZERO_VECTOR

# Columns of a row that a program reads at once where it measures many rows, and where it measures one.
MANY_ROWS = tl.constexpr(128)
ONE_ROW = tl.constexpr(1024)
# Rows of the workspace, one number for each sample. The power of two that a row is multiplied by, and one over the
# length of the product.
LIFT = tl.constexpr(0)
UNIT = tl.constexpr(1)
# 16-bit rows: what UNIT lost when it was rounded.
UNIT_LOST = tl.constexpr(2)
# float32 rows: the squared distance to the origin from the tensor core, in two parts, and by ordinary arithmetic.
SQUARE = tl.constexpr(2)
SQUARE_LOST = tl.constexpr(3)
TRUE_SQUARE = tl.constexpr(4)
NUMBERS = tl.constexpr(5)


@triton.jit
def _status_of(least_lift, n):
    single = tl.where(n == 1, SINGLE, tl.where(n == 0, EMPTY, OK))
    return tl.where(least_lift == HAS_NO_NUMBER, NOT_FINITE, tl.where(least_lift == IS_ZERO, ZERO_VECTOR, single))


@triton.jit
def _store(matrix_ptr, distance, i, j, n, size):
    """Store distances [I, J] at rows i and columns j of a matrix [size, size].

    Up to three columns of what is no sample are written too, so that stores are whole vectors.
    """
    whole_vectors = (n + 3) // 4 * 4
    mask = (i < n)[:, None] & (j < whole_vectors)[None, :]
    tl.store(matrix_ptr + (i[:, None] * size + j[None, :]), distance, mask=mask)


@triton.jit
def _matrix(dist_ptr, slot, size):
    """The first element of a slot's matrix."""
    return dist_ptr + slot * size * size


@triton.jit(do_not_specialize=["indexed"])
def _rows_kernel(
    x_ptr,  # [S, d] float32
    start_ptr,  # [T] int64, first packed row of each task
    count_ptr,  # [T] int64
    task_ptr,  # [W] int64, or -1
    index_ptr,  # [R] int64: packed row -> row of x; read where indexed
    rows_ptr,  # [W, NUMBERS, size] float32, all but SQUARE and SQUARE_LOST written
    indexed,  # 0 or 1
    row_stride,
    d,
    size,
    ROWS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    blocks = size // ROWS
    slot = (tl.program_id(0) // blocks).to(tl.int64)
    task = tl.load(task_ptr + slot)
    if task < 0:
        return
    n = tl.load(count_ptr + task).to(tl.int32)
    i = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    inside = i < n
    if tl.min(i, 0) >= n:
        return
    first = tl.load(start_ptr + task)
    if VECTOR > 1:
        # Says that rows start at multiples of a vector of 16 bytes and end there.
        row_stride = row_stride // VECTOR * VECTOR
        d = d // VECTOR * VECTOR
    row = rows_of(x_ptr, index_ptr, indexed, first, i, inside, row_stride)
    lift, unit = measured(row, inside, d, MANY_ROWS)
    # The first row stands for itself as every program measures it, alone.
    origin = tl.arange(0, 1)
    origin_row = rows_of(x_ptr, index_ptr, indexed, first, origin, origin == 0, row_stride)
    origin_lift, origin_unit = measured(origin_row, origin == 0, d, ONE_ROW)
    lift = tl.where(i == 0, origin_lift, lift)
    unit = tl.where(i == 0, origin_unit, unit)
    usable = inside & (lift > 0)
    square = squared_lengths(row, usable, lift, unit, origin_row, origin_lift, origin_unit, d, True, MANY_ROWS)
    number_ptr = rows_ptr + slot * (NUMBERS * size) + i
    tl.store(number_ptr + LIFT * size, lift, mask=inside)
    tl.store(number_ptr + UNIT * size, unit, mask=inside)
    tl.store(number_ptr + TRUE_SQUARE * size, square.to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["indexed"])
def _diagonal_kernel(
    x_ptr,  # [S, d] float32, float16 or bfloat16
    start_ptr,  # [T] int64, first packed row of each task
    count_ptr,  # [T] int64
    task_ptr,  # [W] int64, or -1
    index_ptr,  # [R] int64: packed row -> row of x; read where indexed
    rows_ptr,  # [W, NUMBERS, size] float32, written
    dist_ptr,  # [W, size, size] float32, tiles on the diagonal written
    status_ptr,  # [W] int8, written where N == TILE
    indexed,  # 0 or 1
    row_stride,
    d,
    min_distance,
    size,
    N: tl.constexpr,  # size where that is one tile, and else the largest size
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    CENTRED: tl.constexpr,
    LIFTS: tl.constexpr,
    ROUNDED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    tiles = size // TILE
    slot = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    task = tl.load(task_ptr + slot)
    if task < 0:
        return
    n = tl.load(count_ptr + task).to(tl.int32)
    if N == TILE and n == 0:
        tl.store(status_ptr + slot, EMPTY)
    if tile * TILE >= n:
        return
    first = tl.load(start_ptr + task)
    if VECTOR > 1:
        # Says that rows start at multiples of a vector of 16 bytes and end there.
        row_stride = row_stride // VECTOR * VECTOR
        d = d // VECTOR * VECTOR
    i = tile * TILE + tl.arange(0, TILE)
    inside = i < n
    row = rows_of(x_ptr, index_ptr, indexed, first, i, inside, row_stride)

    number_ptr = rows_ptr + slot * (NUMBERS * size)
    origin = tl.arange(0, 1)
    origin_row = rows_of(x_ptr, index_ptr, indexed, first, origin, origin == 0, row_stride)
    if CENTRED:
        lift = tl.load(number_ptr + LIFT * size + i, mask=inside, other=1.0)
        unit = tl.load(number_ptr + UNIT * size + i, mask=inside, other=1.0)
        origin_lift = tl.load(number_ptr + LIFT * size + origin)
        origin_unit = tl.load(number_ptr + UNIT * size + origin)
    else:
        lift = tl.full([TILE], 1.0, tl.float32)
        unit = lift
        origin_lift = tl.full([1], 1.0, tl.float32)
        origin_unit = origin_lift
    usable = inside & (lift > 0)
    gram, gram_lost = products(
        row, usable, lift, unit, row, usable, lift, unit, origin_row, origin_lift, origin_unit, d,
        True, CENTRED, False, UPCAST, TILE, BLOCK,
    )  # fmt: skip
    place = tl.arange(0, TILE)
    same = place[:, None] == place[None, :]
    square = tl.sum(tl.where(same, gram, 0.0), 1)
    square_lost = tl.sum(tl.where(same, gram_lost, 0.0), 1)
    if CENTRED:
        if N > TILE:
            tl.store(number_ptr + SQUARE * size + i, square, mask=inside)
            tl.store(number_ptr + SQUARE_LOST * size + i, square_lost, mask=inside)
        true_square = tl.load(number_ptr + TRUE_SQUARE * size + i, mask=inside, other=1.0)
        distance = centred_distance(gram, gram_lost, square, square_lost, true_square, square, square_lost, true_square)
    else:
        if tl.max(is_odd(square, inside).to(tl.int32), 0) > 0:
            lift = lifts_of(row, inside, d, BLOCK)
            if LIFTS:
                usable = inside & (lift > 0)
                gram, gram_lost = products(
                    row, usable, lift, unit, row, usable, lift, unit, origin_row, origin_lift, origin_unit, d,
                    True, CENTRED, True, UPCAST, TILE, BLOCK,
                )  # fmt: skip
                square = tl.sum(tl.where(same, gram, 0.0), 1)
                square_lost = tl.sum(tl.where(same, gram_lost, 0.0), 1)
        exact = square.to(tl.float64) - square_lost.to(tl.float64)
        exact = 1.0 / tl.sqrt(tl.where(exact > 0, exact, 1.0))
        unit = exact.to(tl.float32)
        unit_lost = (exact - unit.to(tl.float64)).to(tl.float32)
        if N > TILE:
            tl.store(number_ptr + LIFT * size + i, lift, mask=inside)
            tl.store(number_ptr + UNIT * size + i, unit, mask=inside)
            tl.store(number_ptr + UNIT_LOST * size + i, unit_lost, mask=inside)
        distance = direct_distance(
            gram, gram_lost, unit[:, None], unit_lost[:, None], unit[None, :], unit_lost[None, :]
        )
    if CENTRED:
        # The three products of the split are not added in the same order on both sides.
        distance = 0.5 * distance + 0.5 * tl.trans(distance)
    distance = tl.where(same, 0.0, raised(distance, min_distance, ROUNDED))
    if N == TILE:
        least = tl.min(lift, 0)
        tl.store(status_ptr + slot, _status_of(least, n))
        distance = tl.where(least < 0, 0.0, distance)
    _store(_matrix(dist_ptr, slot, size), distance, i, i, n, size)


@triton.jit(do_not_specialize=["indexed"])
def _pairs_kernel(
    x_ptr,  # [S, d] float32, float16 or bfloat16
    start_ptr,  # [T] int64, first packed row of each task
    count_ptr,  # [T] int64
    task_ptr,  # [W] int64, or -1
    index_ptr,  # [R] int64: packed row -> row of x; read where indexed
    rows_ptr,  # [W, NUMBERS, size] float32
    dist_ptr,  # [W, size, size] float32, written off the diagonal, and all of a task that is not OK
    status_ptr,  # [W] int8, written
    indexed,  # 0 or 1
    row_stride,
    d,
    min_distance,
    size,
    N: tl.constexpr,  # size where that is one tile, and else the largest size
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    CENTRED: tl.constexpr,
    LIFTS: tl.constexpr,
    ROUNDED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    tiles = size // TILE
    pairs = tiles * (tiles + 1) // 2
    slot = (tl.program_id(0) // pairs).to(tl.int64)
    pair = tl.program_id(0) % pairs
    task = tl.load(task_ptr + slot)
    if task < 0:
        return
    n = tl.load(count_ptr + task).to(tl.int32)
    if (pair == 0) & (n == 0):
        tl.store(status_ptr + slot, EMPTY)
    # Pairs (0, 0), (0, 1), (1, 1), (0, 2), ...: the square root is exact wherever it is whole.
    high = ((tl.sqrt_rn((8 * pair + 1).to(tl.float32)) - 1.0) * 0.5).to(tl.int32)
    low = pair - high * (high + 1) // 2
    if high * TILE >= n:
        return
    number_ptr = rows_ptr + slot * (NUMBERS * size)
    every = tl.arange(0, N)
    least = tl.min(tl.load(number_ptr + LIFT * size + every, mask=every < n, other=1.0), 0)
    if pair == 0:
        tl.store(status_ptr + slot, _status_of(least, n))
    if (low == high) & (least > 0):
        return

    i = low * TILE + tl.arange(0, TILE)
    j = high * TILE + tl.arange(0, TILE)
    i_inside = i < n
    j_inside = j < n
    matrix_ptr = _matrix(dist_ptr, slot, size)
    if least < 0:
        nothing = tl.zeros([TILE, TILE], tl.float32)
        _store(matrix_ptr, nothing, i, j, n, size)
        _store(matrix_ptr, nothing, j, i, n, size)
        return

    first = tl.load(start_ptr + task)
    if VECTOR > 1:
        row_stride = row_stride // VECTOR * VECTOR
        d = d // VECTOR * VECTOR
    row = rows_of(x_ptr, index_ptr, indexed, first, i, i_inside, row_stride)
    other_row = rows_of(x_ptr, index_ptr, indexed, first, j, j_inside, row_stride)
    origin = tl.arange(0, 1)
    origin_row = rows_of(x_ptr, index_ptr, indexed, first, origin, origin == 0, row_stride)
    lift = tl.load(number_ptr + LIFT * size + i, mask=i_inside, other=1.0)
    other_lift = tl.load(number_ptr + LIFT * size + j, mask=j_inside, other=1.0)
    if CENTRED:
        unit = tl.load(number_ptr + UNIT * size + i, mask=i_inside, other=1.0)
        other_unit = tl.load(number_ptr + UNIT * size + j, mask=j_inside, other=1.0)
        origin_lift = tl.load(number_ptr + LIFT * size + origin)
        origin_unit = tl.load(number_ptr + UNIT * size + origin)
    else:
        unit = lift
        other_unit = other_lift
        origin_lift = tl.full([1], 1.0, tl.float32)
        origin_unit = origin_lift
    lifted = tl.max(tl.maximum((lift != 1.0).to(tl.int32), (other_lift != 1.0).to(tl.int32)), 0)
    if LIFTS and lifted > 0:
        gram, gram_lost = products(
            row, i_inside, lift, unit, other_row, j_inside, other_lift, other_unit,
            origin_row, origin_lift, origin_unit, d, False, CENTRED, True, UPCAST, TILE, BLOCK,
        )  # fmt: skip
    else:
        gram, gram_lost = products(
            row, i_inside, lift, unit, other_row, j_inside, other_lift, other_unit,
            origin_row, origin_lift, origin_unit, d, False, CENTRED, False, UPCAST, TILE, BLOCK,
        )  # fmt: skip
    if CENTRED:
        square = tl.load(number_ptr + SQUARE * size + i, mask=i_inside, other=1.0)
        other_square = tl.load(number_ptr + SQUARE * size + j, mask=j_inside, other=1.0)
        square_lost = tl.load(number_ptr + SQUARE_LOST * size + i, mask=i_inside, other=0.0)
        other_lost = tl.load(number_ptr + SQUARE_LOST * size + j, mask=j_inside, other=0.0)
        true_square = tl.load(number_ptr + TRUE_SQUARE * size + i, mask=i_inside, other=1.0)
        other_true_square = tl.load(number_ptr + TRUE_SQUARE * size + j, mask=j_inside, other=1.0)
        distance = centred_distance(
            gram, gram_lost, square, square_lost, true_square, other_square, other_lost, other_true_square
        )
    else:
        unit = tl.load(number_ptr + UNIT * size + i, mask=i_inside, other=1.0)
        other_unit = tl.load(number_ptr + UNIT * size + j, mask=j_inside, other=1.0)
        unit_lost = tl.load(number_ptr + UNIT_LOST * size + i, mask=i_inside, other=0.0)
        other_unit_lost = tl.load(number_ptr + UNIT_LOST * size + j, mask=j_inside, other=0.0)
        distance = direct_distance(
            gram, gram_lost, unit[:, None], unit_lost[:, None], other_unit[None, :], other_unit_lost[None, :]
        )
    distance = raised(distance, min_distance, ROUNDED)
    _store(matrix_ptr, distance, i, j, n, size)
    _store(matrix_ptr, tl.trans(distance), j, i, n, size)


class _Tiles(NamedTuple):
    """How a dtype is multiplied in tiles of one size."""

    block: int
    """Columns of a slice of the products."""
    warps: int
    stages: int
    registers: int
    """Most that a thread takes, of any kernel of tiles."""
    shared: int
    """Most bytes that a program takes."""


_WIDE: Final = {
    torch.float32: {
        16: _Tiles(32, 1, 3, 144, 5120),
        32: _Tiles(32, 2, 3, 216, 9216),
        64: _Tiles(32, 4, 3, 248, 50176),
    },
    torch.float16: {
        16: _Tiles(64, 1, 3, 104, 5120),
        32: _Tiles(64, 2, 3, 152, 9216),
        64: _Tiles(64, 4, 3, 168, 50176),
    },
    torch.bfloat16: {
        16: _Tiles(64, 1, 3, 104, 5120),
        32: _Tiles(64, 2, 3, 152, 9216),
        64: _Tiles(64, 4, 3, 224, 50176),
    },
}
# Without whole vectors, addresses take more registers.
_NARROW: Final = {
    torch.float32: {
        16: _Tiles(16, 1, 3, 144, 5120),
        32: _Tiles(16, 2, 3, 216, 9216),
        64: _Tiles(16, 8, 3, 200, 25600),
    },
    torch.float16: {
        16: _Tiles(64, 1, 3, 160, 5120),
        32: _Tiles(64, 2, 3, 240, 9216),
        64: _Tiles(64, 4, 3, 216, 17408),
    },
    torch.bfloat16: {
        16: _Tiles(64, 1, 3, 160, 5120),
        32: _Tiles(64, 2, 3, 240, 9216),
        64: _Tiles(64, 4, 3, 240, 17408),
    },
}
_NAMES: Final = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_SHAPES: Final = ((10, 768), (50, 768), (100, 768), (1000, 768))
_LARGEST_TILE: Final = 64
_MOST_SAMPLES: Final = 1024
_ROWS: Final = 16
_ROWS_WARPS: Final = 8
# The interpreter has a function of another class in place of each kernel.
_INTERPRETED: Final = not isinstance(_pairs_kernel, triton.JITFunction)


def _plan(dtype: torch.dtype, size: int, aligned: bool) -> tuple[int, _Tiles]:
    tile = min(size, _LARGEST_TILE)
    return tile, (_WIDE if aligned else _NARROW)[dtype][tile]


def _vector(dtype: torch.dtype, aligned: bool) -> int:
    """Elements that are loaded at once."""
    return 16 // dtype.itemsize if aligned else 1


def _constants(dtype: torch.dtype, size: int, aligned: bool, rounded: bool, interpreted: bool) -> dict[str, Any]:
    """Constants of the kernels of tiles."""
    tile, plan = _plan(dtype, size, aligned)
    return {
        "N": tile if size == tile else _MOST_SAMPLES,
        "TILE": tile,
        "BLOCK": plan.block,
        "VECTOR": _vector(dtype, aligned),
        "CENTRED": dtype == torch.float32,
        "LIFTS": dtype == torch.bfloat16,
        "ROUNDED": rounded,
        "UPCAST": interpreted,
    }


def launch_cosine(
    x: torch.Tensor,
    row_stride: int,
    start: torch.Tensor,
    count: torch.Tensor,
    task: torch.Tensor,
    index: torch.Tensor | None,
    rows: torch.Tensor,
    dist: torch.Tensor,
    status: torch.Tensor,
    min_distance: float,
    rounded: bool,
) -> None:
    """Distances 1 - cos of every pair of samples of the task of each slot, and its status.

    x             [S, d] float32, float16 or bfloat16, the coordinates of a row side by side
    row_stride    elements from a row to the next
    start, count  [T] int64, first packed row and samples of each task; at most N samples in the tasks of the slots
    task          [W] int64, the task of each slot or -1: nothing is written for it
    index         [R] int64 or None: packed row i is row index[i] of x
    rows          [W, 5, N] float32, workspace
    dist          [W, N, N] float32, N a power of two from 16 to 1024, contiguous: the first n rows and columns are
                  written, the same on both sides of a diagonal of zeros, all zero where a task is not OK. Columns
                  from n on may be written or not
    status        [W] int8, written: OK, EMPTY, SINGLE, NOT_FINITE or ZERO_VECTOR
    min_distance  what distances of two samples are raised to
    rounded       whether they are then rounded to 6 decimals, half to even (SPEC 7)
    """
    slots, size, d = dist.shape[0], dist.shape[-1], x.shape[-1]
    vector = _vector(x.dtype, True)
    aligned = row_stride % vector == 0 and d % vector == 0 and x.data_ptr() % 16 == 0
    tile, plan = _plan(x.dtype, size, aligned)
    constants = _constants(x.dtype, size, aligned, rounded, _INTERPRETED)
    given = (x, start, count, task, start if index is None else index)
    numbers = (0 if index is None else 1, row_stride, d)
    if x.dtype == torch.float32:
        _rows_kernel[(slots * (size // _ROWS),)](
            *given, rows, *numbers, size, ROWS=_ROWS, VECTOR=constants["VECTOR"],
            num_warps=_ROWS_WARPS, num_stages=1, enable_fp_fusion=False,
        )  # fmt: skip
    arguments = (*given, rows, dist, status, *numbers, min_distance, size)
    options = {"num_warps": plan.warps, "num_stages": plan.stages, "enable_fp_fusion": False}
    tiles = size // tile
    _diagonal_kernel[(slots * tiles,)](*arguments, **constants, **options)
    if tiles > 1:
        _pairs_kernel[(slots * (tiles * (tiles + 1) // 2),)](*arguments, **constants, **options)


def shipped() -> list[Shipped]:
    """What launch_cosine launches."""
    found = [_shipped_rows(aligned) for aligned in (True, False)]
    for dtype in _WIDE:
        found += [_shipped(_diagonal_kernel, dtype, size, True, False) for size in (16, 32, 64, _MOST_SAMPLES)]
        found.append(_shipped(_pairs_kernel, dtype, _MOST_SAMPLES, True, False))
        for kernel in (_diagonal_kernel, _pairs_kernel):
            found.append(_shipped(kernel, dtype, _MOST_SAMPLES, False, False))
            found.append(_shipped(kernel, dtype, _MOST_SAMPLES, True, True))
    return found


def _types(kernel: Any, dtype: torch.dtype, constants: dict[str, Any]) -> dict[str, str]:
    """The signature of a kernel."""
    types = {
        "x_ptr": f"*{_NAMES[dtype]}",
        **dict.fromkeys(("start_ptr", "count_ptr", "task_ptr", "index_ptr"), "*i64"),
        **dict.fromkeys(("rows_ptr", "dist_ptr"), "*fp32"),
        "status_ptr": "*i8",
        "min_distance": "fp32",
        **dict.fromkeys(("indexed", "row_stride", "d", "size"), "i32"),
    }
    return {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}


def _aligned(signature: dict[str, str], aligned: bool) -> tuple[str, ...]:
    """Arguments that are multiples of 16, for the dimensions that encoders have."""
    given = [name for name, type in signature.items() if type.startswith("*") and (aligned or name != "x_ptr")]
    return (*given, "size", *(("row_stride", "d") if aligned else ()))


def _shipped_rows(aligned: bool) -> Shipped:
    constants = {"ROWS": _ROWS, "VECTOR": _vector(torch.float32, aligned)}
    signature = _types(_rows_kernel, torch.float32, constants)
    return Shipped(
        name=f"cosine rows fp32{'' if aligned else ' unaligned'}",
        kernel=_rows_kernel,
        signature=signature,
        constants=constants,
        warps=_ROWS_WARPS,
        stages=1,
        aligned=_aligned(signature, aligned),
        registers=72 if aligned else 96,
        shared=2304,
        mma=None,
        wide=aligned,
        programs=lambda n, d: math.ceil(n / _ROWS),
        traffic=lambda n, d: n * (4 * d + 12),
        trips=lambda n, d: (math.ceil(d / 128), 0, 0, math.ceil(d / 1024), 0, 0, math.ceil(d / 128)),
        shapes=_SHAPES,
        fp_fusion=False,
    )


def _shipped(kernel: Any, dtype: torch.dtype, size: int, aligned: bool, rounded: bool) -> Shipped:
    tile, plan = _plan(dtype, size, aligned)
    constants = _constants(dtype, size, aligned, rounded, False)
    signature = _types(kernel, dtype, constants)
    pairs = kernel is _pairs_kernel
    name = f"cosine {'pairs' if pairs else 'diagonal'} n<={size} {_NAMES[dtype]}"
    matrix = "HGMMA" if tile == 64 else "HMMA.1688.F32.TF32" if constants["CENTRED"] else "HMMA.16816.F32"
    # The products; and where they are not of float32, what rows need that are lifted or refused, which is rare.
    loops: tuple[int, ...]
    if pairs:
        loops = (0, 1) if constants["LIFTS"] else (1,)
    else:
        loops = (1,) if constants["CENTRED"] else (1, 0, 0) if constants["LIFTS"] else (1, 0)
    return Shipped(
        name=f"{name}{'' if aligned else ' unaligned'}{' rounded' if rounded else ''}",
        kernel=kernel,
        signature=signature,
        constants=constants,
        warps=plan.warps,
        stages=plan.stages,
        aligned=_aligned(signature, aligned),
        registers=plan.registers,
        shared=plan.shared,
        mma=matrix,
        wide=aligned,
        programs=lambda n, d: _tiles(n, tile) * (_tiles(n, tile) - 1) / 2 if pairs else _tiles(n, tile),
        traffic=lambda n, d: n * d * dtype.itemsize + 4 * n * (n - tile if pairs else min(n, tile)),
        trips=lambda n, d: tuple(part * math.ceil(d / plan.block) for part in loops),
        shapes=tuple(shape for shape in _SHAPES if shape[0] <= size and (shape[0] > tile or not pairs)),
        fp_fusion=False,
    )


def _tiles(n: int, tile: int) -> int:
    return math.ceil(n / tile)
