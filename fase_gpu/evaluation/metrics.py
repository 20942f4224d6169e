"""How well a score predicts correctness: SPEC 9's statistics with bootstrap intervals, by SciPy and scikit-learn.

A score is high where the samples should be correct. It and pass@1 are [T] arrays over the tasks that have both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fase_gpu.errors import InputError, MissingExtraError

Array = NDArray[np.float64]

RESAMPLES: Final = 1000
COVERAGES: Final = (0.9, 0.8, 0.5)
_FOLDS: Final = 5
_BLOCK: Final = 1 << 20
"""Drawn tasks that are looked at at once: a dozen arrays of 8 MB."""
_BINS: Final = 10


class Statistic(NamedTuple):
    """A number with the bounds of its 95 % bootstrap interval over tasks; all NaN where it is undefined."""

    value: float
    low: float
    high: float
    undefined: str = ""
    """Why there is no number; "" where there is one."""


class RiskCoverage(NamedTuple):
    """What keeping only the most certain tasks does."""

    coverage: Array
    """[T] share of the tasks that are kept: 1/T, 2/T, ..., 1"""
    accuracy: Array
    """[T] mean pass@1 of the kept tasks; tasks of equal score count as if in every order"""
    area: float
    """Area under 1 - accuracy: the mean risk over all coverages, 0 at best"""


class Reliability(NamedTuple):
    """A monotone map from score to expected pass@1, judged on tasks that it was not fitted to."""

    expected: Array
    """[T] pass@1 that the map of the other folds expects"""
    error: float
    """Expected calibration error: mean over tasks of |expected - observed| of their bin"""
    bins: list[tuple[float, float, int]]
    """(mean expected, mean observed, tasks) of each bin, ascending"""


def pass_at_k(samples: ArrayLike, correct: ArrayLike, k: int) -> Array:
    """[T] chance that one of k samples drawn from a task's is correct, 1 - C(n - c, k) / C(n, k) (arXiv:2107.03374).

    samples, correct   [T] integers n and c; k from 1 to the smallest n

    Raises InputError for a task with fewer than k samples, or where not 0 <= c <= n.
    """
    n, c = np.asarray(samples), np.asarray(correct)
    if n.shape != c.shape or (c < 0).any() or (c > n).any():
        raise InputError("correct: expected from 0 to n for each task's n samples")
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InputError(f"k: expected an integer of at least 1, got {k!r}")
    if n.size and int(n.min()) < k:
        raise InputError(f"k: expected at most {int(n.min())}, the samples of the smallest task, got {k}")
    # As a product of ratios, where the binomials themselves overflow.
    factors = np.arange(k)
    wrong = np.prod(np.clip((n - c)[..., None] - factors, 0, None) / (n[..., None] - factors), axis=-1)
    return np.asarray(1 - wrong, np.float64)


def spearman(score: ArrayLike, pass_at_1: ArrayLike, resamples: int = RESAMPLES) -> Statistic:
    """Spearman's rank correlation, average ranks on ties. `resamples` = 0 leaves the interval out."""
    x, y = _pair(score, pass_at_1)
    reason = _undefined(x, y)
    if reason:
        return Statistic(np.nan, np.nan, np.nan, reason)
    return _with_interval(_rank_correlation, x, y, resamples)


def roc_auc(score: ArrayLike, pass_at_1: ArrayLike, resamples: int = RESAMPLES) -> Statistic:
    """Area under the ROC curve of the score for the label [pass@1 = 1]; ties count half."""
    x, label, reason = _labels(score, pass_at_1)
    if reason:
        return Statistic(np.nan, np.nan, np.nan, reason)
    return _with_interval(_rank_area, x, label, resamples)


def average_precision(score: ArrayLike, pass_at_1: ArrayLike) -> float:
    """Area under the precision-recall curve of the score for the label [pass@1 = 1], as scikit-learn's.

    NaN where `roc_auc` is undefined.
    """
    x, label, reason = _labels(score, pass_at_1)
    return math.nan if reason else float(statistics_package("sklearn.metrics").average_precision_score(label, x))


def risk_coverage(score: ArrayLike, pass_at_1: ArrayLike) -> RiskCoverage:
    """Mean pass@1 of the k most certain tasks, for every k."""
    x, y = _pair(score, pass_at_1)
    if not x.size:
        return RiskCoverage(np.empty(0), np.empty(0), np.nan)
    _, group = np.unique(-x, return_inverse=True)
    sizes = np.bincount(group)
    level = np.bincount(group, y) / sizes
    accuracy = np.cumsum(level[np.sort(group)]) / np.arange(1, x.size + 1)
    return RiskCoverage(np.arange(1, x.size + 1) / x.size, accuracy, float(np.mean(1 - accuracy)))


def accuracy_at(curve: RiskCoverage, coverage: float) -> float:
    """Mean pass@1 when this share of the tasks is kept, at least one; NaN without tasks."""
    kept = max(1, math.floor(coverage * curve.accuracy.size + 0.5))
    return float(curve.accuracy[kept - 1]) if curve.accuracy.size else np.nan


def calibration(score: ArrayLike, pass_at_1: ArrayLike, groups: Sequence[Hashable] | None = None) -> Reliability:
    """Isotonic regression of pass@1 on the score, each task's expectation from the folds without it.

    groups   [T] what must not be on both sides, as the ids of tasks that several sets have; None: each task is alone

    With fewer than two groups there is nothing to hold out, and NaN.
    """
    x, y = _pair(score, pass_at_1)
    held_out = folds(range(x.size) if groups is None else groups)
    if len(held_out) < 2:
        return Reliability(np.full(x.size, np.nan), np.nan, [])
    expected = np.empty(x.size)
    for held in held_out:
        expected[held] = isotonic(x[~held], y[~held]).predict(x[held])
    return reliability(expected, y)


def reliability(expected: Array, observed: Array) -> Reliability:
    """How far expected pass@1 is from what was observed, bin by bin; NaN without tasks."""
    if not expected.size:
        return Reliability(expected, np.nan, [])
    bins = calibration_bins(expected, observed)
    error = sum(count * abs(mean - found) for mean, found, count in bins) / expected.size
    return Reliability(expected, error, bins)


def folds(groups: Sequence[Hashable]) -> list[NDArray[np.bool_]]:
    """Masks [T] of five folds, or as many as there are groups; a group is in one of them. The same for equal groups."""
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    count = min(_FOLDS, len(numbers))
    fold = np.random.default_rng(0).permutation(len(numbers)) % max(count, 1)
    of_task = fold[[numbers[group] for group in groups]] if numbers else fold
    return [of_task == number for number in range(count)]


def isotonic(score: Array, pass_at_1: Array) -> Any:
    """scikit-learn's isotonic regression of pass@1 on the score, constant beyond the scores that it has seen."""
    package = statistics_package("sklearn.isotonic")
    return package.IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(score, pass_at_1)


def calibration_bins(expected: Array, observed: Array) -> list[tuple[float, float, int]]:
    """(mean expected, mean observed, tasks) of up to ten bins of nearly equally many tasks; equal expectations are kept
    together."""
    _, group = np.unique(expected, return_inverse=True)
    sizes = np.bincount(group)
    ends = np.cumsum(sizes)
    which = np.minimum(((ends - sizes / 2) * _BINS / expected.size).astype(int), _BINS - 1)
    found = []
    for number in np.unique(which).tolist():
        chosen = which[group] == number
        found.append((float(expected[chosen].mean()), float(observed[chosen].mean()), int(chosen.sum())))
    return found


def statistics_package(name: str) -> Any:
    """A module of SciPy or scikit-learn. Raises MissingExtraError where they are not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError("evaluation", "eval") from error


def best_value(rho: ArrayLike, values: Sequence[float], given: float) -> int:
    """Index of the value with the best mean rho over sets.

    rho      [sets, A]; a set on which it is undefined at every value is left out; elsewhere undefined counts as 0, as a
             score that is the same for all tasks predicts nothing
    values   [A]; of equally good ones the nearest to `given`, which is also taken where no set is left
    """
    table = np.asarray(rho, np.float64).reshape(-1, len(values))
    table = table[~np.isnan(table).all(1)]
    mean = np.nan_to_num(table).mean(0) if table.size else np.zeros(len(values))
    distance = np.abs(np.array(values) - given)
    return int(np.lexsort((distance, -np.round(mean, 12)))[0])


def mean_of(statistics: Sequence[float]) -> float:
    """The mean of those that are defined; NaN where none is."""
    defined = [value for value in statistics if not np.isnan(value)]
    return float(np.mean(defined)) if defined else np.nan


def _pair(score: ArrayLike, target: ArrayLike) -> tuple[Array, Array]:
    x, y = np.asarray(score, np.float64), np.asarray(target, np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(f"score: expected [T] as pass_at_1, got {x.shape} and {y.shape}")
    if np.isnan(x).any() or np.isnan(y).any():
        raise InputError("score: expected a number for each task, got NaN; leave tasks without a score out")
    return x, y


def _labels(score: ArrayLike, pass_at_1: ArrayLike) -> tuple[Array, Array, str]:
    """The score, whether a task is entirely correct, and why there is nothing to tell apart."""
    x, y = _pair(score, pass_at_1)
    label = (y == 1).astype(np.float64)
    reason = _undefined(x, label, "every task is entirely correct" if label.all() else "no task is entirely correct")
    return x, label, reason


def _undefined(x: Array, y: Array, constant: str = "") -> str:
    if x.size < 2:
        return "fewer than two tasks"
    if (y == y[0]).all():
        return constant or f"every task has pass@1 {y[0]:g}"
    return "every task has the same score" if (x == x[0]).all() else ""


def _with_interval(measure: Callable[[Array, Array], Array], x: Array, y: Array, resamples: int) -> Statistic:
    """A measure of rows [B, T], on the tasks and on resamples of them; undefined resamples are left out."""
    value = float(measure(x[None], y[None])[0])
    if resamples == 0:
        return Statistic(value, np.nan, np.nan)
    random = np.random.default_rng(0)
    found: list[float] = []
    for start in range(0, resamples, max(1, _BLOCK // x.size)):
        count = min(max(1, _BLOCK // x.size), resamples - start)
        draws = random.integers(0, x.size, (count, x.size))
        found += measure(x[draws], y[draws]).tolist()
    defined = [one for one in found if not np.isnan(one)]
    low, high = np.quantile(defined, [0.025, 0.975]) if defined else (np.nan, np.nan)
    return Statistic(value, float(low), float(high))


def _rank_correlation(x: Array, y: Array) -> Array:
    """[B] Spearman's rho of rows [B, T]; NaN for a constant row."""
    rankdata = statistics_package("scipy.stats").rankdata
    a, b = rankdata(x, axis=1), rankdata(y, axis=1)
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    spread = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((a * b).sum(1) / spread)


def _rank_area(x: Array, label: Array) -> Array:
    """[B] area under the ROC curve of rows [B, T], from the rank sum of the positives; NaN for one label alone."""
    rank = statistics_package("scipy.stats").rankdata(x, axis=1)
    positive = label.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        wins = (rank * label).sum(1) - positive * (positive + 1) / 2
        return np.asarray(wins / (positive * (x.shape[1] - positive)))
