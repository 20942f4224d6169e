"""kernels/components.py: labels are DBSCAN's, entropies and radii the oracle's, statuses the executor's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cases import KINDS, distances
from fase_gpu.kernels import components
from fase_gpu.kernels.components import SIZES, launch_components
from sklearn.cluster import DBSCAN
from trees import DEVICE, Edge, corpus_tree, leaf_order

from fase_gpu import reference
from fase_gpu.cluster import radius
from fase_gpu.config import RADIUS_VARIANTS, FaseConfig
from fase_gpu.entropy import class_entropy
from fase_gpu.results import SCORES, SWEPT_SCORES, Status

POISON = -77
ALPHAS = (0.3, 1.0, 1.6, 3.0)


class Task:
    """What the stages before leave of a task: a leaf order and statistics."""

    def __init__(self, edges: Sequence[Edge], n: int, total: float, status: int = Status.OK) -> None:
        self.n, self.total, self.status = n, total, status
        self.order, self.gap = leaf_order(edges, n) if n else ([], [])
        self.merged = reference.multiscale(edges, n, (1e-3, 0.5)) if n > 1 else math.nan
        weights = [float(np.float32(w)) for w, _, _ in edges]
        self.mean = sum(weights) / len(weights) if weights else math.nan
        self.mode = reference.weight_mode(weights, FaseConfig()) if weights else math.nan


def corpus_task(kind: str, n: int) -> Task:
    return Task(corpus_tree(kind, n), n, float(distances(kind, n).sum(dtype=np.float64)))


def score(
    tasks: Sequence[Task],
    size: int,
    alphas: Sequence[float] = ALPHAS,
    *,
    slots: Sequence[int] | None = None,
    width: int | None = 0,
    variant: str = "scaled_mst_mode",
    released: bool = False,
) -> dict[str, torch.Tensor]:
    """The scores of tasks, one slot each unless `slots` says otherwise; labels of `width`, by default the largest n."""
    slots = range(len(tasks)) if slots is None else slots
    order = np.full((len(slots), size), POISON, np.int32)
    position = np.full((len(slots), size), POISON, np.int32)
    gap = np.full((len(slots), size), np.nan, np.float32)
    numbers = np.full((4, len(slots)), np.nan)
    status = np.full(len(slots), POISON, np.int8)
    for slot, t in enumerate(slots):
        if t >= 0:
            task = tasks[t]
            order[slot, : task.n], gap[slot, : task.n] = task.order, task.gap
            position[slot, : task.n] = np.argsort(task.order)
            numbers[:, slot] = task.merged, task.mean, task.mode, task.total
            status[slot] = task.status
    shape = (len(tasks), len(alphas))
    scores = {
        name: torch.full(shape if name in SWEPT_SCORES else shape[:1], float(POISON), device=DEVICE) for name in SCORES
    }
    scores["n_clusters"] = torch.full(shape, POISON, dtype=torch.int32, device=DEVICE)
    scores["status"] = torch.full(shape[:1], POISON, dtype=torch.int8, device=DEVICE)
    if width is not None:
        width = width or max(1, *(task.n for task in tasks))
        # With a column between the rows that nobody may touch.
        rows = torch.full((*shape, width + 1), POISON, dtype=torch.int32, device=DEVICE)
        scores["labels"] = rows[..., :width]
    launch_components(
        *(torch.from_numpy(array).to(DEVICE) for array in (order, position, gap)),
        *torch.from_numpy(numbers).to(DEVICE),
        torch.tensor([task.n for task in tasks], device=DEVICE),
        torch.tensor(slots, device=DEVICE),
        torch.from_numpy(status).to(DEVICE),
        torch.tensor(alphas, dtype=torch.float64, device=DEVICE),
        scores,
        variant,
        released,
    )
    if width is not None:
        assert (rows[..., width] == POISON).all()
    return {name: tensor.cpu() for name, tensor in scores.items()}


def dbscan(distance: npt.NDArray[np.float32], eps: float) -> list[int]:
    """scikit-learn's labels, noise as singletons, by first appearance."""
    found = DBSCAN(eps=eps, min_samples=2, metric="precomputed").fit(distance.astype(np.float64)).labels_.tolist()
    return reference.relabel([(label, i if label < 0 else -1) for i, label in enumerate(found)])


def check(found: dict[str, torch.Tensor], t: int, task: Task, distance: npt.NDArray[np.float32]) -> None:
    """Everything but the radius of a task that is OK, by the reported radius."""
    n = task.n
    weights = np.array(task.gap[1:], np.float32).astype(np.float64)
    for a, eps in enumerate(found["eps"][t].tolist()):
        labels = dbscan(distance, eps)
        assert found["labels"][t, a, :n].tolist() == labels
        assert (found["labels"][t, a, n:] == -1).all()
        bits = reference.entropy_bits(labels)
        assert found["bits"][t, a] == pytest.approx(bits, rel=2e-7, abs=1e-12)
        assert found["entropy"][t, a] == pytest.approx(bits / math.log2(n), rel=2e-7, abs=1e-12)
        assert found["n_clusters"][t, a] == len(set(labels))
        assert found["margin"][t, a] == pytest.approx((abs(weights - eps) / eps).min(), rel=1e-6)
    assert found["status"][t] == Status.OK
    assert found["multiscale"][t] == np.float32(task.merged)
    assert found["mode"][t] == np.float32(task.mode)
    assert found["mst_mean"][t] == np.float32(task.mean)
    assert found["pdm_mean"][t] == np.float32(task.total / n**2)


def check_nothing(found: dict[str, torch.Tensor], t: int, status: Status, labels: Sequence[int] = ()) -> None:
    assert found["status"][t] == status
    assert all(found[name][t].isnan().all() for name in SCORES)
    assert (found["n_clusters"][t] == len(labels)).all()
    for row in found["labels"][t].tolist():
        assert row == [*labels, *[-1] * (len(row) - len(labels))]


@pytest.mark.parametrize(("size", "n"), [(16, 2), (16, 3), (16, 15), (16, 16), (32, 17), (64, 64), (128, 64)])
def test_corpus(size: int, n: int) -> None:
    tasks = [corpus_task(kind, n) for kind in KINDS]
    found = score(tasks, size)
    for t, (kind, task) in enumerate(zip(KINDS, tasks, strict=True)):
        check(found, t, task, distances(kind, n))
        for a, alpha in enumerate(ALPHAS):
            eps = reference.radius(FaseConfig(), alpha, task.mode, task.mean, task.total / n**2)
            assert found["eps"][t, a] == pytest.approx(eps, rel=1e-7)


@pytest.mark.parametrize(("size", "kind"), [(256, "clustered"), (512, "lattice"), (1024, "clustered")])
def test_large_sizes(size: int, kind: str) -> None:
    task = corpus_task(kind, 200)
    found = score([task], size, (1.6,))
    check(found, 0, task, distances(kind, 200))


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("variant", RADIUS_VARIANTS)
def test_radius_of_every_variant_is_the_torch_executors(variant: str, released: bool) -> None:
    kinds = ("random", "clustered", "near", "identical")
    tasks = [corpus_task(kind, 10) for kind in kinds]
    # No distances at all: every statistic is zero, and the floor applies.
    tasks.append(Task([(0.0, 0, 1), (0.0, 1, 2)], 3, 0.0))
    found = score(tasks, 16, variant=variant, released=released)
    semantics = "released" if released else "paper"
    scale = {"eps" if variant == "fixed_eps" else "alpha": ALPHAS}
    config = FaseConfig(variant=variant, semantics=semantics, **scale)  # type: ignore[arg-type]
    statistics = torch.tensor([(task.mode, task.mean, task.total / task.n**2) for task in tasks], dtype=torch.float64).T
    assert torch.equal(found["eps"], radius(config, *statistics).T)
    for t, kind in enumerate(kinds):
        check(found, t, tasks[t], distances(kind, 10))


def test_ragged_slots_and_statuses() -> None:
    tasks = [
        corpus_task("random", 16),
        Task([], 0, 0.0),
        Task([], 1, 0.0),
        Task([], 0, 0.0, Status.EMPTY),
        Task([], 1, 0.0, Status.SINGLE),
        Task([], 1, 0.0, Status.ZERO_VECTOR),
        Task([], 0, math.nan, Status.NOT_FINITE),
        corpus_task("lattice", 3),
        corpus_task("near", 2),
        corpus_task("clustered", 10),
    ]
    bad = corpus_task("clustered", 10)
    bad.status, bad.gap = Status.NOT_A_DISTANCE, [math.nan] * 10
    tasks.append(bad)
    # The last good task is left out: another launch scores it.
    slots = [8, -1, 0, 1, 2, 3, -1, 4, 5, 6, 7, 10, -1]
    found = score(tasks, 16, slots=slots)
    for t, kind in ((0, "random"), (7, "lattice"), (8, "near")):
        check(found, t, tasks[t], distances(kind, tasks[t].n))
    check_nothing(found, 1, Status.EMPTY)
    check_nothing(found, 2, Status.SINGLE, [0])
    check_nothing(found, 3, Status.EMPTY)
    check_nothing(found, 4, Status.SINGLE, [0])
    check_nothing(found, 5, Status.ZERO_VECTOR)
    check_nothing(found, 6, Status.NOT_FINITE)
    check_nothing(found, 10, Status.NOT_A_DISTANCE)
    assert all((tensor[9] == POISON).all() for tensor in found.values())


@pytest.mark.parametrize("width", [10, 15, 16, 17, 50])
def test_labels_of_any_width(width: int) -> None:
    tasks = [corpus_task("clustered", 10), Task([], 1, 0.0), Task([], 0, 0.0)]
    found = score(tasks, 16, (1.6, 0.5), width=width)
    check(found, 0, tasks[0], distances("clustered", 10))
    check_nothing(found, 1, Status.SINGLE, [0])
    check_nothing(found, 2, Status.EMPTY)


def test_labels_left_out_change_nothing_else() -> None:
    tasks = [corpus_task("clustered", 10), Task([], 1, 0.0)]
    found, expected = score(tasks, 16, width=None), score(tasks, 16)
    assert "labels" not in found
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0, equal_nan=True)


def test_entropies_of_equal_class_sizes_are_equal() -> None:
    def task(sizes: Sequence[int]) -> Task:
        edges = []
        for size, start in zip(sizes, np.cumsum([0, *sizes]).tolist(), strict=False):
            edges += [(0.1, i, i + 1) for i in range(start, start + size - 1)]
        starts = np.cumsum(sizes)[:-1].tolist()
        return Task(sorted(edges) + [(0.9, start - 1, start) for start in starts], sum(sizes), 60.0)

    orders = [(7, 1, 3, 2), (1, 2, 3, 7), (3, 7, 2, 1), (2, 3, 1, 7)]
    tasks = [*map(task, orders), task((13,)), task((1,) * 13)]
    found = score(tasks, 16, (0.5,), variant="fixed_eps")
    for name in ("entropy", "bits"):
        assert (found[name][:4] == found[name][0]).all()
        assert found[name][4] == 0
    assert found["entropy"][5] == 1
    assert found["n_clusters"].flatten().tolist() == [4, 4, 4, 4, 1, 13]
    classes = found["labels"].movedim(0, 2).movedim(0, 1).to(torch.int64)
    expected = class_entropy(classes, torch.full((6,), 13))
    assert torch.equal(found["entropy"].T, expected.normalised.to(torch.float32))
    assert torch.equal(found["bits"].T, expected.bits.to(torch.float32))


def test_same_numbers_in_any_slot_and_under_any_padding() -> None:
    task = corpus_task("clustered", 10)
    alone, beside = score([task], 16), score([corpus_task("near", 64), task], 256)
    for name, tensor in alone.items():
        other = beside[name][1, :, :10] if name == "labels" else beside[name][1]
        assert torch.equal(tensor[0], other)


def test_constants() -> None:
    assert components.RADIUS_VARIANTS == RADIUS_VARIANTS
    assert all(getattr(components, name.upper()).value == i for i, name in enumerate(RADIUS_VARIANTS))
    assert max(SIZES) == 1024
