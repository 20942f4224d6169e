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
from fase_gpu.kernels.density import mode_of
from fase_gpu.kernels.shipped import Shipped

SIZES: Final = (16, 32, 64)
DTYPES: Final = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
VARIANTS: Final = ("scaled_mst_mode", "scaled_mst_mean", "scaled_pdm_mean", "mst_mean", "pdm_mean", "fixed_eps")
# Float32 sums drift with their length: at most about so many slices of d are summed by ordinary additions.
MOST_SLICES: Final = 16
_STAGES: Final = 3
# Windows of the density that a program searches, on average (measured on random tasks).
_WINDOWS: Final = 1.1
INTERPRETED: Final = bool(triton.knobs.runtime.interpret)

INFINITY = tl.constexpr(float("inf"))
NAN = tl.constexpr(float("nan"))
# Status, as in fase_gpu.results.
OK = tl.constexpr(0)
EMPTY = tl.constexpr(1)
SINGLE = tl.constexpr(2)
NOT_FINITE = tl.constexpr(3)
ZERO_VECTOR = tl.constexpr(4)
TOO_MANY = tl.constexpr(6)
# Squared lengths between which no square or product of a row over- or underflows in a way that matters.
SHORTEST = tl.constexpr(1e-24)
LONGEST = tl.constexpr(1e30)
# Of the radius, for alpha = 1 (SPEC 5).
FLOOR = tl.constexpr(5e-4)
INFINITE_BITS = tl.constexpr(0x7F800000)
# The bits of a float32 that the tensor core reads as TF32.
TF32_BITS = tl.constexpr(-8192)
# Binary digits after the point of the logarithms.
LOG_UNIT: Final = 1 << 40


@triton.jit
def _gram(
    x_ptr,
    offset,  # [B, N] int64, of the rows' first elements
    inside,  # [B, N]
    scale,  # [B, N] float32, powers of two; read where SCALED
    d,
    one,
    slice,
    N: tl.constexpr,
    B: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    LONG: tl.constexpr,
    SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Products of the rows of each task, [B, N, N] float32.

    The tensor core truncates as it accumulates, so it sums slices of columns, of a block or where LONG of `slice`
    blocks, and an ordinary addition sums the slices. `one` is 1; multiplying by it keeps the compiler from making the
    addition a part of the matrix product. A float32 row is split into what TF32 holds and the rest:
    high * high + high * low + low * high.
    """
    column = tl.arange(0, BLOCK)
    gram = tl.zeros([B, N, N], tl.float32)
    part = tl.zeros([B, N, N], tl.float32)
    cross = tl.zeros([B, N, N], tl.float32)
    # The scaled products are rare: they take no memory for loads in advance.
    for first in tl.range(0, d, BLOCK, num_stages=1 if SCALED else None):
        k = first + column
        mask = inside[:, :, None]
        if not EVEN:
            mask = mask & (k < d)[None, None, :]
        x = tl.load(x_ptr + (offset[:, :, None] + k[None, None, :]), mask=mask, other=0.0)
        if SCALED:
            x = (x.to(tl.float32) * scale[:, :, None]).to(x.dtype)
        if SPLIT:
            high = (x.to(tl.int32, bitcast=True) & TF32_BITS).to(tl.float32, bitcast=True)
            low = x - high
            part = tl.dot(high, tl.permute(high, (0, 2, 1)), part, input_precision="tf32")
            cross = tl.dot(high, tl.permute(low, (0, 2, 1)), cross, input_precision="tf32")
        else:
            if UPCAST:
                x = x.to(tl.float32)
            part = tl.dot(x, tl.permute(x, (0, 2, 1)), part, input_precision="ieee")
        if LONG:
            full = (first // BLOCK + 1) % slice == 0
            gram = tl.fma(part, tl.where(full, one, 0.0), gram)
            part = tl.where(full, 0.0, part)
        else:
            gram = tl.fma(part, one, gram)
            part = tl.zeros([B, N, N], tl.float32)
    if LONG:
        gram += part
    if SPLIT:
        gram = gram + (cross + tl.permute(cross, (0, 2, 1)))
    return gram


@triton.jit
def _largest_bits(x_ptr, offset, inside, d, N: tl.constexpr, B: tl.constexpr, BLOCK: tl.constexpr):
    """Bits of the largest |coordinate| of each row, [B, N] int32: Inf and NaN are the largest of all."""
    column = tl.arange(0, BLOCK)
    largest = tl.zeros([B, N], tl.int32)
    for first in tl.range(0, d, BLOCK, num_stages=1):
        k = first + column
        mask = inside[:, :, None] & (k < d)[None, None, :]
        x = tl.load(x_ptr + (offset[:, :, None] + k[None, None, :]), mask=mask, other=0.0)
        bits = x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
        largest = tl.maximum(largest, tl.max(bits, axis=2))
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


@triton.jit(do_not_specialize=["slots", "most", "alphas", "width", "grid", "slice", "variant"])
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
    variant,  # index in VARIANTS
    grid,
    one,
    slice,
    min_distance,
    log_low,  # log2 of the range's lower end
    per_log,  # 1 / log2(high / low)
    N: tl.constexpr,
    B: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    LONG: tl.constexpr,
    SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
    MAPPED: tl.constexpr,
    INDEXED: tl.constexpr,
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
    gram = _gram(x_ptr, offset, inside, inside, d, one, slice, N, B, BLOCK, EVEN, LONG, SPLIT, UPCAST, False)
    gram = _relaid(gram, mode_ptr, samples, N, B)
    square = tl.sum(tl.where(diagonal, gram, 0.0), axis=0)
    status = tl.where(samples < 2, tl.where(samples == 1, SINGLE, EMPTY), OK)
    odd = tl.max((present & ((square > SHORTEST) & (square < LONGEST) == 0)).to(tl.int32), axis=0) > 0
    if tl.max(odd.to(tl.int32), axis=0) > 0:
        # Rare: a row that is zero, not finite, or so long or short that its squares leave float32. The rows of its task
        # are scaled by powers of two, which changes no digit, and multiplied again.
        largest = _largest_bits(x_ptr, offset, inside, d, N, B, 16)
        zero = tl.max((inside & (largest == 0)).to(tl.int32), axis=1) > 0
        broken = tl.max((inside & (largest >= INFINITE_BITS)).to(tl.int32), axis=1) > 0
        status = tl.where(broken, NOT_FINITE, tl.where(zero, ZERO_VECTOR, status))
        exponent = tl.minimum(tl.maximum(254 - (largest >> 23), 1), 253)
        scale = (exponent << 23).to(tl.float32, bitcast=True)
        slice = slice * (BLOCK // 16)
        scaled = _gram(x_ptr, offset, inside, scale, d, one, slice, N, B, 16, False, True, SPLIT, UPCAST, True)
        gram = tl.where(odd[None, None, :], _relaid(scaled, mode_ptr, samples, N, B), gram)
        square = tl.sum(tl.where(diagonal, gram, 0.0), axis=0)
    status = tl.where(samples > most, TOO_MANY, status)
    n = tl.where(status == OK, samples, 0)

    # 1 - cos, with what the roundings of 1/length and of their product lost put back: identical rows give exactly 0.
    square = tl.where(square > 0, square, 1.0)
    inverse = tl.rsqrt(square)
    rest = 0.5 * tl.fma(-square * inverse, inverse, 1.0)
    zeros = tl.zeros([N, N, B], tl.float32)
    inverse_i = inverse[:, None, :] + zeros
    inverse_j = inverse[None, :, :] + zeros
    both = inverse_i * inverse_j
    lost = tl.fma(inverse_i, inverse_j, -both)
    distance = tl.fma(-gram, both, 1.0)
    distance = distance - gram * tl.fma(both, rest[:, None, :] + rest[None, :, :], lost)
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
    shrunk = 1.0 - mean / tl.where(n > 1, pdm_mean, 1.0)
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

    # The radius is alpha * base, or alpha * base * (1 - mean / pdm_mean); a fixed one is alpha itself.
    base = tl.where(variant == 0, mode, tl.where((variant == 1) | (variant == 3), mean, pdm_mean))
    base = tl.where(variant == 5, 1.0, base)
    scaled = variant < 3
    single = status == SINGLE
    place_j = place[None, :, :] + tl.zeros([N, N, B], tl.int32)
    for a in range(alphas):
        alpha = tl.load(alpha_ptr + a)
        eps = alpha * tl.where(scaled, base * shrunk, base)
        eps = tl.where(eps > 0, eps, alpha * FLOOR)
        eps = tl.minimum(tl.maximum(eps, 1.1754943508222875e-38), 3.4028234663852886e38).to(tl.float32)
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
    """The most a thread may take."""
    told: bool
    """Whether the assembler is told so: it does better untold where that is all there are."""


def _tile(size: int, dtype: torch.dtype, d: int) -> _Tile:
    block = 32 if dtype == torch.float32 else 64
    if INTERPRETED:  # the interpreter takes as long for many tasks as for one
        return _Tile(32, block, 1, 255, False)
    if d % block:
        return _Tile(
            2 if size == 16 else 1, 32, {16: 1, 32: 2, 64: 8}[size], 248 if block == 32 or size == 16 else 168, True
        )
    if size == 16:
        # Of four tasks the lanes are used best, but with float32 or more sums that takes more registers than there are.
        if block == 64 and d <= block * MOST_SLICES:
            return _Tile(4, block, 1, 255, False)
        return _Tile(2, block, 1, 168, True)
    # Of 64 samples, two programs fit beside each other in 128 registers: a single one waits most of the time.
    return _Tile(1, block, 2, 168, True) if size == 32 else _Tile(1, block, 8, 128 if block == 64 else 168, True)


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
    variant: int,
    grid: int,
    min_distance: float,
    multiscale_range: tuple[float, float],
) -> None:
    """Score the tasks of all slots that have up to `size` samples.

    x                  [S, d] float32, float16 or bfloat16, with stride 1 along d
    start, count       [T] int64, first packed row and samples of each task
    task               [W] int64, task of each slot, -1 for none; None: slot t is task t
    index              [R] int64, the row of x that a packed row is; None: itself
    alphas             [A] float64; radii for variant 5
    logs               [size + 1] int64, log2 of 0, 1, ... in units of 1 / LOG_UNIT, 0 for 0
    scores             by name: entropy, bits, eps, margin [T, A] float32, n_clusters [T, A] int32, multiscale, mode,
                       mst_mean, pdm_mean [T] float32, status [T] int8, and, where labels are wanted, labels [T, A, L]
                       int32, of which columns below min(L, size) are written
    size               one of SIZES
    most               samples that a task may have, at most size; one that has more gets the status TOO_MANY
    variant            index in VARIANTS
    grid               points of the density grid, at least 2
    """
    slots = start.numel() if task is None else task.numel()
    if slots == 0:
        return
    d = x.shape[1]
    tile = _tile(size, x.dtype, d)
    labels = scores.get("labels")
    slices = -(-d // tile.block)
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
        variant,
        grid,
        1.0,
        -(-slices // MOST_SLICES),
        min_distance,
        math.log2(low),
        1 / (math.log2(high) - math.log2(low)),
        **_constants(size, x.dtype, d, task is not None, index is not None, labels is not None),
        num_warps=tile.warps,
        num_stages=_STAGES,
        enable_fp_fusion=True,
        maxnreg=tile.registers if tile.told else None,
    )


def _constants(
    size: int, dtype: torch.dtype, d: int, mapped: bool, indexed: bool, labels: bool
) -> dict[str, int | bool]:
    tile = _tile(size, dtype, d)
    return {
        "N": size,
        "B": tile.tasks,
        "BLOCK": tile.block,
        "EVEN": d % tile.block == 0,
        "LONG": d > tile.block * MOST_SLICES,
        "SPLIT": dtype == torch.float32,
        "UPCAST": INTERPRETED and dtype != torch.float32,
        "MAPPED": mapped,
        "INDEXED": indexed,
        "LABELS": labels,
    }


def shipped() -> list[Shipped]:
    """What launch_fused launches: every size and type, with short, long and odd rows (float16 is bfloat16's code)."""
    rows = ((384, 768, 1024), (2560, 4096), (100,))
    return [
        _shipped(size, dtype, dimensions)
        for size in SIZES
        for dtype in DTYPES
        for dimensions in (rows[:1] if dtype == torch.float16 else rows)
    ]


def _shipped(size: int, dtype: torch.dtype, dimensions: tuple[int, ...]) -> Shipped:
    tile = _tile(size, dtype, dimensions[0])
    constants = _constants(size, dtype, dimensions[0], mapped=True, indexed=False, labels=True)
    types = {
        "x_ptr": "*" + DTYPES[dtype],
        **dict.fromkeys(("start_ptr", "count_ptr", "task_ptr", "index_ptr", "log_ptr"), "*i64"),
        "alpha_ptr": "*fp64",
        **dict.fromkeys(("n_clusters_ptr", "labels_ptr"), "*i32"),
        "status_ptr": "*i8",
        **dict.fromkeys(("one", "min_distance", "log_low", "per_log"), "fp32"),
        "row_stride": "i64",
    }
    names: list[str] = _fused_kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*fp32" if name.endswith("_ptr") else "i32")
        for name in names
    }
    even = bool(constants["EVEN"])
    kind = " odd" if not even else " long" if constants["LONG"] else ""
    # Rows once; start, count and slot; nine scores, the status, and the labels of one alpha.
    outside = 3 * 8 + 9 * 4 + 1
    samples = 10 if size == 16 else size
    mma = {torch.float32: "HMMA.1688.F32.TF32", torch.bfloat16: "HMMA.16816.F32.BF16", torch.float16: "HMMA.16816.F32"}
    return Shipped(
        name=f"fused n<={size} {DTYPES[dtype]}{kind}",
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
        maxnreg=tile.registers if tile.told else None,
    )
