"""What must hold for every task and batch (DESIGN 6.9), bit for bit where it says so."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import current_thread, main_thread
from typing import Any

import numpy as np
import pytest
import torch
from cases import KINDS, distances, embeddings
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fase_gpu as fg
from fase_gpu import executor
from fase_gpu.batching import Indices, padded_size
from fase_gpu.errors import InputError
from fase_gpu.results import SCORES, Status

COLUMNS = (*SCORES, "n_clusters", "status")
CONFIGS = {
    "default": fg.FaseConfig(),
    "sweep": fg.FaseConfig(alpha=(0.3, 1.0, 1.6)),
    "borders": fg.FaseConfig(min_samples=3),
    "released": fg.FaseConfig(semantics="released"),
}
tasks = st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 40))


def same(a: fg.FaseResult, i: int, b: fg.FaseResult, j: int) -> bool:
    """Task i of a and task j of b are equal to the last bit, labels included."""
    for name in COLUMNS:
        x, y = getattr(a, name)[i], getattr(b, name)[j]
        if not torch.equal(x.nan_to_num(nan=-1.0), y.nan_to_num(nan=-1.0)):
            return False
    n = int(a.n_samples[i])
    assert a.labels is not None
    assert b.labels is not None
    return torch.equal(a.labels[i, ..., :n], b.labels[j, ..., :n])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@given(batch=st.lists(tasks, min_size=1, max_size=12), data=st.data())
@settings(max_examples=25)
def test_a_task_scores_the_same_alone_in_any_batch_and_under_any_padding(
    config: fg.FaseConfig, batch: list[tuple[str, int]], data: st.DataObject
) -> None:
    x = [embeddings(kind, n)[:, :4] for kind, n in batch]
    x = [np.pad(rows, ((0, 0), (0, 4 - rows.shape[1]))) for rows in x]
    packed = fg.score_embeddings(x, config=config)
    pick = data.draw(st.integers(0, len(x) - 1))
    assert same(packed, pick, fg.score_embeddings([x[pick]], config=config), 0)
    order = data.draw(st.permutations(range(len(x))))
    shuffled = fg.score_embeddings([x[i] for i in order], config=config)
    assert all(same(packed, i, shuffled, place) for place, i in enumerate(order))
    width = max(map(len, x)) + data.draw(st.integers(0, 7))
    padded = np.full((len(x), width, 4), data.draw(st.sampled_from([np.nan, 0.0, 3.0])), dtype=np.float32)
    for row, rows in zip(padded, x, strict=True):
        row[: len(rows)] = rows
    again = fg.score_embeddings(padded, n_samples=[len(rows) for rows in x], config=config)
    assert all(same(packed, i, again, i) for i in range(len(x)))


@pytest.mark.slow
@pytest.mark.parametrize("d", [5, 8, 17, 384, 385, 1000, 1025])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_task_scores_the_same_in_a_batch_of_hundreds(config: fg.FaseConfig, d: int) -> None:
    """Batches that fill whole chunks and tiles, and leave partial ones, at every padded size up to 200; tasks that are
    done in float32 and in float64 side by side."""
    rng = np.random.default_rng(d)
    n = [*rng.integers(1, 100, 150).tolist(), *[10] * 300, 128, 199, 200]
    x = [rng.standard_normal((k, d)) * 10 ** rng.uniform(-2, 1) + rng.standard_normal(d) for k in n]
    x = [rows.astype(np.float32) for rows in x]
    together = fg.score_embeddings(x, config=config)
    for i in [*range(0, 450, 9), 450, 451, 452]:
        assert same(together, i, fg.score_embeddings([x[i]], config=config), 0), (i, n[i])


@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("d", [3, 17, 384, 385, 386, 1025])
@pytest.mark.parametrize("n", [2, 3, 5, 7, 10, 33, 70])
def test_copies_of_a_task_score_the_same_wherever_they_lie(n: int, d: int, spread: float) -> None:
    """A BLAS may take another path for another alignment or number of matrices."""
    g = torch.Generator().manual_seed(n * d)
    x = torch.randn(1, d, generator=g) + spread * torch.randn(n, d, generator=g)
    result = fg.score_embeddings(x.expand(67, n, d).contiguous())
    alone = fg.score_embeddings(x[None])
    assert all(same(result, i, alone, 0) for i in range(67))


@pytest.mark.parametrize("d", [7, 384, 385])
def test_the_layout_of_packed_rows_does_not_matter(d: int) -> None:
    x = np.random.default_rng(d).standard_normal((350, d), dtype=np.float32)
    offsets = range(0, 351, 10)
    plain = fg.score_embeddings(x, offsets=offsets)
    wide = np.zeros((350, 2 * d), dtype=np.float32)
    wide[:, ::2] = x
    for other in (np.asfortranarray(x), wide[:, ::2]):
        assert all(same(plain, i, fg.score_embeddings(other, offsets=offsets), i) for i in (0, 1, 34))
        alone = fg.score_embeddings(other[:10], offsets=[0, 10])
        assert same(plain, 0, alone, 0)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@given(task=tasks, seed=st.integers(0, 99))
@settings(max_examples=40)
def test_the_order_of_samples_does_not_matter(backend: str, task: tuple[str, int], seed: int) -> None:
    matrix = distances(*task)
    order = np.random.default_rng(seed).permutation(len(matrix))
    a = fg.score_distances(matrix, backend=backend)
    b = fg.score_distances(matrix[np.ix_(order, order)], backend=backend)
    # Sums of float64 in another order, of which torch keeps the float32.
    ground = 1e-12 if backend == "reference" else float(np.finfo(np.float32).eps)
    for name in ("mode", "mst_mean", "pdm_mean", "eps", "entropy"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=ground, atol=0, equal_nan=True)
    torch.testing.assert_close(a.multiscale, b.multiscale, rtol=1e-6, atol=1e-9, equal_nan=True)
    assert a.labels is not None
    assert b.labels is not None
    moved = a.labels[0, order]
    pairs = moved[:, None] == moved
    assert torch.equal(pairs, b.labels[0, :, None] == b.labels[0])


@given(task=tasks, seed=st.integers(0, 99))
@settings(max_examples=40)
def test_the_lengths_of_vectors_do_not_matter(task: tuple[str, int], seed: int) -> None:
    x = embeddings(*task)
    powers = 2.0 ** np.random.default_rng(seed).integers(-20, 20, (len(x), 1))
    a, b = fg.score_embeddings([x]), fg.score_embeddings([(x * powers).astype(np.float32)])
    # Powers of two scale without rounding, so that even a clustering on the edge stays as it is.
    for name in ("pdm_mean", "mst_mean", "multiscale"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=2e-6, equal_nan=True)


@given(task=tasks, copies=st.integers(1, 3))
@settings(max_examples=40)
def test_a_duplicate_joins_its_original(task: tuple[str, int], copies: int) -> None:
    x = embeddings(*task)
    result = fg.score_embeddings([np.concatenate([x, *[x[:1]] * copies])])
    assert result.labels is not None
    n = len(x)
    # A radius below the minimum distance joins nothing, duplicates neither (SPEC 2 and 5).
    assume(float(result.eps[0]) >= 1e-6)
    assert (result.labels[0, n:] == result.labels[0, 0]).all()
    assert result.labels[0].max() + 1 == result.n_clusters[0] <= n


@pytest.mark.parametrize("backend", ["torch", "reference"])
@given(batch=st.lists(tasks, min_size=2, max_size=6), bad=st.sampled_from(["nan", "inf", "zero", "empty"]))
@settings(max_examples=25)
def test_a_bad_task_changes_no_other(backend: str, batch: list[tuple[str, int]], bad: str) -> None:
    good = [np.pad(r, ((0, 0), (0, 24)))[:, :24] for r in (embeddings(kind, n) for kind, n in batch)]
    spoilt = good[0].copy() if bad != "empty" else good[0][:0]
    if bad != "empty":
        spoilt[-1] = {"nan": np.nan, "inf": np.inf, "zero": 0.0}[bad]
    result = fg.score_embeddings([good[0], spoilt, *good[1:]], backend=backend)
    status = {"nan": "NOT_FINITE", "inf": "NOT_FINITE", "zero": "ZERO_VECTOR", "empty": "EMPTY"}[bad]
    assert result.to_dict()["status"][1] == status
    assert all(bool(getattr(result, name)[1].isnan()) for name in SCORES)
    assert result.n_clusters[1] == 0
    assert result.labels is not None
    assert (result.labels[1] == -1).all()
    without = fg.score_embeddings(good, backend=backend)
    assert all(same(without, i, result, i + (i > 0)) for i in range(len(good)))


def test_torch_equals_the_float64_reference() -> None:
    clearly_scored: list[int] = []
    check_torch_against_reference(clearly_scored)
    assert sum(clearly_scored) > 40


@given(batch=st.lists(tasks, min_size=1, max_size=5))
@settings(max_examples=40)
def check_torch_against_reference(clearly_scored: list[int], batch: list[tuple[str, int]]) -> None:
    matrices = [distances(*task) for task in batch]
    config = fg.FaseConfig(min_distance=float(np.float32(1e-6)))
    a = fg.score_distances(matrices, config=config)
    b = fg.score_distances(matrices, config=config, backend="reference")
    assert torch.equal(a.status, b.status)
    for name in ("multiscale", "mst_mean", "pdm_mean"):
        torch.testing.assert_close(getattr(a, name).double(), getattr(b, name), rtol=1e-5, atol=1e-6, equal_nan=True)
    # A radius at a tree weight may fall on either side in float32; so may one of two modes that tie (SPEC 4).
    clear = (b.margin > 1e-4) & ((a.mode - b.mode).abs() <= 1e-5 * b.mode)
    clearly_scored.append(int(clear.sum()))
    for name in ("entropy", "bits", "n_clusters"):
        difference = (getattr(a, name).double() - getattr(b, name).double()).abs()[clear]
        assert (difference <= 1e-6).all(), name
    assert a.labels is not None
    assert b.labels is not None
    assert torch.equal(a.labels[clear], b.labels[clear])


def test_scores_are_the_same_for_every_number_of_alphas() -> None:
    x = [embeddings(kind, n)[:, :2] for kind in ("random", "near") for n in (3, 10, 64)]
    alphas = (0.5, 1.6, 3.0)
    swept = fg.score_embeddings(x, config=fg.FaseConfig(alpha=alphas))
    assert swept.labels is not None
    for a, alpha in enumerate(alphas):
        one = fg.score_embeddings(x, config=fg.FaseConfig(alpha=alpha))
        assert torch.equal(swept.entropy[:, a], one.entropy)
        assert torch.equal(swept.eps[:, a], one.eps)
        assert one.labels is not None
        assert torch.equal(swept.labels[:, a], one.labels)
        unlabelled = fg.score_embeddings(x, config=dataclasses.replace(one.config, return_labels=False))
        assert unlabelled.labels is None
        assert torch.equal(unlabelled.entropy, one.entropy)


def test_settings_of_the_process_do_not_change_scores() -> None:
    x = torch.randn(5, 10, 96, generator=torch.Generator().manual_seed(4))
    plain = fg.score_embeddings(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(same(plain, i, fg.score_embeddings(x), i) for i in range(5))
    for dtype in (torch.float64, torch.float16):
        torch.set_default_dtype(dtype)
        try:
            other = fg.score_embeddings(x)
        finally:
            torch.set_default_dtype(torch.float32)
        assert other.entropy.dtype == torch.float32
        assert all(same(plain, i, other, i) for i in range(5))
    with torch.device("meta"):
        assert all(same(plain, i, fg.score_embeddings(x), i) for i in range(5))
    with torch.inference_mode():
        inside = fg.score_embeddings(x)
    assert all(same(plain, i, inside, i) for i in range(5))


def test_a_ragged_list_of_matrices_costs_no_more_than_its_own_sizes() -> None:
    """Padded to the widest, these would take 16 GB."""
    small = np.array([[0, 0.5], [0.5, 0]], dtype=np.float32)
    result = fg.score_distances([*[small] * 2000, distances("clustered", 1400)])
    assert result.to_dict()["status"] == ["OK"] * 2001
    assert same(result, 7, fg.score_distances(small), 0)


def test_padding_costs_less_than_30_percent_of_the_work() -> None:
    """Work goes with n^2 d for the distances and n^2 for the tree."""
    for n in range(1, 20_000):
        assert n <= padded_size(n)
        assert padded_size(n) ** 2 < 1.3 * n**2


def threads_of_a_new_thread() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's number of threads, until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("n", "d", "tasks"), [(7, 40, 1500), (40, 1000, 60), (100, 384, 40), (300, 1000, 9), (33, 2560, 60)]
)
def test_scores_do_not_depend_on_threads_which_stay_as_they_were(
    n: int, d: int, tasks: int, threads: Callable[[int], None]
) -> None:
    x = torch.randn(tasks, n, d, generator=torch.Generator().manual_seed(5)) + 2
    x[-2, 2] = math.nan
    x[::3] *= 0.5
    x[::3] += torch.randn(n, d, generator=torch.Generator().manual_seed(6)) * 2  # far apart
    found = []
    for count in (1, 2, 5):
        threads(count)
        found.append(fg.score_embeddings(x, n_samples=[n] * (tasks - 3) + [3] * 3))
        assert torch.get_num_threads() == threads_of_a_new_thread() == count
        alone = fg.score_embeddings(x[3:4])
        assert same(found[-1], 3, alone, 0)
        assert same(found[0], 4, fg.score_embeddings(x[4:5]), 0)
    assert found[0].status.tolist() == [Status.NOT_FINITE if t == tasks - 2 else Status.OK for t in range(tasks)]
    assert all(same(found[0], t, other, t) for other in found[1:] for t in range(tasks))


def test_threads_are_in_the_callers_inference_mode(threads: Callable[[int], None]) -> None:
    x = torch.randn(1500, 5, 8, generator=torch.Generator().manual_seed(7))
    threads(2)
    plain = fg.score_embeddings(x)
    with torch.inference_mode():
        inside = fg.score_embeddings(x * 1)
    assert inside.entropy.is_inference()
    assert torch.equal(inside.entropy, plain.entropy)


def test_an_error_on_a_thread_is_the_callers(threads: Callable[[int], None]) -> None:
    def work(size: int, chunk: Indices) -> None:
        if size == 3:
            raise InputError("three")

    threads(2)
    with pytest.raises(InputError, match="three"):
        executor._side_by_side(work, [(size, np.zeros(1, dtype=np.int64)) for size in range(6)], 2)
    assert threads_of_a_new_thread() == 2


def test_large_tasks_are_never_side_by_side(threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    whole = executor._measure

    def measure(source: Any, chunk: Indices, size: int, *others: Any) -> Any:
        seen.append((size > executor.MOST_DENSE, current_thread() is main_thread()))
        return whole(source, chunk, size, *others)

    monkeypatch.setattr(executor, "_measure", measure)
    threads(2)
    x = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (5, 1030, 6, 1031)]
    fg.score_embeddings(x, config=fg.FaseConfig(min_samples=3))
    assert sorted(seen) == [(False, False), (False, False), (True, True), (True, True)]
