"""How far apart samples that pass and samples that fail are (the paper's Fig. 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fase_gpu.evaluation.report.geometry import Geometry

Array = NDArray[np.float64]

KINDS: Final = ("pass-pass", "fail-fail", "pass-fail")
"""Pairs of samples of a task, by whether they passed its tests."""


def pair_ratios(geometry: Geometry, passed: Sequence[bool]) -> tuple[Array, Array]:
    """Mean distance [3] and mean tree edge [3] of each of KINDS, over the mean of all pairs and of all edges.

    NaN for a kind of which the task has no pair, or no edge.
    """
    n = len(passed)
    low, high = np.triu_indices(n, 1)
    distances = geometry.distance[low, high].astype(np.float64)
    weights = np.array([edge.weight for edge in geometry.edges])
    ends = np.array([(edge.low, edge.high) for edge in geometry.edges])
    label = np.array(passed)
    return (
        _ratios(distances, label[low], label[high]),
        _ratios(weights, label[ends[:, 0]], label[ends[:, 1]]),
    )


def _ratios(values: Array, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Array:
    kinds = (first & second, ~first & ~second, first != second)
    means = [values[kind].mean() if kind.any() else math.nan for kind in kinds]
    return np.array(means, np.float64) / float(values.mean())
