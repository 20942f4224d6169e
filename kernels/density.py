"""The mode of the MST weights (SPEC 4): the grid point of largest Gaussian kernel density.

The result is that of the full search over the grid, from about an eighth of its exponentials. The density is taken at
both ends of cells of q grid points. Its second derivative is at least -density / bandwidth^2, so that inside a cell it
cannot rise above the ends by more than a bound. Then windows of grid points are searched: first the one around the best
end, then wherever a bound is not below the best value found, until nowhere is left. That is one window for nine tasks
in ten; where bounds tell nothing (weights so far apart that a cell is wider than the bandwidth) it is the full search.

Tasks of a few samples keep their weights in registers, B tasks side by side (mode_of, for the fused kernel). For the
others a program reads the weights of one task from memory, as often as it needs them.
"""

from __future__ import annotations

import math
from typing import Final

import torch
import triton
import triton.language as tl
from fase_gpu.kernels.shipped import Shipped
from fase_gpu.kernels.status import OK

# sqrt(log2(e) / 2): exp(-z * z / 2) = exp2(-t * t) of t = z * this.
BASE_TWO = tl.constexpr(0.8493218002880191)
# In place of a centre where there is no weight: its term is 0 and its square is finite.
NOWHERE = tl.constexpr(1e18)
# Values closer than this are one value, and the first of them is the mode: only rounding tells symmetric peaks apart.
# About twice the error of exp2 in float32, a third of what SPEC 4 calls a tie.
TIE = tl.constexpr(3e-7)
# A slope below this part of the density is none; at steps below SMOOTH the slope between two points tells the higher.
LEVEL = tl.constexpr(2e-7)
SMOOTH = tl.constexpr(0.1)
NO_POINT = tl.constexpr(0x7FFFFFFF)
# Terms that are summed in float32 before the sum goes on in float64.
CHUNK = tl.constexpr(64)

# Windows that a task takes, measured: 1.0 on the trees of random vectors, 1.1 on random weights.
_WINDOWS: Final = 1.1
_WARPS: Final = 4
_CONSTANTS: Final = {"CELLS": 32, "FINE": 32, "SIDE": 16}


@triton.jit
def _term(x, centre):
    t = x - centre
    return tl.exp2(-(t * t))


@triton.jit
def _sloped_term(x, centre):
    t = centre - x
    return t * tl.exp2(-(t * t))


@triton.jit
def _densities(centre, low, scale, first, offset, apart, step, most_edges, SIDE: tl.constexpr):
    """Unscaled density at the grid points first [B] + offset [C], and at those + apart, both [C, B].

    centre       [N, B] float64, weights in units of t above the lowest one; with SIDE, a pointer to the weights, of
                 which `most_edges` are read SIDE at a time
    low, scale   [B] float64: weight -> (weight - low) * scale, in units of t
    step         [B] float64, distance of two grid points in those units
    """
    # Relative to the first point in float64, then float32: the error is that of a short distance, at any spread.
    shift = first.to(tl.float64) * step
    single = step.to(tl.float32)[None, :]
    x = offset.to(tl.float32)[:, None] * single
    y = (offset + apart).to(tl.float32)[:, None] * single
    e = 0
    if SIDE:
        total_x = tl.zeros(offset.shape, tl.float64)
        total_y = tl.zeros(offset.shape, tl.float64)
        while e < most_edges:
            at_x = tl.zeros([offset.shape[0], SIDE], tl.float32)
            at_y = tl.zeros([offset.shape[0], SIDE], tl.float32)
            stop = tl.minimum(e + CHUNK * SIDE, most_edges)
            while e < stop:
                here = _centres_in_memory(centre, e, most_edges, low, scale, shift, SIDE)[None, :]
                at_x += _term(x, here)
                at_y += _term(y, here)
                e += SIDE
            total_x += tl.sum(at_x, 1).to(tl.float64)
            total_y += tl.sum(at_y, 1).to(tl.float64)
        return total_x.to(tl.float32)[:, None], total_y.to(tl.float32)[:, None]
    else:
        here = (centre - shift[None, :]).to(tl.float32)
        row = tl.arange(0, centre.shape[0])[:, None]
        at_x = tl.zeros_like(x)
        at_y = tl.zeros_like(x)
        while e < most_edges:
            c = tl.sum(tl.where(row == e, here, 0.0), 0)[None, :]
            at_x += _term(x, c)
            at_y += _term(y, c)
            e += 1
        return at_x, at_y


@triton.jit
def _slopes(centre, low, scale, point, step, most_edges, SIDE: tl.constexpr):
    """Slope of the density half a step to the right and half a step to the left of point [B], both [B]."""
    shift = point.to(tl.float64) * step
    half = (0.5 * step).to(tl.float32)
    if SIDE:
        right = tl.zeros([SIDE], tl.float64)
        left = tl.zeros([SIDE], tl.float64)
        e = 0
        while e < most_edges:
            here = _centres_in_memory(centre, e, most_edges, low, scale, shift, SIDE)
            right += _sloped_term(half, here).to(tl.float64)
            left += _sloped_term(-half, here).to(tl.float64)
            e += SIDE
        return tl.sum(right[:, None], 0).to(tl.float32), tl.sum(left[:, None], 0).to(tl.float32)
    else:
        here = (centre - shift[None, :]).to(tl.float32)
        half = half[None, :]
        return tl.sum(_sloped_term(half, here), 0), tl.sum(_sloped_term(-half, here), 0)


@triton.jit
def _centres_in_memory(weight_ptr, e, m, low, scale, shift, SIDE: tl.constexpr):
    """Weights e .. e + SIDE - 1 of one task, [SIDE] float32 in units of t above `shift` of the lowest one."""
    i = e + tl.arange(0, SIDE)
    weight = tl.load(weight_ptr + i, mask=i < m, other=0.0).to(tl.float64)
    return tl.where(i < m, (weight - low) * scale - shift, NOWHERE).to(tl.float32)


@triton.jit
def _scott(variance, m):
    """Spread over bandwidth, float32, of m weights of that variance in units of the squared spread."""
    return tl.exp2(0.2 * tl.log2(m.to(tl.float32))) / tl.sqrt(variance)


@triton.jit
def _search(
    centre,
    low,
    scale,
    step,
    narrowness,
    varied,
    m,
    most_edges,
    grid,
    CELLS: tl.constexpr,
    FINE: tl.constexpr,
    SIDE: tl.constexpr,
):
    """The grid point of largest density, [B] int32, of the tasks that are `varied`; for the arguments see above."""
    q = tl.cdiv(grid, CELLS)
    cell = tl.arange(0, CELLS)
    zero = tl.zeros_like(m)
    left, right = _densities(centre, low, scale, zero, cell * q, q, step, most_edges, SIDE)
    inside = (cell * q < grid)[:, None]
    best, first = tl.max(tl.where(inside, left, -1.0), 0, return_indices=True)

    # How far the inside of a cell can rise above the larger of its ends; kappa is (cell / bandwidth)^2 / 2. The density
    # is at most best / (1 - kappa / 4); from kappa = 4 on, where that says nothing, every bound is far above it.
    kappa = q.to(tl.float32) * step.to(tl.float32) / BASE_TWO
    kappa = 0.5 * kappa * kappa
    ceiling = best * kappa / tl.maximum(1.0 - 0.25 * kappa, 1e-6)
    rise = tl.maximum(ceiling[None, :] - tl.abs(left - right), 0.0)
    bound = tl.maximum(left, right) + rise * rise * (0.25 / tl.maximum(ceiling, 1e-30))[None, :]
    bound = tl.where(inside & varied[None, :], bound, -1.0)
    # The float32 errors of density and bound: of the terms, of the centres, and of the sum.
    doubt = 4e-6 + narrowness * 4.8e-7 + tl.minimum(m, 4096).to(tl.float32) * 1.2e-7

    reach = tl.cdiv(q, FINE) * FINE * 2
    first -= reach // (2 * q)
    peak = tl.zeros_like(best)
    point = zero
    offset = tl.arange(0, FINE)
    more = 1
    while more > 0:
        done = 0
        while done < reach:
            begin = first * q + done
            low_half = begin[None, :] + offset[:, None]
            high_half = low_half + FINE
            one, two = _densities(centre, low, scale, begin, offset, FINE, step, most_edges, SIDE)
            one = tl.where((low_half >= 0) & (low_half < grid), one, -1.0)
            two = tl.where((high_half >= 0) & (high_half < grid), two, -1.0)
            top = tl.maximum(peak, tl.max(tl.maximum(one, two), 0))
            near = top * (1.0 - TIE)
            found = tl.where(two >= near[None, :], high_half, NO_POINT)
            found = tl.min(tl.where(one >= near[None, :], low_half, found), 0)
            point = tl.where(peak < near, found, tl.minimum(point, found))
            peak = top
            done += 2 * FINE
        ahead = cell[:, None] - first[None, :]
        bound = tl.where((ahead >= 0) & ((ahead + 1) * q <= reach), -1.0, bound)
        enough = peak * (1.0 - doubt)
        highest, first = tl.max(bound, 0, return_indices=True)
        # A task that is done looks off the grid, so that what it is next to cannot change it.
        first = tl.where(highest >= enough, first, -4 * CELLS)
        # Over all axes: the compiler then sees that all lanes take the same branch.
        more = tl.max((bound >= enough[None, :]).to(tl.int32))

    # Beside the peak two values may be closer than float32 tells; the slope between them is not.
    rising, falling = _slopes(centre, low, scale, point, step, most_edges, SIDE)
    slack = LEVEL * peak
    move = tl.where(rising > slack, 1, tl.where(falling <= slack, -1, 0))
    return point + tl.where(step < SMOOTH, move, 0)


@triton.jit
def mode_of(weight, edge, m, most_edges, grid, CELLS: tl.constexpr = 32, FINE: tl.constexpr = 32):
    """Mean and mode of the weights of B tasks side by side, both [B] float64.

    weight       [N, B] float32, in any order
    edge         [N, B], whether a row holds a weight of the task; all are finite
    m            [B] int32, how many do; the mean of none is 0
    most_edges   one more than the last row that holds a weight of any task
    grid         points of the grid, at least 2
    CELLS        of the grid; FINE: half the points of a window
    """
    wide = tl.where(edge, weight, 0.0).to(tl.float64)
    mean = tl.sum(wide, 0) / tl.maximum(m, 1).to(tl.float64)
    low = tl.min(tl.where(edge, weight, float("inf")), 0)
    high = tl.max(tl.where(edge, weight, -float("inf")), 0)
    varied = (m > 1) & (high > low)
    low = tl.where(varied, low, 0.0).to(tl.float64)
    spread = tl.where(varied, high.to(tl.float64) - low, 1.0)

    # In units of the spread, so that no square leaves float32.
    per_spread = 1.0 / spread
    deviation = tl.where(edge, ((wide - mean[None, :]) * per_spread[None, :]).to(tl.float32), 0.0)
    variance = tl.sum(deviation * deviation, 0) / tl.maximum(m - 1, 1).to(tl.float32)
    narrowness = _scott(tl.where(varied, variance, 1.0), tl.maximum(m, 1))
    unit = narrowness.to(tl.float64) * BASE_TWO
    per_grid = 1.0 / (grid - 1).to(tl.float64)
    step = unit * per_grid
    scale = unit * per_spread
    centre = tl.where(edge, (wide - low[None, :]) * scale[None, :], NOWHERE)
    point = _search(centre, low, scale, step, narrowness, varied, m, most_edges, grid, CELLS, FINE, 0)
    mode = low + spread * (point.to(tl.float64) * per_grid)
    return mean, tl.where(varied, mode, mean)


@triton.jit
def _density_kernel(
    gap_ptr,  # [W, N] float32, weights of the tree behind the first of each row
    count_ptr,  # [T] int64
    task_ptr,  # [W] int64, or -1
    status_ptr,  # [W] int8
    mean_ptr,  # [W] float64 or float32, written where the status is OK and n > 1
    mode_ptr,  # [W] float64 or float32, likewise
    gap_stride,  # int64
    grid,
    CELLS: tl.constexpr,
    FINE: tl.constexpr,
    SIDE: tl.constexpr,
):
    slot = tl.program_id(0).to(tl.int64)
    task = tl.load(task_ptr + slot)
    if task < 0:
        return
    m = tl.load(count_ptr + task).to(tl.int32) - 1
    if (m < 1) | (tl.load(status_ptr + slot) != OK):
        return
    weight_ptr = gap_ptr + slot * gap_stride + 1
    lane = tl.arange(0, SIDE)

    total = tl.zeros([SIDE], tl.float64)
    least = tl.full([SIDE], float("inf"), tl.float32)
    most = tl.full([SIDE], -float("inf"), tl.float32)
    e = 0
    while e < m:
        weight = tl.load(weight_ptr + e + lane, mask=e + lane < m, other=0.0)
        total += weight.to(tl.float64)
        least = tl.minimum(least, tl.where(e + lane < m, weight, float("inf")))
        most = tl.maximum(most, weight)
        e += SIDE
    mean = tl.sum(total, 0) / m.to(tl.float64)
    low = tl.min(least, 0)
    high = tl.max(most, 0)
    tl.store(mean_ptr + slot, mean)
    # An integer maximum over all lanes shows the compiler that they take the same branch.
    if tl.max((most > low).to(tl.int32), 0) == 0:
        tl.store(mode_ptr + slot, mean)
        return
    spread = high.to(tl.float64) - low
    per_spread = 1.0 / spread
    squares = tl.zeros([SIDE], tl.float64)
    e = 0
    while e < m:
        weight = tl.load(weight_ptr + e + lane, mask=e + lane < m, other=0.0).to(tl.float64)
        deviation = tl.where(e + lane < m, (weight - mean) * per_spread, 0.0)
        squares += deviation * deviation
        e += SIDE
    narrowness = _scott(tl.sum(squares, 0).to(tl.float32) / (m - 1).to(tl.float32), m)
    unit = narrowness.to(tl.float64) * BASE_TWO
    per_grid = 1.0 / (grid - 1).to(tl.float64)
    # One task is B = 1.
    one = tl.full([1], 1.0, tl.float64)
    point = _search(
        weight_ptr,
        one * low,
        one * (unit * per_spread),
        one * (unit * per_grid),
        one.to(tl.float32) * narrowness,
        one > 0,
        one.to(tl.int32) * m,
        m,
        grid,
        CELLS,
        FINE,
        SIDE,
    )
    mode = low + spread * (point.to(tl.float64) * per_grid)
    tl.store(mode_ptr + slot + tl.arange(0, 1), mode)


def launch_density(
    gap: torch.Tensor,
    count: torch.Tensor,
    task: torch.Tensor,
    status: torch.Tensor,
    mean: torch.Tensor,
    mode: torch.Tensor,
    grid: int,
) -> None:
    """Mean and mode of the weights of a tree per slot.

    gap          [W, N] float32 from launch_merge, any N of at least the samples; its rows may be apart
    count        [T] int64, samples of each task
    task         [W] int64, the task of each slot or -1
    status       [W] int8; nothing is written where it is not OK or where a task has fewer than two samples
    mean, mode   [W] float64 (or float32), written
    """
    _density_kernel[(gap.shape[0],)](
        gap,
        count,
        task,
        status,
        mean,
        mode,
        gap.stride(0),
        grid,
        **_CONSTANTS,
        num_warps=_WARPS,
        num_stages=1,
        enable_fp_fusion=True,
    )


def _trips(n: int, d: int) -> tuple[float, ...]:
    """Two sums over the weights, four steps a trip; the cells, in chunks; windows; the slopes, four steps a trip."""
    steps = (n - 1) / _CONSTANTS["SIDE"]
    chunks = math.ceil(steps / CHUNK.value)
    return (steps / 4, steps / 4, chunks, steps / chunks, _WINDOWS, 1, chunks, steps / chunks, steps / 4)


def shipped() -> list[Shipped]:
    """What launch_density launches: one configuration for all sizes."""
    types = {
        "gap_ptr": "*fp32",
        "status_ptr": "*i8",
        **dict.fromkeys(("task_ptr", "count_ptr"), "*i64"),
        **dict.fromkeys(("mean_ptr", "mode_ptr"), "*fp64"),
        "gap_stride": "i64",
        "grid": "i32",
    }
    names: list[str] = _density_kernel.arg_names
    return [
        Shipped(
            name="density",
            kernel=_density_kernel,
            signature={name: types.get(name, "constexpr") for name in names},
            constants=dict(_CONSTANTS),
            warps=_WARPS,
            stages=1,
            aligned=(*(name for name in names if name.endswith("_ptr")), "gap_stride"),
            registers=80,
            shared=256,
            mma=None,
            wide=False,
            programs=lambda n, d: 1,
            # Weights once, as the later reads find them in the cache; status, slot, count, mean, mode.
            traffic=lambda n, d: 4 * n + 1 + 4 * 8,
            trips=_trips,
            shapes=((75, 768), (1000, 768)),
        )
    ]
