"""Minimum spanning trees of tasks of up to 1024 samples from their distance matrices (SPEC 3): a program for each task.

An edge is one int64, its weight's bits above its smaller and its larger end, so that one comparison orders edges by
(weight, smaller end, larger end) and the tree is unique: the order of threads does not show in it.

In a round of Boruvka's algorithm every component takes its least edge to another one. A sample keeps its own least edge
between rounds; its row is read again only when that edge has come to lie inside its component. So the matrix is read
about three times instead of once a round.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from fase_gpu.kernels.shipped import Shipped
from fase_gpu.kernels.status import OK

NO_EDGE = tl.constexpr(0x7FFFFFFFFFFFFFFF)
NO_WEIGHT = tl.constexpr(0x7FFFFFFF)
# Rows of the workspace, one int64 for each sample.
NEAREST = tl.constexpr(0)
BEST = tl.constexpr(1)
STALE = tl.constexpr(2)
NUMBERS = tl.constexpr(3)


@triton.jit
def _matrix(dist_ptr, slot, size):
    """The first element of a slot's matrix."""
    return dist_ptr + slot * size * size


@triton.jit
def _ends(edge, known):
    """Smaller and larger end of edges, int32; 0 where there is none."""
    return tl.where(known, (edge >> 16) & 0xFFFF, 0).to(tl.int32), tl.where(known, edge & 0xFFFF, 0).to(tl.int32)


@triton.jit
def _row_edges(distance, row, row_component, column, column_component, n):
    """The least edge of rows [R] to another component, from their distances [R, N]."""
    crossing = (row_component[:, None] != column_component[None, :]) & (column < n)[None, :]
    # Positive floats order as their bits, and among equal weights the first column is the least edge.
    weight = tl.where(crossing, distance.to(tl.int32, bitcast=True), NO_WEIGHT)
    least = tl.min(weight, 1)
    end = tl.min(tl.where(weight == least[:, None], column[None, :], 0xFFFF), 1)
    ends = (tl.minimum(row, end) << 16) | tl.maximum(row, end)
    return tl.where(least == NO_WEIGHT, NO_EDGE, (least.to(tl.int64) << 32) | ends.to(tl.int64))


@triton.jit
def _boruvka_kernel(
    dist_ptr,  # [W, N, N] float32, of a task with n samples the first n rows and columns are read
    count_ptr,  # [T] int64
    task_ptr,  # [W] int64, or -1
    status_ptr,  # [W] int8
    work_ptr,  # [W, NUMBERS, N] int64
    tree_ptr,  # [W, N] int64, written
    total_ptr,  # [W] float64, written
    N: tl.constexpr,
    ROWS: tl.constexpr,
    MOST_ROUNDS: tl.constexpr,
):
    slot = tl.program_id(0).to(tl.int64)
    task = tl.load(task_ptr + slot)
    if task < 0:
        return
    n = tl.load(count_ptr + task).to(tl.int32)
    sample = tl.arange(0, N)
    if (n < 2) | (tl.load(status_ptr + slot) != OK):
        tl.store(tree_ptr + slot * N + sample, tl.full([N], NO_EDGE, tl.int64))
        tl.store(total_ptr + slot, 0.0)
        return

    matrix_ptr = _matrix(dist_ptr, slot, N)
    nearest_ptr = work_ptr + slot * (NUMBERS * N)
    best_ptr = nearest_ptr + BEST * N
    stale_ptr = (nearest_ptr + STALE * N).to(tl.pointer_type(tl.int32))
    lane = tl.arange(0, ROWS)
    # Up to three columns of what is no sample are read, so that loads are whole vectors.
    readable = (sample < (n + 3) // 4 * 4)[None, :]

    sums = tl.zeros([N], tl.float64)
    for start in range(0, n, ROWS):
        row = start + lane
        distance = tl.load(
            matrix_ptr + (row[:, None] * N + sample[None, :]), mask=(row < n)[:, None] & readable, other=0.0
        )
        sums += tl.sum(distance.to(tl.float64), 0)
        edge = _row_edges(distance, row, row, sample, sample, n)
        tl.store(nearest_ptr + row, edge, mask=row < n)
    tl.store(total_ptr + slot, tl.sum(tl.where(sample < n, sums, 0.0), 0))

    component = sample
    tree = tl.full([N], NO_EDGE, tl.int64)
    components = n
    rounds = 0
    while (components > 1) & (rounds < MOST_ROUNDS):
        rounds += 1
        # Barriers: what one thread wrote, another reads or lowers. And ".cg": not from a cache that atomics go past.
        tl.debug_barrier()
        nearest = tl.load(nearest_ptr + sample, mask=sample < n, other=NO_EDGE, cache_modifier=".cg")
        tl.store(best_ptr + sample, tl.full([N], NO_EDGE, tl.int64))
        tl.debug_barrier()
        tl.atomic_min(best_ptr + component, nearest, mask=sample < n, sem="relaxed")
        tl.debug_barrier()
        best = tl.load(best_ptr + sample, mask=sample < n, other=NO_EDGE, cache_modifier=".cg")

        # Components hook onto the one at the other end of their best edge; of two that take the same edge, the smaller
        # number stays. What hooks never leads again, so that its edge stays in its place in the tree.
        takes = (sample < n) & (component == sample) & (best != NO_EDGE)
        low, high = _ends(best, takes)
        low_component = tl.gather(component, low, 0)
        other = tl.where(low_component == sample, tl.gather(component, high, 0), low_component)
        parent = tl.where(takes, other, component)
        stays = takes & (tl.gather(parent, parent, 0) == sample) & (sample < parent)
        parent = tl.where(stays, sample, parent)
        tree = tl.where(takes & (stays == 0), best, tree)
        component = tl.gather(parent, parent, 0)
        moved = tl.max((component != parent).to(tl.int32), 0)
        jumps = 1
        while (moved > 0) & (jumps < MOST_ROUNDS):
            jumps += 1
            parent = component
            component = tl.gather(parent, parent, 0)
            moved = tl.max((component != parent).to(tl.int32), 0)
        components = tl.sum(((sample < n) & (component == sample)).to(tl.int32), 0)

        low, high = _ends(nearest, (sample < n) & (nearest != NO_EDGE))
        end = tl.where(low == sample, high, low)
        stale = (sample < n) & (tl.gather(component, end, 0) == component)
        place = tl.cumsum(stale.to(tl.int32), 0) - 1
        tl.store(stale_ptr + place, (component << 16) | sample, mask=stale)
        tl.debug_barrier()
        stale_rows = tl.sum(stale.to(tl.int32), 0)
        if components > 1:
            for start in range(0, stale_rows, ROWS):
                listed = start + lane < stale_rows
                row = tl.load(stale_ptr + start + lane, mask=listed, other=0, cache_modifier=".cg")
                row_component = row >> 16
                row = row & 0xFFFF
                at = row[:, None] * N + sample[None, :]
                distance = tl.load(matrix_ptr + at, mask=listed[:, None] & readable, other=0.0)
                edge = _row_edges(distance, row, row_component, sample, component, n)
                tl.store(nearest_ptr + row, edge, mask=listed)

    tl.store(tree_ptr + slot * N + sample, tl.sort(tree))


# Measured on random and on clustered vectors, for 50 to 1000 samples: rounds, pointer jumps in each after the first
# one, and how often a row is read again.
_ROUNDS: Final = 4
_JUMPS: Final = 2
_READ_AGAIN: Final = 2.0


class _Plan(NamedTuple):
    """How matrices of one size are read."""

    rows: int
    """At a time."""
    warps: int
    registers: int
    shared: int


_PLANS: Final = {
    16: _Plan(16, 1, 72, 256),
    32: _Plan(32, 1, 104, 512),
    64: _Plan(16, 1, 128, 512),
    128: _Plan(32, 4, 104, 2048),
    256: _Plan(16, 4, 128, 2048),
    512: _Plan(8, 4, 128, 4096),
    1024: _Plan(8, 8, 128, 8192),
}


def _constants(size: int) -> dict[str, Any]:
    # A round at least halves the components, and a jump the distance to the end of a chain of them.
    return {"N": size, "ROWS": _PLANS[size].rows, "MOST_ROUNDS": size.bit_length() - 1}


def launch_boruvka(
    dist: torch.Tensor,
    count: torch.Tensor,
    task: torch.Tensor,
    status: torch.Tensor,
    work: torch.Tensor,
    tree: torch.Tensor,
    total: torch.Tensor,
) -> None:
    """The minimum spanning tree of the task of each slot, and the sum of its distances.

    dist    [W, N, N] float32, N a power of two from 16 to 1024, contiguous: of a task with n samples the first n rows
            and columns, symmetric and not negative, the diagonal zero. Columns from n on may hold anything
    count   [T] int64, samples of each task
    task    [W] int64, the task of each slot or -1: nothing is written for it
    status  [W] int8; where it is not OK the matrix is not read
    work    [W, 3, N] int64, workspace
    tree    [W, N] int64, written: n - 1 edges, ascending, as weight bits << 32 | smaller end << 16 | larger end, then
            the largest int64; nothing but that where the status is not OK or n < 2
    total   [W] float64, written: the sum of all n * n distances, 0 where there is no tree
    """
    plan = _PLANS[dist.shape[-1]]
    _boruvka_kernel[(dist.shape[0],)](
        dist, count, task, status, work, tree, total, **_constants(dist.shape[-1]),
        num_warps=plan.warps, num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip


def shipped() -> list[Shipped]:
    """What launch_boruvka launches."""
    return [_shipped(size) for size in _PLANS]


def _shipped(size: int) -> Shipped:
    plan, constants = _PLANS[size], _constants(size)
    types = {
        "dist_ptr": "*fp32",
        **dict.fromkeys(("count_ptr", "task_ptr", "work_ptr", "tree_ptr"), "*i64"),
        "status_ptr": "*i8",
        "total_ptr": "*fp64",
    }
    names: list[str] = _boruvka_kernel.arg_names
    return Shipped(
        name=f"boruvka n<={size}",
        kernel=_boruvka_kernel,
        signature={name: "constexpr" if name in constants else types[name] for name in names},
        constants=constants,
        warps=plan.warps,
        stages=1,
        aligned=tuple(types),
        registers=plan.registers,
        shared=plan.shared,
        mma=None,
        wide=True,
        programs=lambda n, d: 1,
        # What is read again is still in the L2 cache where the matrices at work fit it.
        traffic=lambda n, d: 4 * n * n * (1 + (_READ_AGAIN if size > 128 else 0)) + 8 * n * (4 + 3 * _ROUNDS),
        trips=lambda n, d: (math.ceil(n / plan.rows), _ROUNDS, _JUMPS, _READ_AGAIN * n / plan.rows / _ROUNDS),
        shapes=((min(size, 1000), 768),),
        fp_fusion=False,
    )
