"""kernels/merge.py: the leaf order is the one that joining lists gives, and the multiscale entropy the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from cases import KINDS, distances
from fase_gpu.kernels import merge
from fase_gpu.kernels.merge import launch_merge
from scipy.cluster.hierarchy import linkage
from trees import DEVICE, Edge, corpus_tree, keys, leaf_order, random_tree

from fase_gpu import reference
from fase_gpu.results import Status

POISON = -77
RANGE = (1e-3, 0.5)


class Merged(NamedTuple):
    order: torch.Tensor
    position: torch.Tensor
    gap: torch.Tensor
    multiscale: torch.Tensor


def merged(
    trees: Sequence[Sequence[Edge]],
    size: int,
    *,
    packed: bool = True,
    status: Sequence[int] | None = None,
    task: Sequence[int] | None = None,
    between: tuple[float, float] = RANGE,
) -> Merged:
    """What the kernel makes of a tree per task, one slot each unless `task` says otherwise."""
    slots = range(len(trees)) if task is None else task
    width = max(1, *(len(tree) for tree in trees)) + 1
    tree = torch.from_numpy(np.stack([keys(trees[t] if t >= 0 else (), width) for t in slots]))
    ends = None
    if not packed:
        ends = (((tree >> 16) & 0xFFFF).to(torch.int32).to(DEVICE), (tree & 0xFFFF).to(torch.int32).to(DEVICE))
        tree = (tree >> 32).to(torch.int32).view(torch.float32)
    found = Merged(
        torch.full((len(slots), size), POISON, dtype=torch.int32, device=DEVICE),
        torch.full((len(slots), size), POISON, dtype=torch.int32, device=DEVICE),
        torch.full((len(slots), size), torch.nan, device=DEVICE),
        torch.full((len(slots),), torch.nan, dtype=torch.float64, device=DEVICE),
    )
    launch_merge(
        tree.to(DEVICE),
        ends,
        torch.tensor([len(tree) + 1 for tree in trees], device=DEVICE),
        torch.tensor(slots, device=DEVICE),
        torch.tensor([Status.OK] * len(slots) if status is None else status, dtype=torch.int8, device=DEVICE),
        torch.full((len(slots), 2, size), POISON, device=DEVICE),
        *found,
        between,
    )
    return Merged(*(tensor.cpu() for tensor in found))


def check(found: Merged, slot: int, edges: Sequence[Edge]) -> None:
    n = len(edges) + 1
    order, gap = leaf_order(edges, n)
    assert found.order[slot, :n].tolist() == order
    assert found.position[slot, :n].tolist() == np.argsort(order).tolist()
    assert found.gap[slot, :n].tolist() == pytest.approx(gap, rel=1e-7)
    assert (found.order[slot, n:] == POISON).all()
    assert (found.position[slot, n:] == POISON).all()
    assert found.gap[slot, n:].isnan().all()
    if n > 1:
        assert found.multiscale[slot] == pytest.approx(reference.multiscale(edges, n, RANGE), abs=1e-7)


@pytest.mark.parametrize("n", [2, 3, 10, 31, 32, 33])
def test_corpus(n: int) -> None:
    trees = [corpus_tree(kind, n) for kind in KINDS]
    found = merged(trees, 64)
    for slot, edges in enumerate(trees):
        check(found, slot, edges)


def test_gaps_are_the_heights_at_which_scipy_merges() -> None:
    edges, matrix = corpus_tree("clustered", 64), distances("clustered", 64)
    found = merged([edges], 64)
    heights = linkage(matrix[np.triu_indices(64, 1)].astype(np.float64), "single")[:, 2]
    np.testing.assert_allclose(found.gap[0, 1:].sort().values, heights, rtol=1e-7)


@pytest.mark.parametrize("deep", [True, False])
def test_large_trees_with_long_searches(deep: bool) -> None:
    edges = random_tree(300, np.random.default_rng(3), deep)
    found = merged([edges], 512)
    check(found, 0, edges)


def test_ends_beside_the_weights() -> None:
    trees = [corpus_tree("lattice", 20), random_tree(33, np.random.default_rng(4))]
    found, expected = merged(trees, 64, packed=False), merged(trees, 64)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_slots_of_any_tasks_and_none() -> None:
    trees = [corpus_tree("near", 10), (), corpus_tree("lattice", 64), corpus_tree("random", 3)]
    task = [2, -1, 0, 1, 3, -1, 0]
    status = [Status.OK] * 6 + [Status.NOT_FINITE]
    found = merged(trees, 64, status=status, task=task)
    for slot, t in enumerate(task):
        if t < 0 or status[slot] != Status.OK:
            assert (found.order[slot] == POISON).all()
            assert found.gap[slot].isnan().all()
            assert found.multiscale[slot].isnan()
        else:
            check(found, slot, trees[t])


def test_same_numbers_in_any_slot_and_under_any_padding() -> None:
    edges = corpus_tree("random", 10)
    alone, beside = merged([edges], 16), merged([corpus_tree("near", 64), edges], 128)
    assert alone.multiscale[0] == beside.multiscale[1]
    assert torch.equal(alone.order[0, :10], beside.order[1, :10])
    assert torch.equal(alone.gap[0, :10], beside.gap[1, :10])


def test_weights_of_nothing_and_of_more_than_the_range() -> None:
    edges = ((0.0, 0, 1), (1e-4, 1, 2), (0.7, 0, 3))
    assert merged([edges], 16).multiscale[0] == pytest.approx(reference.multiscale(edges, 4, RANGE), abs=1e-7)
    between = (1e-2, 1.0)
    found = merged([edges], 16, between=between).multiscale[0]
    assert found == pytest.approx(reference.multiscale(edges, 4, between), abs=1e-7)


def test_fields_hold_what_they_have_to() -> None:
    assert merge.MIDDLE.value >= merge.MOST_SAMPLES
    assert merge.MOST_SAMPLES >= 100_000
    assert 3 * merge.FIELD_BITS.value < 63
