"""Entropy of partitions and multiscale entropy against SciPy and a numerical integral."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from cases import KINDS, SIZES, distances
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import entropy as scipy_entropy

import fase_gpu as fg
from fase_gpu.entropy import class_entropy
from fase_gpu.reference import entropy_bits, kruskal


def exact_curve(matrix: np.ndarray, low: float, high: float) -> float:
    """The integral of the entropy curve over ln eps, by evaluating the curve between every two steps of it.

    The curve is constant between tree weights, so a midpoint in each interval integrates it exactly; where the weights
    are so many that this is slow, that is what SciPy's trapezoid on a fine grid is for (below).
    """
    n = len(matrix)
    steps = sorted({w for w, _, _ in kruskal(matrix.astype(np.float64))})
    bounds = [low, *(w for w in steps if low < w < high), high]
    total = 0.0
    for a, b in itertools.pairwise(bounds):
        labels = components(matrix, math.sqrt(a * b))
        total += scipy_entropy(np.bincount(labels), base=2) / math.log2(n) * math.log(b / a)
    return total / math.log(high / low)


def components(matrix: np.ndarray, radius: float) -> np.ndarray:
    from scipy.sparse.csgraph import connected_components

    labels: np.ndarray = connected_components((matrix > 0) & (matrix <= radius), directed=False)[1]
    return labels


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("between", [(1e-3, 0.5), (1e-3, 1.0), (1e-8, 1e-7), (3.0, 4.0), (0.2, 0.21)])
@pytest.mark.parametrize("n", [2, 3, 10, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_multiscale_is_the_integral_of_the_entropy_curve(
    kind: str, n: int, between: tuple[float, float], backend: str
) -> None:
    matrix = distances(kind, n)
    config = fg.FaseConfig(multiscale_range=between)
    found = float(fg.score_distances(matrix, config=config, backend=backend).multiscale[0])
    assert found == pytest.approx(exact_curve(matrix, *between), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_multiscale_is_the_integral_at_200_samples(kind: str) -> None:
    test_multiscale_is_the_integral_of_the_entropy_curve(kind, 200, (1e-3, 0.5), "torch")


def test_multiscale_is_what_a_sweep_of_fixed_radii_integrates_to() -> None:
    """The same through the public API alone: trapezoid over 4,000 radii."""
    matrix = distances("clustered", 64)
    radii = np.geomspace(1e-3, 0.5, 4000)
    config = fg.FaseConfig(variant="fixed_eps", eps=radii, return_labels=False)
    result = fg.score_distances(matrix, config=config)
    integral = trapezoid(result.entropy[0].double().numpy(), np.log(radii)) / math.log(500)
    assert float(result.multiscale[0]) == pytest.approx(integral, abs=1.0 / 4000)


@pytest.mark.parametrize("kind", ["random", "clustered"])
def test_multiscale_is_continuous_where_labels_flip(kind: str) -> None:
    matrix = distances(kind, 10)
    weights = sorted(w for w, _, _ in kruskal(matrix.astype(np.float64)))
    config = fg.FaseConfig(variant="fixed_eps", eps=weights[4])
    below, above = matrix.copy(), matrix.copy()
    below[matrix == np.float32(weights[4])] *= np.float32(1 - 1e-6)
    above[matrix == np.float32(weights[4])] *= np.float32(1 + 1e-6)
    a, b = (fg.score_distances(m, config=config) for m in (below, above))
    assert a.n_clusters + 1 == b.n_clusters
    assert abs(float(a.entropy - b.entropy)) > 0.05
    assert float(a.multiscale) == pytest.approx(float(b.multiscale), abs=1e-6)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("between", [(1e-300, 1e300), (5e-324, 1.0), (1e-3, 1e308)])
def test_multiscale_of_an_extreme_range(between: tuple[float, float], backend: str) -> None:
    matrix = distances("clustered", 10)
    found = fg.score_distances(matrix, config=fg.FaseConfig(multiscale_range=between), backend=backend).multiscale
    weights = [w for w, _, _ in kruskal(matrix.astype(np.float64))]
    low, high = map(math.log, between)
    heights = sorted((math.log(w) - low) / (high - low) for w in weights)
    assert max(heights[0], 0) - 1e-6 <= float(found) <= min(heights[-1], 1) + 1e-6


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_entropy_is_that_of_the_labels(kind: str, n: int) -> None:
    alphas = (0.1, 0.5, 1.0, 1.6, 3.0)
    result = fg.score_distances(distances(kind, n), config=fg.FaseConfig(alpha=alphas))
    assert result.labels is not None
    for a in range(len(alphas)):
        counts = np.bincount(result.labels[0, a].numpy())
        bits = scipy_entropy(counts, base=2)
        assert float(result.bits[0, a]) == pytest.approx(bits, abs=1e-6)
        assert float(result.entropy[0, a]) == pytest.approx(bits / math.log2(n), abs=1e-6)
        assert int(result.n_clusters[0, a]) == len(counts)


@given(st.lists(st.integers(0, 7), min_size=2, max_size=40), st.randoms(use_true_random=False))
def test_equal_class_sizes_give_equal_entropies_bit_for_bit(labels: list[int], random: object) -> None:
    shuffled = list(labels)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    size = max(len(labels), 8)
    columns = torch.tensor([labels, [7 - label for label in shuffled]]).T
    classes = torch.arange(size)[:, None].repeat(1, 2)
    classes[: len(labels)] = columns
    # Padding holds classes of its own, wherever they are numbered.
    if size > len(labels):
        classes[len(labels) :] = size - 1
    found = class_entropy(classes[:, None], torch.tensor([len(labels)] * 2))
    assert found.normalised[0, 0] == found.normalised[0, 1]
    assert float(found.bits[0, 0]) == pytest.approx(entropy_bits(labels), abs=1e-11)


@pytest.mark.parametrize("n", [2, 3, 7, 10, 100, 1000])
def test_one_class_is_exactly_0_and_singletons_exactly_1(n: int) -> None:
    one = class_entropy(torch.zeros(n, 1, 1, dtype=torch.int64), torch.tensor([n]))
    each = class_entropy(torch.arange(n)[:, None, None], torch.tensor([n]))
    assert one.normalised.tolist() == [[0.0]]
    assert one.bits.tolist() == [[0.0]]
    assert each.normalised.tolist() == [[1.0]]
