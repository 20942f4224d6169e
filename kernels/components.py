"""Connected components at a radius (DBSCAN over the MST), their labels and their entropy (SPEC 5-7).

With min_samples = 2 every sample that has a neighbour is a core point, and a DBSCAN cluster is a connected component of
the graph of the distances <= eps. A minimum spanning tree connects the same samples at every radius: where a path of
edges <= eps joins two samples, so does the tree's, whose largest edge is the smallest that any path can have (SPEC 5).
Noise is a component of one sample, which is the class of its own that it becomes. So the classes are the components of
the tree's edges <= eps, and in the leaf order of merge.py those are the runs between the gaps above eps: to cut the
order at these gaps is all that is left of DBSCAN, for any number of radii from one tree.

A run begins with its smallest sample. Numbered by their first samples, runs are numbered by first appearance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
import triton
import triton.language as tl
from fase_gpu.kernels.shipped import Shipped
from fase_gpu.kernels.status import EMPTY, OK, SINGLE

# Radii, in the order of fase_gpu.config.RADIUS_VARIANTS.
SCALED_MST_MODE = tl.constexpr(0)
SCALED_MST_MEAN = tl.constexpr(1)
SCALED_PDM_MEAN = tl.constexpr(2)
MST_MEAN = tl.constexpr(3)
PDM_MEAN = tl.constexpr(4)
FIXED_EPS = tl.constexpr(5)
SIZES: Final = (16, 32, 64, 128, 256, 512, 1024)
"""Padded sizes N of the tasks of a launch."""
RADIUS_VARIANTS: Final = (
    "scaled_mst_mode",
    "scaled_mst_mean",
    "scaled_pdm_mean",
    "mst_mean",
    "pdm_mean",
    "fixed_eps",
)
NAN = tl.constexpr(float("nan"))
# What float32 holds in full: a radius is compared, and reported, as a float32.
SMALLEST = tl.constexpr(1.1754943508222875e-38)
LARGEST = tl.constexpr(3.4028234663852886e38)
# Logarithms are multiples of 2^-40, so that their sums are exact: equal class sizes give equal entropies in whatever
# order the samples come, one class gives exactly 0 and singletons exactly 1.
LOG_UNIT = tl.constexpr(float(1 << 40))


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def radius_of(alpha, mode, mst_mean, pdm_mean, VARIANT: tl.constexpr, FLOOR: tl.constexpr):
    """The radius (equation 2 and SPEC 7), float32 from float64 of any shape.

    VARIANT   index into RADIUS_VARIANTS
    FLOOR     what stands in for a statistic that is not above 0
    """
    if VARIANT == FIXED_EPS:
        eps = alpha
    else:
        if VARIANT == MST_MEAN:
            base = mst_mean
        elif VARIANT == PDM_MEAN:
            base = pdm_mean
        else:
            if VARIANT == SCALED_MST_MODE:
                base = mode
            elif VARIANT == SCALED_MST_MEAN:
                base = mst_mean
            else:
                base = pdm_mean
            # Without distances the quotient is not taken: the floor applies.
            base = tl.where(pdm_mean > 0, base * (1.0 - mst_mean / tl.where(pdm_mean > 0, pdm_mean, 1.0)), 0.0)
        eps = alpha * tl.where(base > 0, base, FLOOR)
    return tl.minimum(tl.maximum(eps, SMALLEST), LARGEST).to(tl.float32)


@triton.jit
def weighted_log(size):
    """size * log2(size) as a multiple of LOG_UNIT, int64 from an integer of at least 1."""
    return size.to(tl.int64) * (tl.log2(size.to(tl.float64)) * LOG_UNIT + 0.5).to(tl.int64)


@triton.jit
def _components_kernel(
    order_ptr,  # [W, N] int32, from merge.py
    position_ptr,  # [W, N] int32
    gap_ptr,  # [W, N] float32
    merged_ptr,  # [W] float64 or float32, the multiscale entropy
    mean_ptr,  # [W] float64 or float32
    density_mode_ptr,  # [W] float64 or float32
    total_ptr,  # [W] float64, sum of all n * n distances
    count_ptr,  # [T] int64
    task_ptr,  # [W] int64, or -1
    slot_status_ptr,  # [W] int8
    alpha_ptr,  # [A] float64
    entropy_ptr,  # [T, A] float32
    bits_ptr,  # [T, A] float32
    eps_ptr,  # [T, A] float32
    margin_ptr,  # [T, A] float32
    n_clusters_ptr,  # [T, A] int32
    labels_ptr,  # [T, A, L] int32
    multiscale_ptr,  # [T] float32
    mode_ptr,  # [T] float32
    mst_mean_ptr,  # [T] float32
    pdm_mean_ptr,  # [T] float32
    status_ptr,  # [T] int8
    row_stride,  # int64, N
    alphas,  # A
    labels_stride,  # int64, of tasks
    alpha_stride,  # int64, of alphas in labels
    width,  # L
    N: tl.constexpr,
    VARIANT: tl.constexpr,
    FLOOR: tl.constexpr,
    LABELS: tl.constexpr,
):
    slot = tl.program_id(0).to(tl.int64)
    scale = tl.program_id(1)
    task = tl.load(task_ptr + slot)
    if task < 0:
        return
    n = tl.load(count_ptr + task).to(tl.int32)
    status = tl.load(slot_status_ptr + slot).to(tl.int32)
    status = tl.where((status == OK) & (n == 0), EMPTY, tl.where((status == OK) & (n == 1), SINGLE, status))
    cell = task * alphas + scale
    lane = tl.arange(0, N)
    label = tl.full([N], -1, tl.int32)

    if status == OK:
        pairs = n.to(tl.float64) * n.to(tl.float64)
        pdm_mean = tl.load(total_ptr + slot) / pairs
        mst_mean = tl.load(mean_ptr + slot).to(tl.float64)
        mode = tl.load(density_mode_ptr + slot).to(tl.float64)
        eps = radius_of(tl.load(alpha_ptr + scale), mode, mst_mean, pdm_mean, VARIANT, FLOOR)

        row = slot * row_stride
        inside = lane < n
        gap = tl.load(gap_ptr + row + lane, mask=inside, other=float("inf"))
        following = tl.load(gap_ptr + row + lane + 1, mask=lane + 1 < n, other=float("inf"))
        begins = (gap > eps) & inside
        ends = (following > eps) & inside
        start = tl.associative_scan(tl.where(begins, lane, 0), 0, _larger)
        n_clusters = tl.sum(ends.to(tl.int32), 0)
        size = tl.where(ends, lane + 1 - start, 1)
        whole = weighted_log(n)
        spread = (whole - tl.sum(weighted_log(size), 0)).to(tl.float64)
        nearest = tl.min(tl.where(inside & (lane > 0), tl.abs(gap - eps), float("inf")), 0)
        tl.store(entropy_ptr + cell, (spread / whole.to(tl.float64)).to(tl.float32))
        tl.store(bits_ptr + cell, (spread / (n.to(tl.float64) * LOG_UNIT)).to(tl.float32))
        tl.store(eps_ptr + cell, eps)
        tl.store(margin_ptr + cell, (nearest.to(tl.float64) / eps.to(tl.float64)).to(tl.float32))
        tl.store(n_clusters_ptr + cell, n_clusters)
        if scale == 0:
            tl.store(multiscale_ptr + task, tl.load(merged_ptr + slot).to(tl.float32))
            tl.store(mode_ptr + task, mode.to(tl.float32))
            tl.store(mst_mean_ptr + task, mst_mean.to(tl.float32))
            tl.store(pdm_mean_ptr + task, pdm_mean.to(tl.float32))
        if LABELS:
            # From here lanes are samples. A sample's class is named by its first sample, then by that one's rank.
            position = tl.load(position_ptr + row + lane, mask=inside, other=0)
            first = tl.load(order_ptr + row + tl.gather(start, position, 0), mask=inside, other=0)
            rank = tl.cumsum(((first == lane) & inside).to(tl.int32), 0) - 1
            label = tl.where(inside, tl.gather(rank, first, 0), -1)
    else:
        single = status == SINGLE
        tl.store(entropy_ptr + cell, NAN)
        tl.store(bits_ptr + cell, NAN)
        tl.store(eps_ptr + cell, NAN)
        tl.store(margin_ptr + cell, NAN)
        tl.store(n_clusters_ptr + cell, single.to(tl.int32))
        if scale == 0:
            tl.store(multiscale_ptr + task, NAN)
            tl.store(mode_ptr + task, NAN)
            tl.store(mst_mean_ptr + task, NAN)
            tl.store(pdm_mean_ptr + task, NAN)
        label = tl.where((lane == 0) & single, 0, -1)

    if scale == 0:
        tl.store(status_ptr + task, status.to(tl.int8))
    if LABELS:
        labels_ptr += task * labels_stride + scale.to(tl.int64) * alpha_stride
        tl.store(labels_ptr + lane, label, mask=lane < width)
        # The batch may hold a task that is wider than this launch's.
        beyond = N
        while beyond < width:
            tl.store(labels_ptr + beyond + lane, -1, mask=beyond + lane < width)
            beyond += N


def launch_components(
    order: torch.Tensor,
    position: torch.Tensor,
    gap: torch.Tensor,
    merged: torch.Tensor,
    mean: torch.Tensor,
    mode: torch.Tensor,
    total: torch.Tensor,
    count: torch.Tensor,
    task: torch.Tensor,
    status: torch.Tensor,
    alphas: torch.Tensor,
    scores: Mapping[str, torch.Tensor],
    variant: str,
    released: bool,
) -> None:
    """The scores of the task of each slot, at every alpha.

    order, position, gap, merged   of launch_merge; N of their shapes is the padded size, a power of two of 16 to 1024
    mean, mode                     of launch_density, [W]
    total                          [W] float64, sum of all n * n distances
    count                          [T] int64, samples of each task
    task                           [W] int64, the task of each slot or -1
    status                         [W] int8, of the distances; OK becomes EMPTY or SINGLE for none or one sample
    alphas                         [A] float64; radii for variant "fixed_eps"
    scores                         written at the tasks' rows: entropy, bits, eps, margin [T, A] float32 and n_clusters
                                   [T, A] int32, contiguous; multiscale, mode, mst_mean, pdm_mean [T] float32; status
                                   [T] int8; labels [T, A, L] int32 of any strides but 1 for the last, or left out
    variant                        one of RADIUS_VARIANTS
    released                       whether the radius has the floor of the released code
    """
    size = order.shape[1]
    labels = scores.get("labels")
    strides = (0, 0) if labels is None else labels.stride()[:2]
    _components_kernel[(order.shape[0], alphas.shape[0])](
        order,
        position,
        gap,
        merged,
        mean,
        mode,
        total,
        count,
        task,
        status,
        alphas,
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
        size,
        alphas.shape[0],
        *strides,
        0 if labels is None else labels.shape[2],
        N=size,
        VARIANT=RADIUS_VARIANTS.index(variant),
        FLOOR=_floor(variant, released),
        LABELS=labels is not None,
        num_warps=_warps(size),
        num_stages=1,
        enable_fp_fusion=True,
    )


def _floor(variant: str, released: bool) -> float:
    """The radius for alpha = 1 where the statistic gives none; the released code has another for its unscaled means."""
    return 1e-3 if released and variant in ("mst_mean", "pdm_mean") else 5e-4


def _warps(size: int) -> int:
    """A warp for every 128 samples: four a lane are enough to hide the latency of their loads."""
    return max(1, size // 128)


def shipped() -> list[Shipped]:
    """What launch_components launches: every size; variants and no labels, which leave code out, at one size."""
    return [
        *(_shipped(size, "scaled_mst_mode", True) for size in SIZES),
        _shipped(128, "scaled_mst_mode", False),
        *(_shipped(128, variant, True) for variant in RADIUS_VARIANTS[1:]),
    ]


def _shipped(size: int, variant: str, labels: bool) -> Shipped:
    constants = {
        "N": size,
        "VARIANT": RADIUS_VARIANTS.index(variant),
        "FLOOR": _floor(variant, False),
        "LABELS": labels,
    }
    types = {
        **dict.fromkeys(("order_ptr", "position_ptr", "n_clusters_ptr", "labels_ptr"), "*i32"),
        **dict.fromkeys(("merged_ptr", "mean_ptr", "density_mode_ptr", "total_ptr", "alpha_ptr"), "*fp64"),
        **dict.fromkeys(("slot_status_ptr", "status_ptr"), "*i8"),
        **dict.fromkeys(("task_ptr", "count_ptr"), "*i64"),
        **dict.fromkeys(("row_stride", "labels_stride", "alpha_stride"), "i64"),
    }
    names: list[str] = _components_kernel.arg_names
    kind = "" if variant == "scaled_mst_mode" else f" {variant}"
    samples = size * 3 // 4
    return Shipped(
        name=f"components n<={size}{kind}" + ("" if labels else " without labels"),
        kernel=_components_kernel,
        signature={
            name: "constexpr" if name in constants else types.get(name, "*fp32" if name.endswith("_ptr") else "i32")
            for name in names
        },
        constants=constants,
        warps=_warps(size),
        stages=1,
        aligned=(*(name for name in names if name.endswith("_ptr")), "row_stride"),
        registers=64,
        shared=max(512, 4 * size) if labels else 64,
        mma=None,
        wide=False,
        # For one alpha.
        programs=lambda n, d: 1,
        # Leaf order, positions, gaps and labels; the rest is a number each.
        traffic=lambda n, d: n * (12 + 4 * labels) + 6 * 8 + 9 * 4 + 2,
        # Labels beyond N.
        trips=lambda n, d: (0,) if labels else (),
        shapes=((samples, 768),),
    )
