"""The mode against scipy.stats.gaussian_kde and scipy.signal.find_peaks, and the quick search against the full one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from cases import KINDS, SIZES, distances
from scipy.signal import find_peaks
from scipy.stats import gaussian_kde

from fase_gpu import density
from fase_gpu.config import FaseConfig
from fase_gpu.density import peak_mode, weight_mode, weight_stats
from fase_gpu.reference import kruskal
from fase_gpu.reference import weight_mode as reference_mode

TIE = 1e-6
"""Two densities that differ by less, relatively, are a tie, and either grid point is right (SPEC 4)."""


def columns(weights: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ascending weights [M, T] with +inf behind, and their numbers [T]."""
    size = max(map(len, weights))
    padded = [np.pad(np.sort(w), (0, size - len(w)), constant_values=np.inf) for w in weights]
    return torch.from_numpy(np.stack(padded, 1).astype(np.float32)), torch.tensor([len(w) for w in weights])


def assert_is_a_largest(mode: float, weights: np.ndarray, grid: int) -> None:
    points = np.linspace(weights.min(), weights.max(), grid)
    values = gaussian_kde(weights)(points)
    at = int(np.abs(points - mode).argmin())
    assert points[at] == pytest.approx(mode, rel=1e-9)
    assert values[at] >= values.max() * (1 - TIE)


@pytest.mark.parametrize("grid", [2, 10, 1000, 1733])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_mode_is_scipys_argmax_on_the_grid(kind: str, n: int, grid: int) -> None:
    weights = np.array([w for w, _, _ in kruskal(distances(kind, n).astype(np.float64))])
    column, m = columns([weights])
    mode = float(weight_mode(column, weight_stats(column, m), grid)[0])
    if weights.min() == weights.max():
        assert mode == pytest.approx(weights[0], rel=1e-12)
    else:
        assert_is_a_largest(mode, weights, grid)
    assert reference_mode(weights.tolist(), FaseConfig(grid=grid)) == pytest.approx(mode, rel=1e-9)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_released_peaks_are_scipys(kind: str, n: int) -> None:
    weights = np.array([w for w, _, _ in kruskal(distances(kind, n).astype(np.float64))])
    if weights.min() == weights.max():
        pytest.skip("all weights are equal: no density")
    points = np.linspace(weights.min(), weights.max(), 1000)
    values = gaussian_kde(weights)(points)
    peaks, _ = find_peaks(values)
    column, m = columns([weights])
    step = points[1] - points[0]
    for peak, chosen in (("max_peak", -1), ("min_peak", 0)):
        expected = points[peaks[chosen]] if len(peaks) > 1 else points[values.argmax()]
        found = float(peak_mode(column, weight_stats(column, m), 1000, peak)[0])
        # A flat top may be cut by rounding one point to either side.
        assert found == pytest.approx(expected, abs=1.01 * step), (peak, len(peaks))
        config = FaseConfig(semantics="released", peak=peak)
        assert reference_mode(weights.tolist(), config) == pytest.approx(expected, abs=1.01 * step)


def test_a_flat_peak_counts_once_at_its_middle() -> None:
    from fase_gpu.reference import _peaks

    values = [0.0, 1, 1, 1, 0, 2, 2, 0, 0, 3, 3]
    assert _peaks(values) == find_peaks(values)[0].tolist() == [2, 5]


def test_symmetric_weights_take_the_first_of_their_two_modes() -> None:
    column, m = columns([np.array([0.25, 0.25, 0.25, 0.5, 0.75, 0.75, 0.75])])
    mode = float(weight_mode(column, weight_stats(column, m), 1000)[0])
    values = gaussian_kde(column[:, 0].double().numpy())
    assert mode < 0.5
    assert values(mode) == pytest.approx(values(1.0 - mode), rel=1e-6)


Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
SHAPES: dict[str, Draw] = {
    "uniform": lambda rng, shape: rng.random(shape),
    "exponential": lambda rng, shape: rng.exponential(0.05, shape),
    "lognormal": lambda rng, shape: rng.lognormal(-5, 2, shape),
    "two groups": lambda rng, shape: np.where(
        rng.random(shape) < 0.5, rng.normal(0.02, 0.002, shape), rng.normal(0.1, 0.02, shape)
    ),
    "few values": lambda rng, shape: rng.integers(1, 7, shape) * 0.01,
    "many duplicates": lambda rng, shape: np.where(rng.random(shape) < 0.6, 1e-6, rng.random(shape)),
    "an outlier": lambda rng, shape: np.where(np.arange(shape[0])[:, None] == 0, 1.0, 1e-3 * rng.random(shape)),
}


def disagreements(shape: str, m: int, tasks: int, seed: int) -> int:
    """Tasks in which the quick search finds another grid point than the full one, ties not counted."""
    drawn = SHAPES[shape](np.random.default_rng(seed), (m, tasks))
    weights = torch.from_numpy(np.sort(drawn.clip(1e-6), 0).astype(np.float32))
    stats = weight_stats(weights, torch.full((tasks,), m))
    quick = weight_mode(weights, stats, 1000)
    values = density._full_density(density._unit_interval(weights, stats), stats.narrowness, 1000)
    full = density._at(density._first_maximum(values), stats, 1000)
    other = torch.nonzero(quick != full).flatten()
    point = ((quick - stats.low) / stats.spread * 999).round().to(torch.int64)[other]
    found = values[:, other].gather(0, point[None])[0]
    return int((found < values[:, other].amax(0) * (1 - TIE)).sum())


@pytest.mark.parametrize("m", [2, 3, 4, 9, 19, 49, 99])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_quick_search_finds_what_the_full_one_does(shape: str, m: int) -> None:
    assert disagreements(shape, m, tasks=400, seed=m) == 0


@pytest.mark.parametrize("m", [1000, 1369])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_quick_search_holds_for_many_weights(shape: str, m: int) -> None:
    assert disagreements(shape, m, tasks=16, seed=m) == 0


@pytest.mark.parametrize("m", [2, 9, 99, 499, 1369])
@pytest.mark.parametrize("shape", SHAPES)
def test_float32_density_is_within_the_doubt_that_the_quick_search_allows(shape: str, m: int) -> None:
    drawn = SHAPES[shape](np.random.default_rng(m), (m, 50))
    weights = torch.from_numpy(np.sort(drawn.clip(1e-6), 0).astype(np.float32))
    stats = weight_stats(weights, torch.full((50,), m))
    centre, points = density._unit_interval(weights, stats), torch.arange(1000.0)[:, None]
    exact = density._density(points.double(), centre, stats.narrowness, 1000)
    single = density._density(points, centre.float(), stats.narrowness.float(), 1000).double()
    near = exact >= 0.99 * exact.amax(0)
    error = ((single - exact).abs() / exact)[near].max()
    assert error <= (density._FLOAT32_DOUBT + m * density._DOUBT_PER_TERM) / 2


@pytest.mark.slow
def test_the_quick_search_is_exact_on_a_million_random_tasks() -> None:
    """Seven shapes of weights at n = 10 and n = 5, 2^20 tasks in all."""
    found = [disagreements(shape, m, 8192, seed) for shape in SHAPES for m in (4, 9) for seed in range(10)]
    assert 8192 * len(found) >= 10**6
    assert sum(found) == 0
