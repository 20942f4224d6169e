"""Entropy of class sizes, and the multiscale entropy of a tree (SPEC 5 and 10)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

import torch

from fase_gpu.mst import NO_EDGE, Mst

_FIXED_POINT: Final = 1 << 40
_FEW_KEYS: Final = 24


class Entropy(NamedTuple):
    normalised: torch.Tensor
    """[A, T] float64 in [0, 1]; NaN for a single sample"""
    bits: torch.Tensor
    """[A, T] float64"""
    n_clusters: torch.Tensor
    """[A, T] int64"""


def class_entropy(classes: torch.Tensor, n: torch.Tensor) -> Entropy:
    """Entropy of the class sizes of the n [T] samples of each task.

    classes   [N, A, T] int64 in [0, N); padding must hold classes of its own

    Logarithms are fixed-point integers, so that sums are exact: equal class sizes give equal entropies in whatever
    order the samples come, one class gives exactly 0 and singletons exactly 1.
    """
    size = classes.shape[0]
    position = torch.arange(size, device=classes.device)[:, None, None]
    ones = (position < n).to(torch.int64).expand_as(classes)
    counts = torch.zeros_like(classes).scatter_add_(0, classes, ones)
    weighted = _logs(size).to(classes.device)
    total = weighted[counts].sum(0)
    whole = weighted[n]
    spread = (whole - total).to(torch.float64)
    return Entropy(spread / whole, spread / (n * _FIXED_POINT), (counts > 0).sum(0))


def multiscale_entropy(tree: Mst, n: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Average of the normalised entropy over the logarithm of the radius between low and high, [T] float64.

    Along the tree's order the cluster that an edge of key k joins on its left is the run of smaller keys before it, and
    likewise on its right: the two sizes that the merge needs.
    """
    key = tree.key
    if key.shape[0] == 0:
        return torch.full(n.shape, math.nan, dtype=torch.float64, device=n.device)
    left = 1 + _smaller_before(key)
    right = 1 + _smaller_before(key.flip(0)).flip(0)
    sizes = torch.arange(key.shape[0] + 2, dtype=torch.float64, device=key.device)
    gain: torch.Tensor = torch.special.xlogy(sizes, sizes) / math.log(2)
    rise = gain[left + right] - gain[left] - gain[right]
    scale = torch.where(tree.weight.isfinite(), tree.weight, 1.0).to(torch.float64)
    start, span = math.log(low), math.log(high) - math.log(low)
    scale = scale.log_().sub_(start).div_(span).clamp_(0, 1)
    return torch.where(key < NO_EDGE, rise * scale, 0.0).sum(0) / gain[n]


def _smaller_before(key: torch.Tensor) -> torch.Tensor:
    """How many keys directly before each one are all smaller than it, int64 like key [M, T].

    One key after the other where there are few. Else by doubling: the maximum of every stretch of 1, 2, 4, ... keys,
    then from the longest stretch down.
    """
    if key.shape[0] <= _FEW_KEYS:
        count = torch.zeros_like(key, dtype=torch.int64)
        all_smaller = torch.ones_like(key, dtype=torch.bool)
        for back in range(1, key.shape[0]):
            all_smaller[back:] &= key[:-back] < key[back:]
            count[back:] += all_smaller[back:]
        return count
    longest = [key]
    while 2 << len(longest) - 1 < key.shape[0]:
        width = 1 << len(longest) - 1
        last = longest[-1]
        longest.append(torch.cat([last[:width], torch.maximum(last[width:], last[:-width])]))
    position = torch.arange(key.shape[0], device=key.device)[:, None]
    count = torch.zeros_like(key, dtype=torch.int64)
    for level in reversed(range(len(longest))):
        end = position - 1 - count
        fits = end + 1 >= 1 << level
        smaller = longest[level].gather(0, end.clamp_min(0)) < key
        count += (fits & smaller).to(torch.int64) << level
    return count


@lru_cache(maxsize=64)
def _logs(size: int) -> torch.Tensor:
    """k log2 k in fixed point for k = 0 .. size."""
    values = [0] + [k * round(math.log2(k) * _FIXED_POINT) for k in range(1, size + 1)]
    return torch.tensor(values, dtype=torch.int64, device="cpu")
