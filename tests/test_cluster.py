"""Classes against scikit-learn's DBSCAN and HDBSCAN, on both executors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import KINDS, distances
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import DBSCAN, HDBSCAN

import fase_gpu as fg
from fase_gpu import reference

BACKENDS = ("torch", "reference")


def relabelled(labels: np.ndarray) -> list[int]:
    """Noise as singletons, then numbers by first appearance."""
    return reference.relabel([(label, i if label == -1 else -1) for i, label in enumerate(labels.tolist())])


def radii(matrix: np.ndarray) -> list[float]:
    """Radii at which the classes differ: below, between, at and above distances that occur."""
    values = np.unique(matrix[matrix > 0])
    picked = values[np.linspace(0, len(values) - 1, 5).astype(int)]
    return sorted({float(v) for v in [values[0] / 2, *picked, *(picked * np.float32(1.001)), 2.5]})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("min_samples", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [2, 3, 10, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_equal_sklearns_dbscan(kind: str, n: int, min_samples: int, backend: str) -> None:
    matrix = distances(kind, n)
    eps = radii(matrix)
    # The minimum as float32 has it, which the float64 executor must not raise above a radius of just that.
    least = float(np.float32(1e-6))
    config = fg.FaseConfig(variant="fixed_eps", eps=eps, min_samples=min_samples, min_distance=least)
    result = fg.score_distances(matrix, config=config, backend=backend)
    assert result.labels is not None
    for a, radius in enumerate(eps):
        model = DBSCAN(eps=radius, min_samples=min_samples, metric="precomputed")
        expected = relabelled(model.fit(matrix.astype(np.float64)).labels_)
        assert result.labels[0, a].tolist() == expected
        assert int(result.n_clusters[0, a]) == len(set(expected))


@pytest.mark.parametrize("min_samples", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_equal_sklearns_dbscan_at_200_samples(kind: str, min_samples: int) -> None:
    test_labels_equal_sklearns_dbscan(kind, 200, min_samples, "torch")


@given(seed=st.integers(0, 10**6), n=st.integers(2, 14), min_samples=st.integers(1, 6))
def test_border_samples_join_the_cluster_that_sklearn_lets_them_join(seed: int, n: int, min_samples: int) -> None:
    """Few different distances: many borders between two clusters."""
    rng = np.random.default_rng(seed)
    matrix = rng.integers(1, 5, (n, n)).astype(np.float32)
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    config = fg.FaseConfig(variant="fixed_eps", eps=(1.0, 2.0, 3.0), min_samples=min_samples)
    found = fg.score_distances(matrix, config=config).labels
    assert found is not None
    for a, radius in enumerate((1.0, 2.0, 3.0)):
        model = DBSCAN(eps=radius, min_samples=min_samples, metric="precomputed").fit(matrix)
        assert found[0, a].tolist() == relabelled(model.labels_)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("min_samples", [1, 2, 3])
def test_padding_and_neighbours_do_not_join(min_samples: int, backend: str) -> None:
    kinds_and_sizes = [("clustered", 5), ("lattice", 9), ("near", 2), ("duplicates", 7)]
    matrices = [distances(kind, n) for kind, n in kinds_and_sizes]
    config = fg.FaseConfig(min_samples=min_samples)
    together = fg.score_distances(matrices, config=config, backend=backend)
    assert together.labels is not None
    for task, matrix in enumerate(matrices):
        alone = fg.score_distances(matrix, config=config, backend=backend)
        assert alone.labels is not None
        n = len(matrix)
        assert torch.equal(together.labels[task, :n], alone.labels[0])
        assert (together.labels[task, n:] == -1).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("min_cluster_size", [2, 3, 9])
@pytest.mark.parametrize("n", [2, 3, 10, 64])
def test_fixed_mcs_is_sklearns_hdbscan(n: int, min_cluster_size: int, backend: str) -> None:
    matrix = distances("clustered", n)
    config = fg.FaseConfig(variant="fixed_mcs", min_cluster_size=min_cluster_size)
    result = fg.score_distances(matrix, config=config, backend=backend)
    assert result.labels is not None
    assert result.eps.isnan().all()
    assert result.margin.isnan().all()
    if n < min_cluster_size:
        assert result.labels[0].tolist() == list(range(n))
    else:
        model = HDBSCAN(min_cluster_size=min_cluster_size, metric="precomputed", allow_single_cluster=True, copy=True)
        assert result.labels[0].tolist() == relabelled(model.fit(matrix.astype(np.float64)).labels_)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "variant", ["scaled_mst_mode", "scaled_mst_mean", "scaled_pdm_mean", "mst_mean", "pdm_mean", "fixed_eps"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_radius_is_the_formula_and_labels_are_those_of_the_reported_radius(
    kind: str, variant: str, backend: str
) -> None:
    matrix = distances(kind, 10)
    alphas = (0.1, 1.0, 1.6, 3.0)
    config = fg.FaseConfig(variant=variant, **{"eps" if variant == "fixed_eps" else "alpha": alphas})
    result = fg.score_distances(matrix, config=config, backend=backend)
    assert result.labels is not None
    mean, all_mean, mode = (float(v[0]) for v in (result.mst_mean, result.pdm_mean, result.mode))
    assert all_mean == pytest.approx(matrix.astype(np.float64).mean(), rel=1e-6)
    scaling = 1 - mean / all_mean
    base = {
        "fixed_eps": 1.0,
        "pdm_mean": all_mean,
        "mst_mean": mean,
        "scaled_pdm_mean": all_mean * scaling,
        "scaled_mst_mean": mean * scaling,
        "scaled_mst_mode": mode * scaling,
    }[variant]
    for a, alpha in enumerate(alphas):
        eps = float(result.eps[0, a])
        # 1 - mean / all_mean cancels where nearly all distances are the minimum.
        assert eps == pytest.approx(alpha * base if base > 0 else alpha * 0.0005, rel=1e-4)
        labels = DBSCAN(eps=eps, min_samples=2, metric="precomputed").fit(matrix.astype(np.float64)).labels_
        assert result.labels[0, a].tolist() == relabelled(labels)


def test_released_semantics_has_its_own_floors() -> None:
    same = np.zeros((4, 4), dtype=np.float32)
    for variant, floor in (("scaled_mst_mode", 0.0005), ("scaled_mst_mean", 0.0005), ("mst_mean", None)):
        config = fg.FaseConfig(alpha=2.0, variant=variant, semantics="released")
        eps = float(fg.score_distances(same, config=config).eps[0])
        assert eps == pytest.approx(2 * floor if floor else 2e-6, rel=1e-6)


@pytest.mark.parametrize("min_samples", [2, 5])
def test_radii_beyond_float32_are_the_nearest_float32_has(min_samples: int) -> None:
    matrix = np.full((3, 3), 0.5, dtype=np.float32)
    config = fg.FaseConfig(variant="fixed_eps", eps=(1e-45, 1e39), min_samples=min_samples)
    result = fg.score_distances(matrix, config=config)
    limits = np.finfo(np.float32)
    assert result.eps[0].tolist() == [limits.tiny, limits.max]
    assert result.margin.isfinite().all()
    assert result.labels is not None
    assert result.labels[0].tolist() == [[0, 1, 2], [0, 0, 0] if min_samples == 2 else [0, 1, 2]]
