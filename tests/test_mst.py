"""Trees against SciPy and the float64 Kruskal, and the order that later stages rely on."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
import torch
from cases import KINDS, SIZES, distances
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import minimum_spanning_tree

from fase_gpu.errors import InputError
from fase_gpu.mst import MAX_SAMPLES, NO_EDGE, Mst, edge_keys, minimum_spanning_trees
from fase_gpu.reference import kruskal


def tree_of(matrices: list[np.ndarray], size: int | None = None) -> Mst:
    """Trees of matrices of any sizes, padded to one."""
    n = [len(m) for m in matrices]
    size = max(n) if size is None else size
    padded = np.zeros((len(matrices), size, size), dtype=np.float32)
    for i, m in enumerate(matrices):
        padded[i, : len(m), : len(m)] = m
    return minimum_spanning_trees(edge_keys(torch.from_numpy(padded)), torch.tensor(n))


def edge_set(tree: Mst, task: int, n: int) -> set[tuple[float, int, int]]:
    ends = tree.key[: n - 1, task].contiguous().view(torch.int64) & 0xFFFFFFFF
    weights = tree.weight[: n - 1, task].tolist()
    return set(zip(weights, (ends >> 16).tolist(), (ends & 0xFFFF).tolist(), strict=True))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_sorted_weights_equal_scipys(kind: str, n: int) -> None:
    matrix = distances(kind, n)
    found = tree_of([matrix]).weight[:, 0].sort().values.numpy()
    expected = np.sort(minimum_spanning_tree(matrix.astype(np.float64)).data)
    assert np.array_equal(found, expected.astype(np.float32))


@pytest.mark.parametrize("n", [2, 3, 10, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_the_tree_is_the_one_that_weight_then_ends_determine(kind: str, n: int) -> None:
    matrix = distances(kind, n)
    assert edge_set(tree_of([matrix]), 0, n) == set(kruskal(matrix.astype(np.float64)))


def test_the_tree_under_ties_is_networkxs_of_the_tie_broken_order() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.integers(1, 4, (12, 12)).astype(np.float32)
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    pairs = sorted((matrix[i, j], i, j) for i in range(12) for j in range(i + 1, 12))
    graph = networkx.Graph()
    for rank, (_, i, j) in enumerate(pairs):
        graph.add_edge(i, j, weight=rank)
    expected = {tuple(sorted(edge)) for edge in networkx.minimum_spanning_edges(graph, data=False)}
    assert {(a, b) for _, a, b in edge_set(tree_of([matrix]), 0, 12)} == expected


def test_padding_and_neighbours_change_nothing() -> None:
    matrices = [distances(kind, n) for kind in ("clustered", "lattice") for n in (2, 3, 10)]
    together = tree_of(matrices, size=13)
    for task, matrix in enumerate(matrices):
        n = len(matrix)
        alone = tree_of([matrix])
        assert torch.equal(together.key[: n - 1, task], alone.key[:, 0])
        assert torch.equal(together.order[:n, task], alone.order[:, 0])
        assert (together.key[n - 1 :, task] == NO_EDGE).all()
        assert together.weight[n - 1 :, task].isinf().all()
        assert together.order[n:, task].tolist() == list(range(n, 13))


@given(seed=st.integers(0, 10**6), n=st.integers(2, 24), levels=st.integers(1, 6))
def test_every_cluster_of_every_radius_is_a_run_of_the_order(seed: int, n: int, levels: int) -> None:
    """Many ties on purpose: `levels` different distances."""
    rng = np.random.default_rng(seed)
    matrix = rng.integers(1, levels + 1, (n, n)).astype(np.float32)
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    tree = tree_of([matrix])
    order = tree.order[:, 0].tolist()
    assert sorted(order) == list(range(n))
    for radius in range(levels + 1):
        graph = networkx.from_numpy_array((matrix <= radius) & (matrix > 0))
        runs = [{order[0]}]
        for sample, weight in zip(order[1:], tree.weight[:, 0].tolist(), strict=True):
            if weight > radius:
                runs.append(set())
            runs[-1].add(sample)
        assert sorted(map(sorted, runs)) == sorted(map(sorted, networkx.connected_components(graph)))


def test_the_largest_float32_distance_still_has_a_key_below_no_edge() -> None:
    largest = float(np.finfo(np.float32).max)
    tree = tree_of([np.array([[0, largest], [largest, 0]], dtype=np.float32)])
    assert tree.weight.tolist() == [[largest]]
    assert float(tree.key[0, 0]) < NO_EDGE


def test_more_samples_than_an_edge_key_holds_is_an_error() -> None:
    with pytest.raises(InputError, match=f"at most {MAX_SAMPLES} in one task, got {MAX_SAMPLES + 1}"):
        edge_keys(torch.zeros(1, 1).expand(1, MAX_SAMPLES + 1, MAX_SAMPLES + 1))
