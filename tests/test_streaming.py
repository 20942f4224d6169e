"""Large tasks without their distance matrices: equal to what the matrices give, and small in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from cases import KINDS, embeddings, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import minimum_spanning_tree
from test_distance import DTYPES, KINDS_OF_SPREAD, spread_out

import fase_gpu as fg
from fase_gpu import executor, streaming
from fase_gpu.batching import EmbeddingSource, Rows, padded_size
from fase_gpu.config import RADIUS_VARIANTS
from fase_gpu.mst import NO_EDGE, linked_tree
from fase_gpu.reference import kruskal
from fase_gpu.results import SCORES, Status

TILE = 96
"""Samples on each side of a tile in these tests: a multiple of what a BLAS takes at once, like the real one."""


@pytest.fixture(autouse=True)
def _streams_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task of two samples is streamed, in small tiles."""
    monkeypatch.setattr(executor, "MOST_DENSE", 1)
    monkeypatch.setitem(streaming._TILE, "cpu", TILE)


def source_of(*encoders: torch.Tensor) -> EmbeddingSource:
    """One task of all rows."""
    n = np.array([encoders[0].shape[0]])
    return EmbeddingSource(tuple(Rows(x, np.zeros(1, dtype=np.int64), n) for x in encoders), int(n[0]))


def scan_of(*encoders: torch.Tensor, min_distance: float = 1e-6, released: bool = False) -> streaming.TileScan:
    ready = [streaming._make_ready(rows, 0) for rows in source_of(*encoders).rows]
    return streaming.TileScan(ready, encoders[0].shape[0], min_distance, released)


def tiled_matrix(scan: streaming.TileScan) -> torch.Tensor:
    """The matrix [n, n] whose tiles are streamed."""
    matrix = torch.zeros(scan.n, scan.n)
    order = torch.arange(scan.n)
    blocks = range(-(-scan.n // scan.tile))
    for i in blocks:
        for j in blocks[i:]:
            tile = scan._distances(order, i, j)
            place = (i * scan.tile, j * scan.tile)
            matrix[place[0] : place[0] + tile.shape[0], place[1] : place[1] + tile.shape[1]] = tile
    upper = matrix.triu(1)
    return upper + upper.T


def same_scores(streamed: fg.FaseResult, dense: fg.FaseResult) -> None:
    """Labels and classes to the last bit, sums as near as another order of adding leaves them."""
    for name in SCORES:
        torch.testing.assert_close(
            getattr(streamed, name), getattr(dense, name), rtol=2e-7, atol=2e-7, equal_nan=True, msg=name
        )
    for name in ("entropy", "bits", "mode", "n_clusters", "status"):
        assert torch.equal(getattr(streamed, name).nan_to_num(), getattr(dense, name).nan_to_num()), name
    assert streamed.labels is not None
    assert dense.labels is not None
    assert torch.equal(streamed.labels, dense.labels)


CONFIGS = {
    variant: fg.FaseConfig(variant=variant, eps=0.3 if variant == "fixed_eps" else None) for variant in RADIUS_VARIANTS
}
CONFIGS |= {
    "sweep": fg.FaseConfig(alpha=(0.1, 0.8, 1.6, 3.0)),
    "released": fg.FaseConfig(semantics="released", alpha=(0.5, 1.5)),
    "min_distance": fg.FaseConfig(min_distance=1e-3),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_matrix(kind: str, config: fg.FaseConfig) -> None:
    for n in (2, TILE, 300):
        x = torch.from_numpy(embeddings(kind, n))
        scan = scan_of(x, min_distance=config.min_distance)
        dense = fg.score_distances(tiled_matrix(scan), config=config)
        same_scores(fg.score_embeddings(x, offsets=[0, n], config=config), dense)


@pytest.mark.parametrize("n", [TILE - 1, TILE, TILE + 1, 3 * TILE, 700])
@pytest.mark.parametrize("kind", ["clustered", "duplicates", "lattice"])
def test_sizes_about_a_tile(kind: str, n: int) -> None:
    x = torch.from_numpy(embeddings(kind, n))
    dense = fg.score_distances(tiled_matrix(scan_of(x)))
    same_scores(fg.score_embeddings(x, offsets=[0, n]), dense)


@pytest.mark.parametrize("variant", ["union", "intersection", "structural"])
def test_classes_are_joined_as_ever(variant: str) -> None:
    x = torch.from_numpy(embeddings("clustered", 300))
    classes = [np.random.default_rng(0).integers(60, size=300).tolist()]
    config = fg.FaseConfig(variant=variant, alpha=(0.5, 1.6))
    dense = fg.score_distances(tiled_matrix(scan_of(x)), config=config, classes=classes)
    same_scores(fg.score_embeddings(x, offsets=[0, 300], config=config, classes=classes), dense)


@pytest.mark.parametrize("kind", KINDS)
def test_edges_are_kruskals(kind: str) -> None:
    x = torch.from_numpy(embeddings(kind, 150))
    scan = scan_of(x)
    expected = kruskal(tiled_matrix(scan).double().numpy())
    edges = streaming.spanning_edges(scan, 150, x.device)
    assert list(zip(*(part.tolist() for part in edges), strict=True)) == expected


def test_long_chains_of_components() -> None:
    """Along an arc with growing steps, the nearest of every sample is the one before it: all join in one round."""
    for n in (2, 3, 64, 90, 129):
        angle = torch.linspace(1, 2, n).cumsum(0).double()
        angle = angle[np.random.default_rng(n).permutation(n)] / angle[-1]
        x = torch.stack([angle.cos(), angle.sin()], 1)
        scan = scan_of(x, min_distance=1e-12)
        edges = streaming.spanning_edges(scan, n, x.device)
        expected = kruskal(tiled_matrix(scan).double().numpy())
        assert list(zip(*(part.tolist() for part in edges), strict=True)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_in_which_samples_are_laid_out_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.from_numpy(embeddings(kind, 500))
    free = scan_of(x)
    monkeypatch.setattr(streaming, "_place_does_not_matter", lambda *_: False)
    fixed = scan_of(x)
    assert not fixed.any_order
    found = [streaming.spanning_edges(scan, 500, x.device) for scan in (free, fixed)]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_does_not_depend_on_its_place(dtype: torch.dtype) -> None:
    if not streaming._place_does_not_matter(128, dtype, 768, torch.get_num_threads()):
        pytest.skip("with this BLAS it does: the numbers are right, but every round scans all pairs")
    x = torch.from_numpy(embeddings("near" if dtype == torch.float32 else "random", 300))
    assert scan_of(x).ready[0].rows.dtype == dtype
    assert scan_of(x).any_order


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", [7, 384, 4096])
@pytest.mark.parametrize("kind", KINDS_OF_SPREAD)
def test_error_is_below_1e_6(kind: str, d: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(streaming._TILE, "cpu", 6)
    for x in spread_out(kind, d, dtype)[:2]:
        unit = x.double() / x.double().norm(dim=-1, keepdim=True)
        exact = (unit[:, None] - unit).square().sum(-1) / 2
        error = (tiled_matrix(scan_of(x, min_distance=1e-30)).double() - exact).abs().max()
        assert error <= 1e-6
        if kind == "near" and d > 7 and dtype == torch.float32:
            assert error <= 1e-9


@pytest.mark.parametrize("length", [1e-30, 1e30])
def test_length_does_not_matter(length: float) -> None:
    x = torch.from_numpy(embeddings("near", 200))
    scaled = x.clone()
    scaled[::3] *= length
    plain, far = (tiled_matrix(scan_of(rows)) for rows in (x, scaled))
    torch.testing.assert_close(far, plain, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_of_distances_is_the_closed_form(kind: str) -> None:
    """n^2 - |sum of unit rows|^2, and what raising distances has added."""
    x = torch.from_numpy(embeddings(kind, 300)).double()
    scan = scan_of(x.float(), min_distance=1e-4)
    streaming.spanning_edges(scan, 300, x.device)
    unit = x / x.norm(dim=1, keepdim=True)
    low = (1e-4 - (1 - unit @ unit.T)).clamp_min(0).fill_diagonal_(0)
    expected = 300**2 - unit.sum(0).square().sum() + low.sum()
    assert float(scan.total) == pytest.approx(float(expected), abs=300**2 * 1e-7)


def test_two_encoders_are_averaged() -> None:
    a, b = (torch.from_numpy(embeddings(kind, 200)) for kind in ("clustered", "near"))
    released = scan_of(a, b, released=True)
    matrix = (tiled_matrix(scan_of(a)) + tiled_matrix(scan_of(b))) / 2
    expected = (matrix.double() * 1e6).round().div(1e6).float()
    assert torch.equal(tiled_matrix(released), expected)
    streamed = streaming.stream_tree(source_of(a, b), 0, 200, 1e-6, True)
    weights = np.sort(minimum_spanning_tree(expected.double().numpy()).data).astype(np.float32)
    assert np.array_equal(streamed.tree.weight[:, 0].sort().values.numpy(), weights)


def test_rows_are_found_by_their_index() -> None:
    x = torch.from_numpy(embeddings("clustered", 300))
    index = np.random.default_rng(0).integers(300, size=250)
    start, n = np.array([50]), np.array([200])
    source = EmbeddingSource((Rows(x, start, n, index),), 200)
    found = streaming.stream_tree(source, 0, 200, 1e-6, False)
    expected = streaming.stream_tree(source_of(x[index[50:]]), 0, 200, 1e-6, False)
    assert all(torch.equal(a, b) for a, b in zip(found.tree, expected.tree, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_bad_tasks_are_statuses_and_leave_their_neighbours_alone(dtype: torch.dtype) -> None:
    x = torch.from_numpy(embeddings("clustered", 120)).to(dtype)
    bad = torch.stack([x, x, x, x])
    bad[0, 100, 3] = torch.nan
    bad[2, 7] = 0
    bad[3, 7] = 0
    bad[3, 110, 0] = torch.inf
    result = fg.score_embeddings(bad)
    assert result.status.tolist() == [Status.NOT_FINITE, Status.OK, Status.ZERO_VECTOR, Status.NOT_FINITE]
    assert result.entropy.isnan().tolist() == [True, False, True, True]
    assert result.n_clusters.tolist()[::2] == [0, 0]
    assert result.labels is not None
    assert (result.labels[[0, 2, 3]] == -1).all()
    alone = fg.score_embeddings(x[None])
    for name in SCORES:
        assert torch.equal(getattr(alone, name)[0], getattr(result, name)[1])


def test_a_task_scores_the_same_beside_others() -> None:
    parts = [embeddings("clustered", n) for n in (130, 1, 200, 131, 0, 3)]
    together = fg.score_embeddings([torch.from_numpy(part) for part in parts])
    assert together.status.tolist() == [0, Status.SINGLE, 0, 0, Status.EMPTY, 0]
    for i in (0, 2, 3, 5):
        alone = fg.score_embeddings(torch.from_numpy(parts[i])[None])
        for name in SCORES:
            assert torch.equal(getattr(alone, name)[0], getattr(together, name)[i])


@pytest.mark.parametrize(("config", "most"), [(fg.FaseConfig(), 100_000), (fg.FaseConfig(min_samples=3), 65_536)])
def test_too_many_samples_are_refused_before_the_work(config: fg.FaseConfig, most: int) -> None:
    x = torch.ones(1, 1).expand(most + 1, 1)
    message = f"samples: expected at most {most} in one task, got {most + 1}"
    assert refused(lambda: fg.score_embeddings(x, offsets=[0, most + 1], config=config)) == message


class NoisyScan:
    """A scan of a matrix whose distances are never twice the same."""

    any_order = False
    total = torch.zeros(1, dtype=torch.float64)

    def __init__(self, matrix: torch.Tensor, seed: int) -> None:
        self.matrix = matrix
        self.noise = torch.Generator().manual_seed(seed)

    def __call__(self, order: torch.Tensor, wanted: torch.Tensor, component: torch.Tensor, best: torch.Tensor) -> bool:
        noise = torch.randint(-2, 3, self.matrix.shape, generator=self.noise, dtype=torch.int32)
        bits = (self.matrix.view(torch.int32) + noise).to(torch.int64)
        keys = bits << 32 | torch.arange(len(order))
        keys[component[:, None] == component] = torch.iinfo(torch.int64).max
        best.copy_(torch.where(wanted, keys.amin(1), best))
        return bool(wanted.any())


@given(seed=st.integers(0, 10**6), n=st.integers(2, 40))
@settings(max_examples=60)
def test_distances_that_change_from_round_to_round_still_give_a_tree(seed: int, n: int) -> None:
    matrix = torch.full((n, n), 0.5)
    edges = streaming.spanning_edges(NoisyScan(matrix, seed), n, matrix.device)
    graph = networkx.Graph(list(zip(edges.low.tolist(), edges.high.tolist(), strict=True)))
    assert networkx.is_tree(graph)
    assert len(graph) == n
    torch.testing.assert_close(edges.weight, torch.full((n - 1,), 0.5), rtol=1e-6, atol=0)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), padding=st.integers(0, 4))
def test_clusters_at_every_radius_are_runs_of_the_linked_order(seed: int, n: int, padding: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.triu(rng.integers(1, 6, (n, n)), 1).astype(np.float64)
    edges = kruskal(matrix + matrix.T)
    weight, low, high = (torch.tensor([edge[k] for edge in edges]) for k in range(3))
    tree = linked_tree(weight.float(), low.long(), high.long(), n + padding)
    order = tree.order[:, 0].tolist()
    assert sorted(order[:n]) == list(range(n))
    assert order[n:] == list(range(n, n + padding))
    assert tree.weight[max(0, n - 1) :].isinf().all()
    assert (tree.key[max(0, n - 1) :] == NO_EDGE).all()
    assert sorted(tree.key[: n - 1, 0].tolist()) == list(range(n - 1))
    graph = networkx.empty_graph(n)
    for rank, (_, i, j) in enumerate(edges):
        graph.add_edge(i, j)
        runs = [{order[0]}]
        for position, key in enumerate(tree.key[: n - 1, 0].tolist()):
            if key > rank:
                runs.append(set())
            runs[-1].add(order[position + 1])
        assert sorted(map(sorted, runs)) == sorted(map(sorted, networkx.connected_components(graph)))


def test_an_order_of_100_000_samples_is_a_matter_of_a_second() -> None:
    n = 100_000
    rng = np.random.default_rng(0)
    child = torch.from_numpy(rng.permutation(np.arange(1, n)))
    parent = (torch.from_numpy(rng.random(n - 1)) * child).long()
    tree = linked_tree(torch.arange(n - 1).float(), parent, child, padded_size(n))
    assert torch.equal(tree.order[:, 0].sort().values, torch.arange(padded_size(n)))


SCRIPT = """
import json, resource
import numpy as np
import torch
import fase_gpu as fg
from fase_gpu.results import SCORES

n, d = 20_000, 16
rng = np.random.default_rng(0)
centres = rng.standard_normal((n // 20, d))
x = (centres[rng.integers(len(centres), size=n)] + 0.1 * rng.standard_normal((n, d))).astype(np.float32)
x[: n // 50] = x[n // 50 : n // 25]
fg.score_embeddings(x[:4], offsets=[0, 2, 4])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = fg.score_embeddings(x, offsets=[0, n], config=fg.FaseConfig(alpha=(0.5, 1.6)))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

# Prim's algorithm, which needs a row of distances at a time.
unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1)[:, None]
nearest, parent = np.full(n, np.inf), np.zeros(n, dtype=np.int64)
outside = np.ones(n, dtype=bool)
weights, ends, latest, total = [], [], 0, 0.0
for _ in range(n - 1):
    outside[latest] = False
    distance = np.maximum(1 - unit @ unit[latest], 1e-6)
    total += distance.sum() - distance[latest]
    closer = outside & (distance < nearest)
    nearest[closer], parent[closer] = distance[closer], latest
    latest = int(np.where(outside, nearest, np.inf).argmin())
    weights.append(nearest[latest])
    ends.append((parent[latest], latest))
total += np.maximum(1 - unit @ unit[latest], 1e-6).sum() - 1e-6

from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

weights, ends = np.array(weights), np.array(ends)
agree = []
for a in range(2):
    eps = float(result.eps[0, a])
    # An edge that is nearer to the radius than rounding may lie on either side of it.
    found = result.labels[0, a].numpy()
    for slack in (-1e-6, 1e-6):
        near = weights <= eps + slack
        graph = coo_matrix((np.ones(near.sum()), ends[near].T), shape=(n, n))
        _, expected = connected_components(graph, directed=False)
        pairs = len(np.unique(np.stack([found, expected]), axis=1).T)
        # Each side a refinement: as many pairs of classes as classes of the finer one.
        finer = len(np.unique(found if slack > 0 else expected))
        agree.append(int(pairs) - finer)
print(json.dumps({
    "kilobytes": peak,
    "status": result.status.tolist(),
    "pdm_mean": [float(result.pdm_mean[0]), total / n**2],
    "mst_mean": [float(result.mst_mean[0]), float(weights.mean())],
    "clusters": result.n_clusters.tolist(),
    "disagreements": agree,
}))
"""


@pytest.mark.slow
def test_twenty_thousand_samples_in_less_than_a_gigabyte() -> None:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    done = subprocess.run(command, cwd=Path(__file__).parent, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["kilobytes"] < 10**6
    assert found["status"] == [Status.OK]
    assert found["pdm_mean"][0] == pytest.approx(found["pdm_mean"][1], rel=1e-6)
    assert found["mst_mean"][0] == pytest.approx(found["mst_mean"][1], abs=1e-6)
    assert found["disagreements"] == [0, 0, 0, 0]
    assert 1 < found["clusters"][0][1] < found["clusters"][0][0] < 20_000
