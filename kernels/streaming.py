"""The least edge of every sample of one large task to another component, without any n x n in memory (SPEC 3).

Boruvka's rounds over a task of up to 100,000 samples: the products of the rows are made again in every round, tile by
tile, and of a tile nothing is kept but the least edges of its rows and columns. fase_gpu/streaming.py has the rest of
a round, which takes time in proportion to n.

Rows are given ready for products, with zeros behind them, in one of two forms:

- 16-bit embeddings as they are, whose products are exact, each with one over its length as its scale;
- two float16, `high + low`, of vectors of up to 22 bits: float32 embeddings scaled to unit length, less their
  mean, so that near-duplicates keep their digits. Three products of 16 bits are half the time of three of TF32.

With q the squared length of a row by the same tensor core, and its scale s so that q s^2 is the squared length by
ordinary arithmetic, D_ij = (q_i s_i^2 + q_j s_j^2) / 2 - G_ij s_i s_j. A tensor core truncates as it accumulates,
always towards zero; what that takes off a product, it takes off the lengths too. Products are summed in slices of 64
dimensions, and a compensated float32 sum adds the slices. README.md has the errors.

The same pair comes up in several rounds, as row and column or as column and row, and has to have the same bits: a sum
of two products is one that does not depend on their order.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from fase_gpu.kernels.gram import compensated, dot, raised
from fase_gpu.kernels.shipped import Shipped

INFINITY = tl.constexpr(float("inf"))
NO_NAME = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _gram(rows_ptr, row, other, d, TWO: tl.constexpr, UPCAST: tl.constexpr, BLOCK: tl.constexpr):
    """Products of rows [R] and others [C] int32, [R, C] float32."""
    k = tl.arange(0, BLOCK)
    stride = d.to(tl.int64) * (2 if TWO else 1)
    a_ptr = (rows_ptr + row * stride)[:, None] + k[None, :]
    b_ptr = (rows_ptr + other * stride)[:, None] + k[None, :]
    total = tl.zeros([row.shape[0], other.shape[0]], tl.float32)
    lost = tl.zeros([row.shape[0], other.shape[0]], tl.float32)
    for start in range(0, d, BLOCK):
        a = tl.load(a_ptr + start)
        b = tl.load(b_ptr + start)
        if TWO:
            part = dot(a, tl.load(b_ptr + (d + start)), None, UPCAST)
            swapped = dot(tl.load(a_ptr + (d + start)), b, None, UPCAST)
            # A plain sum of the two would be taken in the tensor core, one after the other.
            part = dot(a, b, tl.fma(swapped, tl.full(swapped.shape, 1.0, tl.float32), part), UPCAST)
        else:
            part = dot(a, b, None, UPCAST)
        total, lost = compensated(total, lost, part)
    return total


@triton.jit(do_not_specialize=["n"])
def _squares_kernel(
    rows_ptr,  # [n, d] or [n, 2, d] 16-bit, see above
    square_ptr,  # [n] float32, written
    n,
    d,
    TWO: tl.constexpr,
    UPCAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Of tiles as the scan has them: a product does not depend on its place in the tile, but may on the tile.
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0) * COLUMNS // ROWS * ROWS + tl.arange(0, ROWS)
    gram = _gram(rows_ptr, tl.minimum(row, n - 1), tl.minimum(column, n - 1), d, TWO, UPCAST, BLOCK)
    square = tl.sum(tl.where(row[:, None] == column[None, :], gram, 0.0), 0)
    tl.store(square_ptr + column, square, mask=column < n)


@triton.jit
def _distances(
    gram,  # [R, C], see _gram
    row,
    at,
    other,
    other_at,
    base_ptr,
    scale_ptr,
    n,
    min_distance,
    ROUNDED: tl.constexpr,
):
    """Distances [R, C] of samples row [R] and other [C] at these positions; infinite where one is no sample."""
    scale = tl.load(scale_ptr + row)[:, None] * tl.load(scale_ptr + other)[None, :]
    base = tl.load(base_ptr + row, mask=at < n, other=INFINITY)
    other_base = tl.load(base_ptr + other, mask=other_at < n, other=INFINITY)
    distance = (base[:, None] + other_base[None, :]) - gram * scale
    return raised(distance, min_distance, ROUNDED)


@triton.jit
def _improve(best_ptr, sample, inside, distance, others, AXIS: tl.constexpr):
    """Lower the keys of samples to those of the least distances along an axis, to samples `others`."""
    least = tl.min(distance, AXIS)
    end = tl.min(tl.where(distance == tl.expand_dims(least, AXIS), others, NO_NAME), AXIS)
    key = (least.to(tl.int32, bitcast=True).to(tl.int64) << 32) | end.to(tl.int64)
    found = inside & (least < INFINITY)
    # A key that is no longer the least spares no wrong one, only an atomic.
    found = found & (key < tl.load(best_ptr + sample, mask=found, other=0))
    tl.atomic_min(best_ptr + sample, key, mask=found, sem="relaxed")


@triton.jit
def _one_component(place_ptr, first, last, wanted):
    """Whether samples at positions first to last - 1 are all of one component, and which; -1 where they may not be."""
    low = tl.load(place_ptr + first)
    same = (low == tl.load(place_ptr + last - 1)) & ((last <= wanted) | (first >= wanted))
    return tl.where(same, low, -1)


@triton.jit(do_not_specialize=["n"])
def _scan_kernel(
    rows_ptr,  # [n, d] or [n, 2, d] 16-bit, see above
    base_ptr,  # [n] float32, half the squared length of each row, scaled
    scale_ptr,  # [n] float32, so that a product and two scales make the product of the vectors
    order_ptr,  # [n] int32, the sample at each position
    place_ptr,  # [n] int32, the component of the sample at each position
    wanted_ptr,  # [1] int64, how many of the first positions are wanted
    best_ptr,  # [n] int64, by sample, lowered
    total_ptr,  # [programs] float64, written where FIRST
    n,
    d,
    min_distance,
    TWO: tl.constexpr,
    FIRST: tl.constexpr,
    ROUNDED: tl.constexpr,
    UPCAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    program, programs = tl.program_id(0), tl.num_programs(0)
    wanted = tl.load(wanted_ptr).to(tl.int32)
    row_blocks, column_blocks = tl.cdiv(wanted, ROWS), tl.cdiv(n, COLUMNS)
    total = tl.full([], 0.0, tl.float64)
    # Blocks of rows go in groups, whose tiles are taken column by column: the rows of a group stay in the L2 cache.
    # Tiles are counted through all groups, so that every program has as many as the next one.
    done = 0
    group = 0
    while group < row_blocks:
        height = tl.minimum(GROUP, row_blocks - group)
        left = group * (ROWS // COLUMNS)
        tiles = height * (column_blocks - left)
        tile = (program - done % programs + programs) % programs
        while tile < tiles:
            first, other_first = (group + tile % height) * ROWS, (left + tile // height) * COLUMNS
            one = _one_component(place_ptr, first, tl.minimum(first + ROWS, n), wanted)
            other_one = _one_component(place_ptr, other_first, tl.minimum(other_first + COLUMNS, n), wanted)
            # What is left of the diagonal is done on the other side of it.
            if (other_first >= first) & ((one != other_one) | (one < 0)):
                at, other_at = first + tl.arange(0, ROWS), other_first + tl.arange(0, COLUMNS)
                row = tl.load(order_ptr + at, mask=at < n, other=0)
                other = tl.load(order_ptr + other_at, mask=other_at < n, other=0)
                gram = _gram(rows_ptr, row, other, d, TWO, UPCAST, BLOCK)
                # Loaded again, in words that the compiler does not see to be the same: registers are short in _gram.
                row = tl.load(order_ptr + at, mask=at < n, other=0, cache_modifier=".ca")
                other = tl.load(order_ptr + other_at, mask=other_at < n, other=0, cache_modifier=".ca")
                distance = _distances(gram, row, at, other, other_at, base_ptr, scale_ptr, n, min_distance, ROUNDED)
                place = tl.load(place_ptr + at, mask=at < n, other=-1)
                other_place = tl.load(place_ptr + other_at, mask=other_at < n, other=-1)
                distance = tl.where(place[:, None] == other_place[None, :], INFINITY, distance)
                if FIRST:
                    part = tl.sum(tl.sum(tl.where(distance < INFINITY, distance, 0.0), 1).to(tl.float64), 0)
                    # Tiles with rows among their columns have their pairs twice, here or in the next tile.
                    total += tl.where(other_first < first + ROWS, part, 2 * part)
                _improve(best_ptr, row, at < n, distance, other[None, :], 1)
                if other_first < wanted:
                    _improve(best_ptr, other, other_at < n, distance, row[:, None], 0)
            tile += programs
        done += tiles
        group += GROUP
    if FIRST:
        tl.store(total_ptr + program, total)


class _Plan(NamedTuple):
    """How rows of one form are multiplied."""

    rows: int
    """Of a tile."""
    block: int
    """Dimensions of a slice."""
    warps: int
    stages: int
    resident: int
    """Programs that a multiprocessor runs at once."""
    registers: int
    rounded_registers: int
    shared: int


COLUMNS: Final = 64
DIMENSIONS: Final = 64
"""Rows have a multiple of it."""
_GROUP: Final = 2048
"""Rows of a group."""
# By whether rows are two float16. With two low parts more, slices of 64 are too much for the registers of sm_80 and
# sm_100.
_PLANS: Final = {
    False: _Plan(64, 64, warps=4, stages=3, resident=3, registers=168, rounded_registers=200, shared=49152),
    True: _Plan(128, 32, warps=8, stages=4, resident=1, registers=255, rounded_registers=216, shared=98304),
}
_INTERPRETED: Final = not isinstance(_scan_kernel, triton.JITFunction)


def programs(device: torch.device, two: bool) -> int:
    """How many programs scan: as many as a GPU runs at once."""
    if device.type != "cuda":
        return 3
    return int(torch.cuda.get_device_properties(device).multi_processor_count) * _PLANS[two].resident


def _constants(two: bool, interpreted: bool) -> dict[str, Any]:
    plan = _PLANS[two]
    return {"TWO": two, "UPCAST": interpreted, "ROWS": plan.rows, "COLUMNS": COLUMNS, "BLOCK": plan.block}


def _scan_constants(two: bool, interpreted: bool, first: bool, rounded: bool) -> dict[str, Any]:
    group = _GROUP // _PLANS[two].rows
    return _constants(two, interpreted) | {"FIRST": first, "ROUNDED": rounded, "GROUP": group}


def _options(two: bool) -> dict[str, Any]:
    plan = _PLANS[two]
    return {"num_warps": plan.warps, "num_stages": plan.stages, "enable_fp_fusion": False}


def launch_squares(rows: torch.Tensor, square: torch.Tensor) -> None:
    """Squared lengths of the rows, by the products of the scan.

    rows     [n, d] bfloat16 or float16, or [n, 2, d] float16, the low parts behind the high ones; contiguous, d a
             multiple of DIMENSIONS
    square   [n] float32, written
    """
    n, d, two = rows.shape[0], rows.shape[-1], rows.ndim == 3
    _squares_kernel[(math.ceil(n / COLUMNS),)](rows, square, n, d, **_constants(two, _INTERPRETED), **_options(two))


def launch_scan(
    rows: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    order: torch.Tensor,
    place: torch.Tensor,
    wanted: torch.Tensor,
    best: torch.Tensor,
    total: torch.Tensor,
    first: bool,
    min_distance: float,
    rounded: bool,
) -> None:
    """Lower the keys of the wanted samples to those of their least edges to another component.

    The distance of two samples is base + base - product * scale * scale.

    rows           as launch_squares takes them
    base, scale    [n] float32
    order          [n] int32, the sample at each position, the wanted ones first; within the wanted ones and within the
                   others by component
    place          [n] int32, the component of the sample at each position
    wanted         [1] int64, the number of wanted samples; with 0 nothing happens
    best           [n] int64, by sample: weight bits << 32 | the other end. Largest where there is none. Keys of samples
                   that are not wanted may be lowered too
    total          [programs] float64, written where `first`: parts of the sum of all n * n distances
    first          whether every sample is wanted, in sample order, and a component
    min_distance   what distances are raised to
    rounded        whether they are then rounded to 6 decimals, half to even (SPEC 7)
    """
    n, d, two = rows.shape[0], rows.shape[-1], rows.ndim == 3
    constants = _scan_constants(two, _INTERPRETED, first, rounded)
    _scan_kernel[(total.shape[0],)](
        rows, base, scale, order, place, wanted, best, total, n, d, min_distance, **constants, **_options(two)
    )


_NAMES: Final = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_MULTIPROCESSORS: Final = 132  # of an H100 and an H200
_SHAPES: Final = ((10_000, 384), (10_000, 768), (100_000, 768), (100_000, 4096))


def shipped() -> list[Shipped]:
    """What the launchers launch."""
    forms = [(torch.bfloat16, False), (torch.float16, False), (torch.float16, True)]
    found = [_shipped_squares(dtype, two) for dtype, two in forms]
    for dtype, two in forms:
        for first in (True, False):
            found.append(_shipped_scan(dtype, two, first, False))
            if dtype == torch.float16:
                found.append(_shipped_scan(dtype, two, first, True))
    return found


def _types(kernel: Any, dtype: torch.dtype, constants: dict[str, Any]) -> dict[str, str]:
    """The signature of a kernel."""
    types = {
        "rows_ptr": f"*{_NAMES[dtype]}",
        **dict.fromkeys(("square_ptr", "base_ptr", "scale_ptr"), "*fp32"),
        **dict.fromkeys(("order_ptr", "place_ptr"), "*i32"),
        **dict.fromkeys(("wanted_ptr", "best_ptr"), "*i64"),
        "total_ptr": "*fp64",
        **dict.fromkeys(("n", "d"), "i32"),
        "min_distance": "fp32",
    }
    return {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}


def _aligned(signature: dict[str, str]) -> tuple[str, ...]:
    """Arguments that are multiples of 16."""
    return (*(name for name, type in signature.items() if type.startswith("*")), "d")


def _shipped_squares(dtype: torch.dtype, two: bool) -> Shipped:
    constants, plan = _constants(two, False), _PLANS[two]
    signature = _types(_squares_kernel, dtype, constants)
    return Shipped(
        name=f"streaming squares {_form(dtype, two)}",
        kernel=_squares_kernel,
        signature=signature,
        constants=constants,
        warps=plan.warps,
        stages=plan.stages,
        aligned=_aligned(signature),
        registers=120 if two else 88,
        shared=plan.shared,
        mma="HGMMA",
        wide=True,
        programs=lambda n, d: math.ceil(n / COLUMNS),
        traffic=lambda n, d: n * (4 if two else 2) * d,
        trips=lambda n, d: (math.ceil(d / plan.block),),
        shapes=_SHAPES,
        fp_fusion=False,
    )


def _shipped_scan(dtype: torch.dtype, two: bool, first: bool, rounded: bool) -> Shipped:
    plan = _PLANS[two]
    constants = _scan_constants(two, False, first, rounded)
    signature = _types(_scan_kernel, dtype, constants)
    rounds = "first round" if first else "later rounds"
    return Shipped(
        name=f"streaming scan {_form(dtype, two)} {rounds}{' rounded' if rounded else ''}",
        kernel=_scan_kernel,
        signature=signature,
        constants=constants,
        warps=plan.warps,
        stages=plan.stages,
        aligned=_aligned(signature),
        registers=plan.rounded_registers if rounded else plan.registers,
        shared=plan.shared,
        mma="HGMMA",
        wide=True,
        programs=lambda n, d: _MULTIPROCESSORS * plan.resident,
        # The rows of a group stay where they are, and all rows behind them pass by.
        traffic=lambda n, d: (_groups(n) + 1) / 2 * n * (4 if two else 2) * d,
        # The tiles of all groups, every sample being wanted.
        trips=lambda n, d: (
            _groups(n),
            _tiles(n, plan.rows) / (_MULTIPROCESSORS * plan.resident * _groups(n)),
            math.ceil(d / plan.block),
        ),
        shapes=_SHAPES,
        fp_fusion=False,
    )


def _groups(n: int) -> int:
    """Groups of blocks of rows."""
    return math.ceil(n / _GROUP)


def _tiles(n: int, rows: int) -> int:
    """Tiles on and above the diagonal of n samples."""
    return sum(math.ceil(n / COLUMNS) - first // COLUMNS for first in range(0, n, rows))


def _form(dtype: torch.dtype, two: bool) -> str:
    return f"{_NAMES[dtype]}{'x2' if two else ''}"
