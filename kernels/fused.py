"""Small tasks in one launch: embeddings to entropy, B tasks a program, nothing else in device memory (SPEC 2-6, 10).

A program reads the rows of its tasks once, as the operands of a batched matrix product, and from then on works in
registers, with samples i and j and the program's tasks b as axes [N, N, B] or [N, B]. The tree is Prim's: in the order
in which it reaches the samples, every single-linkage cluster is a run of consecutive places, so that the classes at any
radius and the merges of the multiscale entropy are told by comparisons of places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from fase_gpu.kernels.components import RADIUS_VARIANTS, radius_of
from fase_gpu.kernels.density import mode_of
from fase_gpu.kernels.gram import (
    HAS_NO_NUMBER,
    IS_ZERO,
    compensated,
    direct_distance,
    high_of,
    is_odd,
    lift_of,
    magnitude,
)
from fase_gpu.kernels.shipped import Shipped
from fase_gpu.kernels.status import EMPTY, NOT_FINITE, OK, SINGLE, TOO_MANY, ZERO_VECTOR

SIZES: Final = (16, 32, 64)
DTYPES: Final = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_STAGES: Final = 3
# Windows of the density that a program searches, on average (measured on random tasks).
_WINDOWS: Final = 1.1

INFINITY = tl.constexpr(float("inf"))
NAN = tl.constexpr(float("nan"))
# What stands in for a statistic that is not above 0 (SPEC 5).
FLOOR = tl.constexpr(5e-4)
# Of the logarithms in log_ptr.
LOG_UNIT: Final = 1 << 40


@triton.jit
def _gram(
    x_ptr,
    offset,  # [B, N] int64, of the rows' first elements
    inside,  # [B, N]
    lift,  # [B, N] float32, powers of two; read where LIFTED
    d,
    N: tl.constexpr,
    B: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
    LIFTED: tl.constexpr,
):
    """Products of the rows of each task, [B, N, N] float32.

    The tensor core truncates as it accumulates, so it sums one block of columns, and a compensated sum adds the blocks
    (gram.py). A float32 row is split into what TF32 holds and the rest: high * high + high * low + low * high.
    """
    column = tl.arange(0, BLOCK)
    gram = tl.zeros([B, N, N], tl.float32)
    lost = tl.zeros([B, N, N], tl.float32)
    cross = tl.zeros([B, N, N], tl.float32)
    # Lifted products are rare: they take no memory for loads in advance.
    for first in tl.range(0, d, BLOCK, num_stages=1 if LIFTED else None):
        k = first + column
        mask = inside[:, :, None]
        if not EVEN:
            mask = mask & (k < d)[None, None, :]
        x = tl.load(x_ptr + (offset[:, :, None] + k[None, None, :]), mask=mask, other=0.0)
        if LIFTED:
            x = (x.to(tl.float32) * lift[:, :, None]).to(x.dtype)
        if SPLIT:
            high = high_of(x)
            low = x - high
            part = tl.dot(high, tl.permute(high, (0, 2, 1)), input_precision="tf32")
            # So much smaller that its own truncation does not show.
            cross = tl.dot(high, tl.permute(low, (0, 2, 1)), cross, input_precision="tf32")
        else:
            if UPCAST:
                x = x.to(tl.float32)
            part = tl.dot(x, tl.permute(x, (0, 2, 1)), input_precision="ieee")
        gram, lost = compensated(gram, lost, part)
    if SPLIT:
        lost -= cross + tl.permute(cross, (0, 2, 1))
    return gram - lost


@triton.jit
def _largest(x_ptr, offset, inside, d, N: tl.constexpr, B: tl.constexpr, BLOCK: tl.constexpr):
    """The largest magnitude of each row's coordinates, [B, N] int32."""
    column = tl.arange(0, BLOCK)
    largest = tl.zeros([B, N], tl.int32)
    for first in tl.range(0, d, BLOCK, num_stages=1):
        k = first + column
        mask = inside[:, :, None] & (k < d)[None, None, :]
        x = tl.load(x_ptr + (offset[:, :, None] + k[None, None, :]), mask=mask, other=0.0)
        largest = tl.maximum(largest, tl.max(magnitude(x), axis=2))
    return largest


@triton.jit
def _relaid(gram, any_ptr, samples, N: tl.constexpr, B: tl.constexpr):
    """[B, N, N] as [N, N, B], spread over the threads so that the first axis lies within a thread.

    Left alone, the compiler keeps the matrix product's layout, in which a thread holds 4 columns of 2 rows, and every
    [N, B] vector of the tree search eight times over: three times as many instructions. A load decides a layout, so
    this adds one that is never made.
    """
    i = tl.arange(0, N)[:, None, None]
    j = tl.arange(0, N)[None, :, None]
    b = tl.arange(0, B)[None, None, :]
    never = (samples < 0)[None, None, :] & (i < N) & (j < N)
    # Odd steps, which no vector load can take: one element a thread along the last axes.
    nothing = tl.load(any_ptr + ((i * N + j) * B + b) * 3, mask=never, other=0.0)
    return tl.permute(gram, (1, 2, 0)) + nothing


@triton.jit(do_not_specialize=["slots", "most", "alphas", "width", "grid"])
def _fused_kernel(
    x_ptr,  # [S, d] float32, float16 or bfloat16
    row_stride,
    start_ptr,  # [T] int64, first row of a task
    count_ptr,  # [T] int64, its samples
    task_ptr,  # [W] int64, the task of a slot or -1; read where MAPPED
    index_ptr,  # [R] int64, the row of x for a packed row; read where INDEXED
    alpha_ptr,  # [A] float64
    log_ptr,  # [N + 1] int64, log2 in units of 2^-40
    entropy_ptr,  # [T, A] float32, and so on
    bits_ptr,
    eps_ptr,
    margin_ptr,
    n_clusters_ptr,  # [T, A] int32
    labels_ptr,  # [T, A, L] int32
    multiscale_ptr,  # [T] float32
    mode_ptr,
    mst_mean_ptr,
    pdm_mean_ptr,
    status_ptr,  # [T] int8
    slots,
    most,  # samples that a task may have, at most N
    d,
    alphas,
    width,  # L
    grid,
    min_distance,
    log_low,  # log2 of the range's lower end
    per_log,  # 1 / log2(high / low)
    N: tl.constexpr,
    B: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
    MAPPED: tl.constexpr,
    INDEXED: tl.constexpr,
    VARIANT: tl.constexpr,  # index in RADIUS_VARIANTS
    LABELS: tl.constexpr,
):
    lane = tl.arange(0, B)
    slot = tl.program_id(0).to(tl.int64) * B + lane
    task = tl.where(slot < slots, slot, -1)
    if MAPPED:
        task = tl.load(task_ptr + slot, mask=slot < slots, other=-1)
    live = task >= 0
    if tl.max(task, axis=0) < 0:
        return
    samples = tl.minimum(tl.load(count_ptr + task, mask=live, other=0), 1 << 30).to(tl.int32)
    start = tl.load(start_ptr + task, mask=live, other=0)
    sample = tl.arange(0, N)
    inside = sample[None, :] < samples[:, None]
    row = start[:, None] + sample[None, :]
    if INDEXED:
        row = tl.load(index_ptr + row, mask=inside, other=0)
    offset = row * row_stride

    i = sample[:, None, None]
    j = sample[None, :, None]
    diagonal = i == j
    present = sample[:, None] < samples[None, :]
    gram = _gram(x_ptr, offset, inside, inside, d, N, B, BLOCK, EVEN, SPLIT, UPCAST, False)
    gram = _relaid(gram, mode_ptr, samples, N, B)
    square = tl.sum(tl.where(diagonal, gram, 0.0), axis=0)
    status = tl.where(samples < 2, tl.where(samples == 1, SINGLE, EMPTY), OK)
    odd = tl.max(is_odd(square, present).to(tl.int32), axis=0) > 0
    if tl.max(odd.to(tl.int32), axis=0) > 0:
        # Rare: a row that is zero, not finite, or so long or short that its squares leave float32. The rows of its task
        # are lifted by powers of two, which changes no digit, and multiplied again.
        lift = lift_of(_largest(x_ptr, offset, inside, d, N, B, 16))
        zero = tl.max((inside & (lift == IS_ZERO)).to(tl.int32), axis=1) > 0
        broken = tl.max((inside & (lift == HAS_NO_NUMBER)).to(tl.int32), axis=1) > 0
        status = tl.where(broken, NOT_FINITE, tl.where(zero, ZERO_VECTOR, status))
        lifted = _gram(x_ptr, offset, inside, lift, d, N, B, 16, False, SPLIT, UPCAST, True)
        gram = tl.where(odd[None, None, :], _relaid(lifted, mode_ptr, samples, N, B), gram)
        square = tl.sum(tl.where(diagonal, gram, 0.0), axis=0)
    status = tl.where(samples > most, TOO_MANY, status)
    n = tl.where(status == OK, samples, 0)

    square = tl.where(square > 0, square, 1.0)
    unit = tl.rsqrt(square)
    # What rounding took off `unit`, by a step of Newton's with an exact residual: identical rows are then 0 apart.
    part = square * unit
    unit_lost = 0.5 * (tl.fma(-part, unit, 1.0) - tl.fma(square, unit, -part) * unit) * unit
    zeros = tl.zeros([N, N, B], tl.float32)
    distance = direct_distance(
        gram,
        zeros,
        unit[:, None, :] + zeros,
        unit_lost[:, None, :] + zeros,
        unit[None, :, :] + zeros,
        unit_lost[None, :, :] + zeros,
    )
    distance = tl.maximum(distance, min_distance)
    pair = (i < n[None, None, :]) & (j < n[None, None, :]) & (diagonal == 0)
    total = tl.sum(tl.sum(tl.where(pair, distance, 0.0), axis=0).to(tl.float64), axis=0)
    distance = tl.where(pair, distance, INFINITY)

    # Prim's tree from sample 0: gap[p] is the weight of the edge that reached place p, place[s] the place of sample s.
    place_axis = sample[:, None]
    most = tl.max(n, axis=0)
    taken = (place_axis == 0) | (place_axis >= n[None, :])
    nearest = tl.min(tl.where(i == 0, distance, INFINITY), axis=0)
    gap = tl.zeros([N, B], tl.float32)
    place = tl.zeros([N, B], tl.int32)
    step = 1
    while step < most:
        key = tl.where(taken, INFINITY, nearest).to(tl.int32, bitcast=True).to(tl.int64) << 32 | place_axis.to(tl.int64)
        least = tl.min(key, axis=0)
        reached = (least & 0xFFFFFFFF).to(tl.int32)[None, :]
        weight = (least >> 32).to(tl.int32).to(tl.float32, bitcast=True)[None, :]
        growing = (step < n)[None, :]
        gap = tl.where((place_axis == step) & growing, weight, gap)
        latest = (place_axis == reached) & growing
        place = tl.where(latest, step, place)
        taken = taken | latest
        reach = tl.min(tl.where(i == reached[None, :, :], distance, INFINITY), axis=0)
        nearest = tl.minimum(nearest, reach)
        step += 1

    edge = (place_axis > 0) & (place_axis < n[None, :])
    mean, mode = mode_of(gap, edge, n - 1, most, grid)
    several = tl.maximum(n, 2)
    pdm_mean = total / (several * several).to(tl.float64)
    scored = status == OK
    whole = several.to(tl.int64) * tl.load(log_ptr + several)

    # The cluster that edge p joins on its left is the run of smaller edges before it, and likewise on its right.
    gap_i = gap[:, None, :] + zeros
    gap_j = gap[None, :, :] + zeros
    above = tl.where(i == 0, j > 0, (i < j) & (gap_i > gap_j))
    left = place_axis - tl.max(tl.where(above, i, 0), axis=0)
    above = (i > j) & (gap_i >= gap_j) & (i < n[None, None, :])
    right = tl.min(tl.where(above, i, n[None, None, :]), axis=0) - place_axis
    left = tl.where(edge, left, 0)
    right = tl.where(edge, right, 0)
    rise = (
        (left + right).to(tl.int64) * tl.load(log_ptr + left + right)
        - left.to(tl.int64) * tl.load(log_ptr + left)
        - right.to(tl.int64) * tl.load(log_ptr + right)
    )
    height = (tl.log2(tl.where(edge, gap, 1.0)) - log_low) * per_log
    height = tl.minimum(tl.maximum(height, 0.0), 1.0)
    multiscale = tl.sum(rise.to(tl.float64) * height.to(tl.float64), axis=0) / whole.to(tl.float64)

    tl.store(status_ptr + task, status.to(tl.int8), mask=live)
    tl.store(multiscale_ptr + task, tl.where(scored, multiscale, NAN).to(tl.float32), mask=live)
    tl.store(mode_ptr + task, tl.where(scored, mode, NAN).to(tl.float32), mask=live)
    tl.store(mst_mean_ptr + task, tl.where(scored, mean, NAN).to(tl.float32), mask=live)
    tl.store(pdm_mean_ptr + task, tl.where(scored, pdm_mean, NAN).to(tl.float32), mask=live)

    single = status == SINGLE
    place_j = place[None, :, :] + tl.zeros([N, N, B], tl.int32)
    for a in range(alphas):
        alpha = tl.load(alpha_ptr + a) + tl.zeros([B], tl.float64)
        eps = radius_of(alpha, mode, mean, pdm_mean, VARIANT, FLOOR)
        distance_to = tl.where(edge, tl.abs(gap - eps[None, :]), INFINITY)
        margin = tl.min(distance_to, axis=0) / eps

        # A cut between runs is a gap above eps; a sample's class is the run that its place lies in.
        cut = (edge & (gap > eps[None, :])).to(tl.int32)
        cut_i = (cut[:, None, :] > 0) | (i == 0)
        first = tl.max(tl.where(cut_i & (i <= place_j), i, 0), axis=0)
        last = tl.min(tl.where(cut_i & (i > place_j), i, n[None, None, :]), axis=0)
        size = tl.where(sample[:, None] < n[None, :], last - first, 0)
        spread = whole - tl.sum(tl.load(log_ptr + size), axis=0)
        clusters = tl.where(scored, 1 + tl.sum(cut, axis=0), single.to(tl.int32))
        bits = spread.to(tl.float64) / (several.to(tl.float64) * 1099511627776.0)
        entropy = spread.to(tl.float64) / whole.to(tl.float64)
        at = task * alphas + a
        tl.store(entropy_ptr + at, tl.where(scored, entropy, NAN).to(tl.float32), mask=live)
        tl.store(bits_ptr + at, tl.where(scored, bits, NAN).to(tl.float32), mask=live)
        tl.store(eps_ptr + at, tl.where(scored, eps, NAN), mask=live)
        tl.store(margin_ptr + at, tl.where(scored, margin, NAN), mask=live)
        tl.store(n_clusters_ptr + at, clusters, mask=live)
        if LABELS:
            # Classes are numbered by their first members.
            same = (first[:, None, :] == first[None, :, :]) & (i < n[None, None, :])
            founder = tl.min(tl.where(same, i, N), axis=0)
            founds = (founder == sample[:, None]).to(tl.int32)
            label = tl.sum(tl.where(i < founder[None, :, :], founds[:, None, :], 0), axis=0)
            label = tl.where(sample[:, None] < n[None, :], label, -1)
            label = tl.where(single[None, :] & (sample[:, None] == 0), 0, label)
            target = labels_ptr + at[None, :] * width + sample[:, None]
            tl.store(target, label, mask=live[None, :] & (sample[:, None] < width))


class _Tile(NamedTuple):
    """How a program works on tasks of up to N samples."""

    tasks: int
    block: int
    warps: int
    registers: int
    """The most a thread may take, which the assembler is told: left alone it spills to take fewer."""


_INTERPRETED: Final = not isinstance(_fused_kernel, triton.JITFunction)


def _tile(size: int, dtype: torch.dtype, d: int, interpreted: bool) -> _Tile:
    wide = dtype == torch.float32
    block = 32 if wide or d % 64 else 64
    if interpreted:  # as slow for one task as for many
        return _Tile(32, block, 1, 255)
    odd = d % block > 0
    if size == 16:
        return _Tile(2, block, 1, 248 if odd else 168)
    if size == 32:
        return _Tile(1, block, 2, 248 if odd and wide else 168)
    # Two programs fit beside each other in 128 registers: a single one waits most of the time.
    return _Tile(1, block, 8, 248 if odd and wide else 168 if odd or wide else 128)


def launch_fused(
    x: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    task: torch.Tensor | None,
    index: torch.Tensor | None,
    alphas: torch.Tensor,
    logs: torch.Tensor,
    scores: Mapping[str, torch.Tensor],
    size: int,
    most: int,
    variant: str,
    grid: int,
    min_distance: float,
    multiscale_range: tuple[float, float],
) -> None:
    """Score the tasks of all slots that have up to `size` samples.

    x                  [S, d] float32, float16 or bfloat16, with stride 1 along d
    start, count       [T] int64, first packed row and samples of each task
    task               [W] int64, task of each slot, -1 for none; None: slot t is task t
    index              [R] int64, the row of x that a packed row is; None: itself
    alphas             [A] float64; radii for variant "fixed_eps"
    logs               [size + 1] int64, log2 of 0, 1, ... in units of 1 / LOG_UNIT, 0 for 0
    scores             by name: entropy, bits, eps, margin [T, A] float32, n_clusters [T, A] int32, multiscale, mode,
                       mst_mean, pdm_mean [T] float32, status [T] int8, and, where labels are wanted, labels [T, A, L]
                       int32, of which columns below min(L, size) are written
    size               one of SIZES
    most               samples that a task may have, at most size; one that has more gets the status TOO_MANY
    variant            one of RADIUS_VARIANTS
    grid               points of the density grid, at least 2
    """
    slots = start.numel() if task is None else task.numel()
    if slots == 0:
        return
    d = x.shape[1]
    tile = _tile(size, x.dtype, d, _INTERPRETED)
    mapped, indexed = task is not None, index is not None
    labels = scores.get("labels")
    low, high = multiscale_range
    _fused_kernel[(-(-slots // tile.tasks),)](
        x,
        x.stride(0),
        start,
        count,
        start if task is None else task,
        start if index is None else index,
        alphas,
        logs,
        scores["entropy"],
        scores["bits"],
        scores["eps"],
        scores["margin"],
        scores["n_clusters"],
        scores["n_clusters"] if labels is None else labels,
        scores["multiscale"],
        scores["mode"],
        scores["mst_mean"],
        scores["pdm_mean"],
        scores["status"],
        slots,
        most,
        d,
        alphas.numel(),
        0 if labels is None else labels.shape[2],
        grid,
        min_distance,
        math.log2(low),
        1 / (math.log2(high) - math.log2(low)),
        **_constants(size, x.dtype, d, mapped, indexed, variant, labels is not None, _INTERPRETED),
        num_warps=tile.warps,
        num_stages=_STAGES,
        enable_fp_fusion=False,
        maxnreg=tile.registers,
    )


def _constants(
    size: int, dtype: torch.dtype, d: int, mapped: bool, indexed: bool, variant: str, labels: bool, interpreted: bool
) -> dict[str, int | bool]:
    tile = _tile(size, dtype, d, interpreted)
    return {
        "N": size,
        "B": tile.tasks,
        "BLOCK": tile.block,
        "EVEN": d % tile.block == 0,
        "SPLIT": dtype == torch.float32,
        "UPCAST": interpreted and dtype != torch.float32,
        "MAPPED": mapped,
        "INDEXED": indexed,
        "VARIANT": RADIUS_VARIANTS.index(variant),
        "LABELS": labels,
    }


def shipped() -> list[Shipped]:
    """What launch_fused launches for labels at the paper's radius: every size and type, with rows of whole blocks, of
    whole half blocks (16-bit rows) and odd ones. float16 is bfloat16's code, an index costs float32 the same: one each.
    """
    rows = ((384, 768, 1024, 2560, 4096), (100,), (96,))
    found = []
    for size in SIZES:
        found += [_shipped(size, torch.bfloat16, dimensions, False) for dimensions in rows]
        found += [_shipped(size, torch.float32, dimensions, False) for dimensions in rows[:2]]
        found += [_shipped(size, torch.float16, rows[0], False), _shipped(size, torch.bfloat16, rows[0], True)]
    return found


def _shipped(size: int, dtype: torch.dtype, dimensions: tuple[int, ...], indexed: bool) -> Shipped:
    d = dimensions[0]
    tile = _tile(size, dtype, d, interpreted=False)
    constants = _constants(
        size, dtype, d, mapped=True, indexed=indexed, variant="scaled_mst_mode", labels=True, interpreted=False
    )
    types = {
        "x_ptr": "*" + DTYPES[dtype],
        **dict.fromkeys(("start_ptr", "count_ptr", "task_ptr", "index_ptr", "log_ptr"), "*i64"),
        "alpha_ptr": "*fp64",
        **dict.fromkeys(("n_clusters_ptr", "labels_ptr"), "*i32"),
        "status_ptr": "*i8",
        **dict.fromkeys(("min_distance", "log_low", "per_log"), "fp32"),
        "row_stride": "i64",
    }
    names: list[str] = _fused_kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*fp32" if name.endswith("_ptr") else "i32")
        for name in names
    }
    even = bool(constants["EVEN"])
    kind = " odd" if not even else " halves" if tile.block == 32 and dtype != torch.float32 else ""
    # Rows once; start, count and slot; nine scores, the status, and the labels of one alpha.
    outside = 3 * 8 + 9 * 4 + 1
    samples = 10 if size == 16 else size
    mma = {torch.float32: "HMMA.1688.F32.TF32", torch.bfloat16: "HMMA.16816.F32.BF16", torch.float16: "HMMA.16816.F32"}
    return Shipped(
        name=f"fused n<={size} {DTYPES[dtype]}{kind}{' indexed' if indexed else ''}",
        kernel=_fused_kernel,
        signature=signature,
        constants=constants,
        warps=tile.warps,
        stages=_STAGES,
        aligned=tuple(name for name in names if name.endswith("_ptr")) + (("row_stride", "d") if even else ()),
        registers=tile.registers,
        shared=24 << 10,
        mma=mma[dtype],
        wide=even,
        programs=lambda n, d: 1 / tile.tasks,
        traffic=lambda n, d: n * (d * dtype.itemsize + 4) + outside,
        # Products; twice not taken, for odd rows; the tree; the density at cells and in windows; alphas.
        trips=lambda n, d: (math.ceil(d / tile.block), 0, 0, n - 1, n, _WINDOWS, 1, n, 1),
        shapes=tuple((samples, d) for d in dimensions),
        maxnreg=tile.registers,
        fp_fusion=False,
    )
