"""Which method predicts correctness, and how well: every method on every labelled set (the paper's Table 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fase_gpu.errors import InputError
from fase_gpu.evaluation import metrics
from fase_gpu.evaluation.labelled import LabelledSet
from fase_gpu.evaluation.methods import GIVEN, Array, Method

CHOICES: Final = ("given", "best", "held out")
"""How a method's value is chosen: as given; the best of the set, in hindsight; the best of the other sets."""


@dataclass(frozen=True)
class Setting:
    """How one method at one value predicts the tests of one set."""

    value: float
    """Of alpha, eps or min_cluster_size; NaN where nothing is left open"""
    rho: metrics.Statistic
    auc: metrics.Statistic
    average_precision: float
    risk: float
    """Area under the risk-coverage curve"""
    accuracy: tuple[float, ...]
    """Mean pass@1 of the metrics.COVERAGES most certain tasks"""
    calibration_error: float


@dataclass(frozen=True)
class Row:
    """One method on all sets."""

    method: str
    swept: str
    values: tuple[float, ...]
    """[A]"""
    rho: dict[str, list[float]]
    """By set: Spearman's rho at each of the values; NaN where undefined"""
    auc: dict[str, list[float]]
    settings: dict[str, dict[str, Setting]]
    """By choice, then by set; a method that leaves nothing open has the choice "given" alone"""

    def mean(self, choice: str) -> tuple[float, float]:
        """Mean rho and AUC over the sets on which they are defined; NaN where there is none."""
        chosen = self.settings.get(choice, {}).values()
        return metrics.mean_of([s.rho.value for s in chosen]), metrics.mean_of([s.auc.value for s in chosen])


@dataclass(frozen=True)
class SetFacts:
    """What a set consists of."""

    name: str
    tasks: int
    samples: int
    left_out: int
    """Tasks without a score, which no statistic counts"""
    truncated: int | None
    unparsable: int | None
    pass_at_1: float
    """Mean over tasks"""
    pass_at_k: dict[int, float]
    """For k of 5 and 10 where every task has as many samples"""


@dataclass(frozen=True)
class Comparison:
    """What `evaluate` found."""

    encoder: str
    sets: list[SetFacts]
    rows: list[Row]

    def ranked(self) -> list[Row]:
        """Rows by mean rho: at the value chosen on other sets where there are any, else at the given one."""

        def rho(row: Row) -> float:
            choice = "held out" if "held out" in row.settings else "given"
            found = row.mean(choice)[0]
            return -math.inf if math.isnan(found) else found

        return sorted(self.rows, key=rho, reverse=True)


def facts(labelled: LabelledSet, scored: NDArray[np.bool_], truncated: int | None, unparsable: int | None) -> SetFacts:
    """Counts of a set; scored [T] says which tasks have a score."""
    n = np.array([len(labels) for labels in labelled.passed])
    correct = np.array([sum(labels) for labels in labelled.passed])
    some = n > 0
    smallest = int(n[some].min()) if some.any() else 0
    pass_at_k = {k: float(metrics.pass_at_k(n[some], correct[some], k).mean()) for k in (5, 10) if k <= smallest}
    pass_at_1 = float(np.mean(labelled.pass_at_1[some])) if some.any() else math.nan
    left_out = int(len(labelled) - scored.sum())
    return SetFacts(labelled.name, len(labelled), int(n.sum()), left_out, truncated, unparsable, pass_at_1, pass_at_k)


def compare(
    encoder: str,
    sets: Sequence[LabelledSet],
    methods_of: Callable[[LabelledSet], tuple[list[Method], SetFacts]],
    given: dict[str, float] | None = None,
    resamples: int = metrics.RESAMPLES,
) -> Comparison:
    """Hold every method's score against the labels of every set.

    methods_of   the methods on a set, the same in the same order for each, and its facts
    given        the values of "alpha", "eps" and "min_cluster_size" that are reported as given; GIVEN where left out
    resamples    of the bootstrap; 0 for no intervals

    Raises InputError where a given value was not swept.
    """
    names = [labelled.name for labelled in sets]
    at = GIVEN | (given or {})
    found: list[tuple[list[Method], SetFacts]] = [methods_of(labelled) for labelled in sets]
    targets = [labelled.pass_at_1 for labelled in sets]
    rows = []
    for methods in zip(*(methods for methods, _ in found), strict=True):
        first = methods[0]
        rho = {name: list(_sweep(m, y, metrics.spearman)) for name, m, y in zip(names, methods, targets, strict=True)}
        auc = {name: list(_sweep(m, y, metrics.roc_auc)) for name, m, y in zip(names, methods, targets, strict=True)}
        settings: dict[str, dict[str, Setting]] = {}
        for choice in CHOICES if first.swept else CHOICES[:1]:
            if choice == "held out" and len(sets) < 2:
                continue
            settings[choice] = {}
            for name, method, target in zip(names, methods, targets, strict=True):
                index = _chosen(choice, name, method, rho, at)
                settings[choice][name] = judged(method.uncertainty[index], target, method.values[index], resamples)
        rows.append(Row(first.name, first.swept, first.values, rho, auc, settings))
    return Comparison(encoder, [fact for _, fact in found], rows)


def judged(uncertainty: Array, pass_at_1: Array, value: float, resamples: int) -> Setting:
    """All statistics of one column of uncertainty [T], on the tasks that have a score."""
    scored = ~np.isnan(uncertainty)
    score, target = -uncertainty[scored], pass_at_1[scored]
    curve = metrics.risk_coverage(score, target)
    return Setting(
        value,
        metrics.spearman(score, target, resamples),
        metrics.roc_auc(score, target, resamples),
        metrics.average_precision(score, target),
        curve.area,
        tuple(metrics.accuracy_at(curve, coverage) for coverage in metrics.COVERAGES),
        metrics.calibration(score, target).error,
    )


def _sweep(
    method: Method, pass_at_1: Array, statistic: Callable[[Array, Array, int], metrics.Statistic]
) -> Iterator[float]:
    for uncertainty in method.uncertainty:
        yield statistic(-uncertainty[method.scored], pass_at_1[method.scored], 0).value


def _chosen(choice: str, name: str, method: Method, rho: dict[str, list[float]], at: dict[str, float]) -> int:
    """The index of the value that a method has by this choice on the set of this name."""
    if not method.swept:
        return 0
    if choice == "given":
        distance = np.abs(np.array(method.values) - at[method.swept])
        if distance.min() > 1e-9:
            raise InputError(f"{method.swept}: {at[method.swept]:g} is not among the values that are swept")
        return int(distance.argmin())
    used = [rho[name]] if choice == "best" else [values for other, values in rho.items() if other != name]
    return metrics.best_value(used, method.values, at[method.swept])
