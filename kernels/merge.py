"""From the edges of a tree in ascending order to its single-linkage dendrogram and multiscale entropy (SPEC 5 and 10).

The dendrogram is a leaf order in which every single-linkage cluster, at whatever radius, is a run of consecutive
positions, and begins with its smallest sample; with it, the weight that joins each position to the one before. The
components at a radius are the runs between the weights above it.

One warp goes through the edges with a union-find by size. Every sample has a record, one int64: a root's holds the
size of its cluster, its smallest sample, and how many samples of the cluster come before the root; another sample's
holds its parent and how far behind it in leaf order it is. So an edge needs no reads but those of the two searches, and
when all edges are done the position of a sample is the sum of the distances on its way to the root: at most log2 n
steps, all samples at once. Records are not shortened on the way, so that a search only reads.

Of two joined clusters the one with the smaller sample goes first. The other one's smallest sample starts a run from
then on, and is never the smallest again: each merge is kept under that sample, which no other merge has.
"""

from __future__ import annotations

import math
from typing import Final

import torch
import triton
import triton.language as tl
from fase_gpu.kernels.shipped import Shipped
from fase_gpu.kernels.status import OK

# Fields of a record and of a merge, 20 bits each: size, smallest sample and samples before the root, above FIELD_BITS
# each, with the sign as the mark of a root; parent and distance; edge and the sizes of the two clusters.
FIELD = tl.constexpr((1 << 20) - 1)
FIELD_BITS = tl.constexpr(20)
ROOT = tl.constexpr(-(1 << 63))
# A distance may be negative.
MIDDLE = tl.constexpr(1 << 19)
SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)

MOST_SAMPLES: Final = 1 << 19
"""Samples of a task that the fields hold."""
# Measured on the trees of random and of clustered vectors, for 75 to 3000 samples: steps of the longer of an edge's two
# searches, and of the longest way to the root among 32 samples.
_SEARCH: Final = 0.9
_DEPTH: Final = 3.8
_WARPS: Final = 1
_CONSTANTS: Final = {"BLOCK": 32}


@triton.jit
def _edge(tree_ptr, low_ptr, high_ptr, e, m, PACKED: tl.constexpr):
    """Smaller and larger end of edge e, int32; of the first edge behind the last one, 0."""
    if PACKED:
        ends = tl.load(tree_ptr + e, mask=e < m, other=0)
        return ((ends >> 16) & 0xFFFF).to(tl.int32), (ends & 0xFFFF).to(tl.int32)
    else:
        return tl.load(low_ptr + e, mask=e < m, other=0), tl.load(high_ptr + e, mask=e < m, other=0)


@triton.jit
def _first(record):
    return (record & FIELD).to(tl.int32)


@triton.jit
def _second(record):
    return ((record >> FIELD_BITS) & FIELD).to(tl.int32)


@triton.jit
def _third(record):
    return ((record >> 2 * FIELD_BITS) & FIELD).to(tl.int32)


@triton.jit
def _packed(first, second, third):
    return first.to(tl.int64) | (second.to(tl.int64) << FIELD_BITS) | (third.to(tl.int64) << 2 * FIELD_BITS)


@triton.jit
def _merge_kernel(
    tree_ptr,  # [W, M] int64 keys, ascending: weight bits, smaller end, larger end; not PACKED: [W, M] float32 weights
    low_ptr,  # not PACKED: [W, M] int32, smaller ends
    high_ptr,  # not PACKED: [W, M] int32, larger ends
    count_ptr,  # [T] int64
    task_ptr,  # [W] int64, or -1
    status_ptr,  # [W] int8
    work_ptr,  # [W, 2, N] int64
    order_ptr,  # [W, N] int32
    position_ptr,  # [W, N] int32
    gap_ptr,  # [W, N] float32
    multiscale_ptr,  # [W] float64 or float32
    tree_stride,  # int64, M
    row_stride,  # int64, N
    log_low,
    per_span,
    BLOCK: tl.constexpr,
    PACKED: tl.constexpr,
):
    slot = tl.program_id(0).to(tl.int64)
    task = tl.load(task_ptr + slot)
    if task < 0:
        return
    n = tl.load(count_ptr + task).to(tl.int32)
    if (n < 1) | (tl.load(status_ptr + slot) != OK):
        return
    m = n - 1
    tree_ptr += slot * tree_stride
    if not PACKED:
        low_ptr += slot * tree_stride
        high_ptr += slot * tree_stride
    record_ptr = work_ptr + slot * 2 * row_stride
    merge_ptr = record_ptr + row_stride
    lane = tl.arange(0, BLOCK)

    start = 0
    while start < n:
        sample = start + lane
        alone = (sample.to(tl.int64) << FIELD_BITS) | 1 | ROOT
        tl.store(record_ptr + sample, alone, mask=sample < n)
        start += BLOCK
    tl.debug_barrier()

    low, high = _edge(tree_ptr, low_ptr, high_ptr, 0, m, PACKED)
    e = 0
    while e < m:
        a = low
        b = high
        low, high = _edge(tree_ptr, low_ptr, high_ptr, e + 1, m, PACKED)
        of_a = tl.load(record_ptr + a)
        of_b = tl.load(record_ptr + b)
        while (of_a & of_b) >= 0:
            a = tl.where(of_a < 0, a, _first(of_a))
            b = tl.where(of_b < 0, b, _first(of_b))
            of_a = tl.load(record_ptr + a)
            of_b = tl.load(record_ptr + b)
        # One lane stores what all lanes read, before it and at the next edge.
        tl.debug_barrier()
        # Of the two clusters, a is the one that goes first.
        swap = _second(of_b) < _second(of_a)
        root_a = tl.where(swap, b, a)
        root_b = tl.where(swap, a, b)
        first = tl.where(swap, of_b, of_a)
        second = tl.where(swap, of_a, of_b)
        size_a = _first(first)
        size_b = _first(second)
        before_a = _third(first)
        before_b = _third(second)
        # How far root b is behind root a, once b's run follows a's.
        distance = size_a - before_a + before_b
        stays = size_a >= size_b
        parent = tl.where(stays, root_a, root_b)
        child = tl.where(stays, root_b, root_a)
        before = tl.where(stays, before_a, size_a + before_b)
        signed = tl.where(stays, distance, -distance) + MIDDLE
        tl.store(record_ptr + child, parent.to(tl.int64) | (signed.to(tl.int64) << FIELD_BITS))
        tl.store(record_ptr + parent, _packed(size_a + size_b, _second(first), before) | ROOT)
        tl.store(merge_ptr + _second(second), _packed(e, size_a, size_b))
        tl.debug_barrier()
        e += 1

    rise = tl.zeros([BLOCK], tl.float64)
    start = 0
    while start < n:
        sample = start + lane
        inside = sample < n
        above = sample
        position = tl.zeros_like(sample)
        record = tl.load(record_ptr + above, mask=inside, other=ROOT)
        while tl.max((record >= 0).to(tl.int32)) > 0:
            on_the_way = record >= 0
            position += tl.where(on_the_way, _second(record) - MIDDLE, 0)
            above = tl.where(on_the_way, _first(record), above)
            record = tl.load(record_ptr + above, mask=inside, other=ROOT)
        position += _third(record)

        # Sample 0 starts the first run of all and was never joined to one before it.
        joins = inside & (sample > 0)
        merge = tl.load(merge_ptr + sample, mask=joins, other=0)
        edge = _first(merge)
        if PACKED:
            key = tl.load(tree_ptr + edge, mask=joins, other=0)
            weight = (key >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        else:
            weight = tl.load(tree_ptr + edge, mask=joins, other=0.0)
        tl.store(position_ptr + slot * row_stride + sample, position, mask=inside)
        tl.store(order_ptr + slot * row_stride + position, sample, mask=inside)
        tl.store(gap_ptr + slot * row_stride + position, tl.where(joins, weight, float("inf")), mask=inside)

        # In float64: what a small cluster adds is the difference of two large numbers.
        a = tl.where(joins, _second(merge), 1).to(tl.float64)
        b = tl.where(joins, _third(merge), 1).to(tl.float64)
        gain = (a + b) * tl.log2(a + b) - a * tl.log2(a) - b * tl.log2(b)
        height = (tl.log2(tl.maximum(weight, SMALLEST_NORMAL)) - log_low) * per_span
        height = tl.minimum(tl.maximum(height, 0.0), 1.0)
        rise += tl.where(joins, gain * height.to(tl.float64), 0.0)
        start += BLOCK
    whole = n.to(tl.float64)
    whole = tl.maximum(whole * tl.log2(whole), 1.0)
    tl.store(multiscale_ptr + slot, tl.sum(rise, 0) / whole)


def launch_merge(
    tree: torch.Tensor,
    ends: tuple[torch.Tensor, torch.Tensor] | None,
    count: torch.Tensor,
    task: torch.Tensor,
    status: torch.Tensor,
    work: torch.Tensor,
    order: torch.Tensor,
    position: torch.Tensor,
    gap: torch.Tensor,
    multiscale: torch.Tensor,
    multiscale_range: tuple[float, float],
) -> None:
    """Leaf order, gaps and multiscale entropy of a tree per slot; nothing is written where the status is not OK.

    tree         [W, M] int64, the n - 1 edges of each tree first, ascending: weight bits << 32 | smaller end << 16 |
                 larger end; or, for more than 65,536 samples, [W, M] float32 weights, ascending
    ends         None; or smaller and larger ends, [W, M] int32 each
    count        [T] int64, samples of each task, at most MOST_SAMPLES
    task         [W] int64, the task of each slot or -1
    status       [W] int8
    work         [W, 2, N] int64, overwritten
    order        [W, N] int32, the sample at each position
    position     [W, N] int32, the position of each sample
    gap          [W, N] float32, weight that joins a position to the one before; inf at position 0
    multiscale   [W] float64 (or float32)
    """
    low, high = multiscale_range
    log_low = math.log2(low)
    smaller, larger = ends or (tree, tree)
    _merge_kernel[(tree.shape[0],)](
        tree,
        smaller,
        larger,
        count,
        task,
        status,
        work,
        order,
        position,
        gap,
        multiscale,
        tree.shape[1],
        order.shape[1],
        log_low,
        1 / (math.log2(high) - log_low),
        PACKED=ends is None,
        **_CONSTANTS,
        num_warps=_WARPS,
        num_stages=1,
        enable_fp_fusion=True,
    )


def shipped() -> list[Shipped]:
    """What launch_merge launches."""
    # Of more than 65,536 samples there is one task at a time: the latency of its steps counts, which is not predicted.
    return [_shipped(True, ((75, 768), (1000, 768))), _shipped(False, ())]


def _shipped(packed: bool, shapes: tuple[tuple[int, int], ...]) -> Shipped:
    constants = {"PACKED": packed, **_CONSTANTS}
    types = {
        "tree_ptr": "*i64" if packed else "*fp32",
        **dict.fromkeys(("low_ptr", "high_ptr"), "*i64" if packed else "*i32"),
        "status_ptr": "*i8",
        **dict.fromkeys(("task_ptr", "count_ptr", "work_ptr"), "*i64"),
        **dict.fromkeys(("order_ptr", "position_ptr"), "*i32"),
        "gap_ptr": "*fp32",
        "multiscale_ptr": "*fp64",
        **dict.fromkeys(("tree_stride", "row_stride"), "i64"),
        **dict.fromkeys(("log_low", "per_span"), "fp32"),
    }
    names: list[str] = _merge_kernel.arg_names
    return Shipped(
        name="merge" if packed else "merge n>65536",
        kernel=_merge_kernel,
        signature={name: "constexpr" if name in constants else types[name] for name in names},
        constants=constants,
        warps=_WARPS,
        stages=1,
        aligned=(*(name for name in names if name.endswith("_ptr")), "tree_stride", "row_stride"),
        registers=40,
        shared=0,
        mma=None,
        wide=False,
        programs=lambda n, d: 1,
        # Edges twice; records and merges written and read; order, positions and gaps written.
        traffic=lambda n, d: n * (2 * 8 + 4 * 8 + 3 * 4) + 3 * 8,
        # Records made, four blocks a trip; edges, with the searches beyond the ends' own records; the final blocks,
        # with the longest way to a root.
        trips=lambda n, d: (n / 128, n - 1, _SEARCH, n / 32, _DEPTH),
        shapes=shapes,
    )
