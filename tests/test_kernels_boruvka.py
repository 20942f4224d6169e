"""kernels/boruvka.py: the tree is the oracle's on the same matrix, edge for edge, whatever the ties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import triton
import triton.language as tl
from cases import KINDS, distances
from fase_gpu.kernels import boruvka
from fase_gpu.kernels.boruvka import launch_boruvka
from scipy.sparse.csgraph import minimum_spanning_tree
from trees import DEVICE, NO_EDGE, keys

from fase_gpu.reference import kruskal
from fase_gpu.results import Status

POISON = -77
Matrix = npt.NDArray[np.float32]


def spanned(
    matrices: Sequence[Matrix],
    size: int,
    *,
    task: Sequence[int] | None = None,
    status: Sequence[int] | None = None,
    beyond: float = np.nan,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Trees [W, size] and totals [W] of a matrix per task, one slot each unless `task` says otherwise."""
    slots = list(range(len(matrices)) if task is None else task)
    dist = torch.full((len(slots), size, size), beyond)
    for slot, t in enumerate(slots):
        if t >= 0:
            dist[slot, : len(matrices[t]), : len(matrices[t])] = torch.from_numpy(matrices[t])
    tree = torch.full((len(slots), size), POISON, device=DEVICE)
    total = torch.full((len(slots),), torch.nan, dtype=torch.float64, device=DEVICE)
    launch_boruvka(
        dist.to(DEVICE),
        torch.tensor([len(matrix) for matrix in matrices], device=DEVICE),
        torch.tensor(slots, device=DEVICE),
        torch.tensor([Status.OK] * len(slots) if status is None else status, dtype=torch.int8, device=DEVICE),
        torch.full((len(slots), 3, size), POISON, device=DEVICE),
        tree,
        total,
    )
    return tree.cpu().numpy(), total.cpu().numpy()


def expected(matrix: Matrix, size: int) -> npt.NDArray[np.int64]:
    return keys(kruskal(matrix.astype(np.float64)), size)


def levels(n: int, count: int, seed: int = 0) -> Matrix:
    """A matrix of few different distances."""
    matrix = np.triu(np.random.default_rng(seed).integers(1, count + 1, (n, n)), 1).astype(np.float32)
    return matrix + matrix.T


def path(n: int, seed: int = 0) -> Matrix:
    """Distances along a line of which the samples are in random order: components hook in long chains."""
    place = np.random.default_rng(seed).permutation(n)
    gaps = np.cumsum(1 + np.arange(n) / n)[place]
    matrix: Matrix = np.abs(gaps[:, None] - gaps[None, :]).astype(np.float32)
    return matrix


@pytest.mark.parametrize("kind", KINDS)
def test_the_tree_is_the_oracles(kind: str) -> None:
    for size, counts in {16: (2, 3, 15, 16), 32: (17, 32), 64: (33,)}.items():
        matrices = [distances(kind, n) for n in counts]
        tree, total = spanned(matrices, size)
        for slot, matrix in enumerate(matrices):
            assert tree[slot].tolist() == expected(matrix, size).tolist(), (size, len(matrix))
            assert total[slot] == pytest.approx(matrix.sum(dtype=np.float64), rel=1e-14)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_ties_are_broken_by_the_ends(count: int) -> None:
    matrices = [levels(n, count, n) for n in (2, 5, 16, 31, 32)]
    tree, _ = spanned(matrices, 32)
    for slot, matrix in enumerate(matrices):
        assert tree[slot].tolist() == expected(matrix, 32).tolist()


def test_long_chains_are_followed_to_their_end() -> None:
    falling = np.zeros((64, 64), dtype=np.float32) + 100
    for i in range(63):
        falling[i, i + 1] = falling[i + 1, i] = 90 - i
    np.fill_diagonal(falling, 0)
    for matrix in (falling, falling[::-1, ::-1].copy(), path(64)):
        tree, _ = spanned([matrix], 64)
        assert tree[0].tolist() == expected(matrix, 64).tolist()


@pytest.mark.parametrize(
    ("n", "size"), [(65, 128), (128, 128), (129, 256), (257, 512), pytest.param(600, 1024, marks=pytest.mark.slow)]
)
def test_large_trees_are_scipys(n: int, size: int) -> None:
    rng = np.random.default_rng(n)
    points = rng.standard_normal((n, 3))
    matrix = np.linalg.norm(points[:, None] - points[None, :], axis=-1).astype(np.float32)
    matrix = np.maximum(matrix, matrix.T)
    matrix[matrix > 1] = np.round(matrix[matrix > 1], 1)
    tree, total = spanned([matrix], size)
    found = tree[0, : n - 1]
    assert (np.diff(found) > 0).all()
    assert (tree[0, n - 1 :] == NO_EDGE).all()
    weights = (found >> 32).astype(np.uint32).view(np.float32)
    ends = found & 0xFFFFFFFF
    assert np.array_equal(weights, matrix[ends >> 16, ends & 0xFFFF])
    assert np.array_equal(weights, np.sort(minimum_spanning_tree(matrix.astype(np.float64)).data).astype(np.float32))
    assert total[0] == pytest.approx(matrix.sum(dtype=np.float64), rel=1e-14)


def test_slots_are_independent_and_empty_ones_are_left_alone() -> None:
    matrices = [distances("clustered", 9), distances("random", 1), distances("lattice", 16), distances("random", 2)]
    bad = Status.NOT_FINITE
    tree, total = spanned(matrices, 16, task=[2, -1, 0, 3, 1, 0, 2], status=[0, 0, 0, 0, 0, bad, 0])
    for slot, t in ((0, 2), (2, 0), (3, 3), (6, 2)):
        assert tree[slot].tolist() == expected(matrices[t], 16).tolist()
    assert total[0] == total[6]
    assert (tree[1] == POISON).all()
    assert np.isnan(total[1])
    assert (tree[[4, 5]] == NO_EDGE).all()
    assert total[[4, 5]].tolist() == [0.0, 0.0]


def test_what_is_beyond_the_samples_is_not_looked_at() -> None:
    matrices = [distances("clustered", n) for n in (2, 3, 10, 13)]
    found = [spanned(matrices, 16, beyond=beyond) for beyond in (np.nan, 0.0, -np.inf, 1e-9)]
    for tree, total in found[1:]:
        assert np.array_equal(tree, found[0][0])
        assert np.array_equal(total, found[0][1])


def test_the_size_of_the_matrix_changes_nothing() -> None:
    matrix = distances("clustered", 16)
    trees = [spanned([matrix], size)[0][0, :15].tolist() for size in (16, 32, 64)]
    assert trees[0] == trees[1] == trees[2]


def test_weights_at_the_ends_of_the_range_order_as_numbers() -> None:
    tiny, huge = np.float32(1e-45), np.finfo(np.float32).max
    matrix = np.array([[0, tiny, huge], [tiny, 0, 1], [huge, 1, 0]], dtype=np.float32)
    tree, _ = spanned([matrix], 16)
    assert tree[0].tolist() == expected(matrix, 16).tolist()


def test_what_is_no_distance_ends_all_the_same() -> None:
    """Such a matrix has no tree worth the name; a kernel that does not return would take the device with it."""
    for matrix in (np.full((20, 20), np.nan), np.full((20, 20), -np.nan), np.full((20, 20), np.inf)):
        tree, _ = spanned([matrix.astype(np.float32)], 32)
        assert tree.shape == (1, 32)


@triton.jit
def _matrix_kernel(out_ptr, slot, size):
    matrix_ptr = boruvka._matrix(out_ptr, slot.to(tl.int64), size)
    tl.store(out_ptr, matrix_ptr.to(tl.int64) - out_ptr.to(tl.int64))


def test_matrices_beyond_two_to_the_31_elements_are_reached() -> None:
    out = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    for slot, size in ((5000, 1024), (3, 16), ((1 << 31) + 1, 1024)):
        _matrix_kernel[(1,)](out, slot, size)
        assert out.item() == 8 * slot * size * size


def test_what_is_shipped_is_what_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: dict[str, Any] = {}

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Kernel:
            launched["grid"] = grid
            return self

        def __call__(self, *arguments: object, **options: object) -> None:
            launched.update(options)

    records = boruvka.shipped()
    monkeypatch.setattr(boruvka, "_boruvka_kernel", Kernel())
    assert [record.constants["N"] for record in records] == [16, 32, 64, 128, 256, 512, 1024]
    for record in records:
        launch_boruvka(torch.zeros(3, record.constants["N"], record.constants["N"]), *(None,) * 6)
        assert launched.pop("grid") == (3,)
        options = {"num_warps": record.warps, "num_stages": record.stages, "enable_fp_fusion": record.fp_fusion}
        assert launched == record.constants | options
