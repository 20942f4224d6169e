"""Statistics of the evaluation, against SciPy, scikit-learn and counting by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import average_precision_score, roc_auc_score

from fase_gpu.errors import InputError
from fase_gpu.evaluation import metrics


def tasks(count: int, seed: int, levels: int = 11) -> tuple[np.ndarray, np.ndarray]:
    """Scores and pass@1 with many ties, correlated."""
    rng = np.random.default_rng(seed)
    rate = rng.integers(0, levels, count) / (levels - 1)
    return np.round(rate + rng.normal(0, 0.5, count), 1), rate


@pytest.mark.parametrize(("n", "c"), [(10, 0), (10, 3), (10, 10), (5, 1), (1, 1)])
def test_pass_at_k_is_the_share_of_draws_with_a_correct_sample(n: int, c: int) -> None:
    labels = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        draws = list(itertools.combinations(labels, k))
        expected = sum(map(any, draws)) / len(draws)
        assert metrics.pass_at_k([n], [c], k)[0] == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_of_many_samples_does_not_overflow() -> None:
    (found,) = metrics.pass_at_k([10_000], [3], 5_000)
    exact = 1 - math.comb(9_997, 5_000) / math.comb(10_000, 5_000)
    assert found == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("n", "c", "k", "message"), [([3], [4], 1, "from 0 to n"), ([3], [1], 4, "at most 3"), ([3], [1], 0, "at least 1")]
)
def test_pass_at_k_refuses_what_cannot_be(n: list[int], c: list[int], k: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metrics.pass_at_k(n, c, k)


@pytest.mark.parametrize("seed", range(5))
def test_statistics_are_those_of_the_libraries(seed: int) -> None:
    score, rate = tasks(60, seed)
    assert metrics.spearman(score, rate).value == pytest.approx(stats.spearmanr(score, rate).statistic, abs=1e-12)
    assert metrics.roc_auc(score, rate).value == pytest.approx(roc_auc_score(rate == 1, score), abs=1e-12)
    assert metrics.average_precision(score, rate) == pytest.approx(average_precision_score(rate == 1, score), abs=1e-12)


def test_intervals_are_those_of_a_plain_bootstrap() -> None:
    score, rate = tasks(40, 7)
    found = metrics.spearman(score, rate)
    draws = np.random.default_rng(99).integers(0, 40, (1000, 40))
    values = [stats.spearmanr(score[draw], rate[draw]).statistic for draw in draws]
    low, high = np.nanquantile(values, [0.025, 0.975])
    assert found.low < found.value < found.high
    assert found.low == pytest.approx(low, abs=0.05)
    assert found.high == pytest.approx(high, abs=0.05)
    assert metrics.spearman(score, rate) == found  # the draws are fixed
    area = metrics.roc_auc(score, rate)
    values = [roc_auc_score(rate[d] == 1, score[d]) for d in draws if 0 < (rate[d] == 1).sum() < 40]
    assert [area.low, area.high] == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.05)


@pytest.mark.parametrize(
    ("score", "rate", "rho", "auc"),
    [
        ([0.1, 0.2, 0.3], [1, 1, 1], "every task has pass@1 1", "every task is entirely correct"),
        ([0.1, 0.2, 0.3], [0, 0, 0], "every task has pass@1 0", "no task is entirely correct"),
        ([0.1, 0.2, 0.3], [0, 0.5, 0], "", "no task is entirely correct"),
        ([0.5, 0.5, 0.5], [0, 0.5, 1], "every task has the same score", "every task has the same score"),
        ([0.5], [1], "fewer than two tasks", "fewer than two tasks"),
        ([], [], "fewer than two tasks", "fewer than two tasks"),
    ],
)
def test_undefined_has_a_reason(score: list[float], rate: list[float], rho: str, auc: str) -> None:
    for found, reason in ((metrics.spearman(score, rate), rho), (metrics.roc_auc(score, rate), auc)):
        assert found.undefined == reason
        assert math.isnan(found.value) == bool(reason)
    assert math.isnan(metrics.average_precision(score, rate)) == bool(auc)


def test_nan_is_refused() -> None:
    with pytest.raises(InputError, match="leave tasks without a score out"):
        metrics.spearman([0.1, math.nan], [0, 1])


def test_risk_coverage_by_hand() -> None:
    curve = metrics.risk_coverage([0.9, 0.5, 0.5, 0.1], [1.0, 1.0, 0.0, 0.0])
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert curve.accuracy.tolist() == [1, 0.75, pytest.approx(2 / 3), 0.5]  # the two that tie count half each
    assert curve.area == pytest.approx(1 - (1 + 0.75 + 2 / 3 + 0.5) / 4)
    assert metrics.accuracy_at(curve, 0.5) == 0.75
    assert metrics.accuracy_at(curve, 0.01) == 1


def test_risk_coverage_does_not_depend_on_the_order() -> None:
    score, rate = tasks(50, 3)
    order = np.random.default_rng(0).permutation(50)
    first, second = metrics.risk_coverage(score, rate), metrics.risk_coverage(score[order], rate[order])
    assert first.accuracy == pytest.approx(second.accuracy, abs=1e-12)
    assert first.accuracy[-1] == pytest.approx(rate.mean())


def test_calibration_holds_out() -> None:
    score, rate = tasks(200, 5)
    found = metrics.calibration(score, rate)
    everything = IsotonicRegression(out_of_bounds="clip").fit(score, rate).predict(score)
    assert not np.allclose(found.expected, everything)
    assert np.abs(found.expected - everything).mean() < 0.1
    assert found.error < 0.1
    assert sum(count for *_, count in found.bins) == 200
    assert [mean for mean, *_ in found.bins] == sorted(mean for mean, *_ in found.bins)


def test_a_group_is_held_out_whole() -> None:
    groups = [f"task {i % 7}" for i in range(50)]
    found = metrics.folds(groups)
    assert len(found) == 5
    assert np.sum(found, axis=0).tolist() == [1] * 50
    for mask in found:
        assert not {g for g, held in zip(groups, mask, strict=True) if held} & {
            g for g, held in zip(groups, mask, strict=True) if not held
        }
    # A score that only tells tasks apart says nothing of tasks that were not seen.
    rng = np.random.default_rng(4)
    score = np.repeat(rng.random(40), 10)
    rate = np.repeat(rng.integers(0, 2, 40), 10).astype(float)
    apart = metrics.calibration(score, rate, np.repeat(np.arange(40), 10).tolist())
    together = metrics.calibration(score, rate)
    assert np.mean((apart.expected - rate) ** 2) > np.mean((together.expected - rate) ** 2)


def test_a_score_that_says_nothing_is_calibrated_to_the_mean() -> None:
    rng = np.random.default_rng(1)
    rate = rng.integers(0, 2, 400).astype(float)
    found = metrics.calibration(np.zeros(400), rate)
    assert found.expected == pytest.approx(rate.mean(), abs=0.05)
    assert len(found.bins) <= 5  # a fold each: equal expectations stay together


def test_bins_are_those_of_scikit_learn_where_nothing_ties() -> None:
    rng = np.random.default_rng(2)
    expected = rng.random(100)
    observed = (rng.random(100) < expected).astype(float)
    truth, mean = calibration_curve(observed, expected, n_bins=10, strategy="quantile")
    found = metrics.calibration_bins(expected, observed)
    assert [b[0] for b in found] == pytest.approx(mean.tolist())
    assert [b[1] for b in found] == pytest.approx(truth.tolist())


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_hold_out(count: int) -> None:
    found = metrics.calibration([0.5] * count, [1.0] * count)
    assert math.isnan(found.error)
    assert found.bins == []
