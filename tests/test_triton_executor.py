"""backend="triton": which kernels a batch takes and what comes out, in Triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import KINDS, distances, refused
from test_kernels_fused import agree

from fase_gpu import (
    BackendError,
    FaseConfig,
    FaseResult,
    InputError,
    Scorer,
    Status,
    ops,
    score_distances,
    score_embeddings,
    triton_executor,
)
from fase_gpu.config import RADIUS_VARIANTS
from fase_gpu.triton_executor import SIZES, Scores

MIXED = (0, 1, 2, 9, 16, 17, 33, 64, 65, 100)


def tasks(sizes: Sequence[int], kinds: Sequence[str] = ("clustered", "lattice"), d: int = 72) -> list[torch.Tensor]:
    """A task [n, d] of each kind and size, where no edge and no mode is near to being another."""
    made = []
    for kind in kinds:
        for n in sizes:
            rows = torch.zeros(n, d)
            if n:
                given = KINDS[kind](n, np.random.default_rng([n, list(KINDS).index(kind)]))
                rows[:, : given.shape[1]] = torch.from_numpy(given)
            made.append(rows)
    return made


def packed(parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    count = torch.tensor([len(part) for part in parts])
    return torch.cat(list(parts)), count.cumsum(0) - count, count


def columns(result: FaseResult) -> Scores:
    names = ("entropy", "bits", "eps", "margin", "multiscale", "mode", "mst_mean", "pdm_mean", "n_clusters", "status")
    found = {name: getattr(result, name) for name in names}
    return found if result.labels is None else found | {"labels": result.labels}


def same(a: FaseResult | Scores, b: FaseResult | Scores) -> None:
    """Bit for bit, NaN included."""
    first, second = (columns(r) if isinstance(r, FaseResult) else r for r in (a, b))
    assert first.keys() == second.keys()
    for name, column in first.items():
        assert torch.equal(column.contiguous().view(torch.uint8), second[name].contiguous().view(torch.uint8)), name


@pytest.fixture(scope="module")
def mixed() -> tuple[list[torch.Tensor], FaseResult]:
    parts = tasks(MIXED)
    return parts, score_embeddings(parts, config=FaseConfig(alpha=(0.4, 1.6)), backend="triton")


def test_tasks_of_every_size_score_as_the_reference(mixed: tuple[list[torch.Tensor], FaseResult]) -> None:
    parts, result = mixed
    assert result.info.backend == "triton"
    x = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    count = torch.tensor([len(part) for part in parts])
    compared = agree(columns(result), x, count, FaseConfig(alpha=(0.4, 1.6)))
    assert compared > 20


def test_sizes_known_on_the_device_only_give_the_same_bits(mixed: tuple[list[torch.Tensor], FaseResult]) -> None:
    parts, result = mixed
    x, start, count = packed(parts)
    same(ops.score(x, start, count, max(MIXED), FaseConfig(alpha=(0.4, 1.6)), "triton"), result)


def test_every_size_is_launched_with_its_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, list[int]] = {}

    def fused_launch(*arguments: object, **_: object) -> None:
        task, size = arguments[3], arguments[8]
        assert isinstance(task, torch.Tensor)
        assert isinstance(size, int)
        seen[size] = [t for t in task.tolist() if t >= 0]

    def measured(scores: Scores, work: triton_executor._Workspace, *_: object) -> None:
        seen.setdefault(work.dist.shape[1], []).extend(t for t in work.task.tolist() if t >= 0)

    monkeypatch.setattr(triton_executor.fused, "launch_fused", fused_launch)
    monkeypatch.setattr(triton_executor, "_measure", lambda *_: None)
    monkeypatch.setattr(triton_executor, "_score_measured", measured)
    monkeypatch.setattr(triton_executor, "_WORKSPACE", {"cpu": 2 * 4 * 1024**2, "cuda": 0})
    n = [0, 1, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 512, 513, 1024, 1024, 1000, 1025]
    count = torch.tensor(n)
    batch = triton_executor.Batch(torch.zeros(1, 4), torch.zeros_like(count), count, None)
    config = FaseConfig(multiscale_range=(1e-3, 0.5))
    for known in (np.array(n), None):
        seen.clear()
        triton_executor.fill({}, batch, config, 1024, known)
        assert list(seen) == list(SIZES)
        expected = [
            [t for t, k in enumerate(n) if low < k <= high] for low, high in zip((-1, *SIZES), SIZES, strict=False)
        ]
        assert list(seen.values()) == expected


@pytest.mark.parametrize("variant", RADIUS_VARIANTS)
def test_variants_on_the_staged_kernels(variant: str) -> None:
    parts = tasks((65,), ("clustered",))
    config = FaseConfig(variant=variant, **({"eps": 0.02} if variant == "fixed_eps" else {"alpha": 0.8}))  # type: ignore[arg-type]
    ours, theirs = (score_embeddings(parts, config=config, backend=b) for b in ("triton", "torch"))
    torch.testing.assert_close(ours.eps, theirs.eps, rtol=1e-4, atol=1e-6)
    assert torch.equal(ours.labels, theirs.labels)  # type: ignore[arg-type]
    torch.testing.assert_close(ours.entropy, theirs.entropy, rtol=0, atol=1e-6)


@pytest.mark.parametrize("peak", ["max_peak", "min_peak"])
def test_the_released_semantics(peak: str) -> None:
    parts = tasks((2, 10, 40), ("clustered", "random"))
    config = FaseConfig(semantics="released", peak=peak)
    ours, theirs = (score_embeddings(parts, config=config, backend=b) for b in ("triton", "torch"))
    # Where a distance is rounded the other way, it is off by 1e-6.
    for name in ("mode", "mst_mean", "pdm_mean", "eps"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-4, atol=2e-6)
    assert torch.equal(ours.labels, theirs.labels)  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", ["union", "intersection", "structural", "textual"])
@pytest.mark.parametrize("labels", [True, False])
def test_given_classes(variant: str, labels: bool) -> None:
    parts = tasks((0, 1, 2, 9, 16))
    parts[3] = parts[3] * math.nan
    classes = [[i % 3 for i in range(len(part))] for part in parts]
    config = FaseConfig(variant=variant, alpha=(0.4, 1.6), return_labels=labels)
    ours, theirs = (score_embeddings(parts, config=config, backend=b, classes=classes) for b in ("triton", "torch"))
    for name in ("entropy", "bits", "n_clusters", "status"):
        assert torch.equal(getattr(ours, name).nan_to_num(-1), getattr(theirs, name).nan_to_num(-1)), name
    assert torch.equal(ours.eps.isnan(), theirs.eps.isnan())
    assert (ours.labels is None) == (not labels)
    if ours.labels is not None:
        assert torch.equal(ours.labels, theirs.labels)  # type: ignore[arg-type]


def test_given_distances() -> None:
    parts = [torch.from_numpy(distances(kind, n)) for kind in ("clustered", "lattice") for n in (1, 2, 10, 64)]
    broken = parts[2].clone()
    broken[0, 1] = -1
    parts.append(broken)
    ours, theirs = (score_distances(parts, backend=b) for b in ("triton", "torch"))
    assert ours.status[-1] == Status.NOT_A_DISTANCE
    for name, column in columns(ours).items():
        torch.testing.assert_close(column, columns(theirs)[name], rtol=3e-7, atol=1e-7, equal_nan=True)


def test_tasks_too_large_for_a_matrix_stream() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, 24))
    x = centres[rng.integers(40, size=1100)] + 10.0 ** rng.uniform(-2, 0, (1100, 1)) * rng.standard_normal((1100, 24))
    parts = [*tasks((10,), ("clustered",), 24), torch.from_numpy(x).float()]
    ours, theirs = (score_embeddings(parts, backend=b) for b in ("triton", "torch"))
    assert torch.equal(ours.labels, theirs.labels)  # type: ignore[arg-type]
    for name in ("eps", "mode", "mst_mean", "pdm_mean", "multiscale"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=2e-5, atol=1e-6)


def test_float64_and_apart_rows_are_made_readable() -> None:
    parts = tasks((10,), ("clustered",))
    expected = score_embeddings(parts, backend="triton")
    wide = parts[0].double() * 1e200
    ours = score_embeddings([wide], backend="triton")
    assert torch.equal(ours.labels, expected.labels)  # type: ignore[arg-type]
    torch.testing.assert_close(ours.mst_mean, expected.mst_mean, rtol=0, atol=4e-7)
    same(score_embeddings(parts[0].T.contiguous().T[None], backend="triton"), expected)


def test_a_batch_of_no_tasks() -> None:
    result = score_embeddings(torch.zeros(0, 10, 4), backend="triton")
    assert len(result) == 0
    assert result.labels is not None
    assert result.labels.shape == (0, 10)


def test_what_the_kernels_cannot_do_is_refused() -> None:
    x = torch.zeros(1, 4, 3)
    for config in (FaseConfig(min_samples=3), FaseConfig(variant="fixed_mcs")):
        with pytest.raises(BackendError, match='use backend="torch"'):
            score_embeddings(x, config=config, backend="triton")
    with pytest.raises(BackendError, match="up to 1024 samples, got 1025"):
        score_distances(torch.zeros(1, 1025, 1025), backend="triton")


def test_a_cpu_without_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match="expected tensors on a CUDA device, got cpu"):
        score_embeddings(torch.zeros(1, 4, 3), backend="triton")
    assert score_embeddings(torch.ones(1, 4, 3)).info.backend == "torch"


def test_rows_beyond_2_to_the_31_elements() -> None:
    """In memory that is reserved but, except for the last rows, never touched."""
    d = 64
    x = torch.empty(2**31 // d + 100, d, dtype=torch.float16)
    parts = tasks((10, 70), ("clustered",), d)
    x[-80:] = torch.cat(parts).half()
    start = torch.tensor([len(x) - 80, len(x) - 70])
    assert int(start[0]) * d > 2**31
    count = torch.tensor([10, 70])
    near, _, _ = packed([part.half() for part in parts])
    far = ops.score(x, start, count, 70, backend="triton")
    same(far, ops.score(near, torch.tensor([0, 10]), count, 70, backend="triton"))


def test_sizes_that_nobody_checked() -> None:
    """Strided, expanded, negative and enormous: statuses, the same on both executors, and no made-up score."""
    x = torch.randn(30, 12, generator=torch.Generator().manual_seed(0))
    for config in (FaseConfig(), FaseConfig(semantics="released")):
        start, count = torch.tensor([0, 9, 5, 9])[::2], torch.tensor([5, 9, 4, 9])[::2]
        for sizes in ((start, count), (torch.tensor([0]).expand(3), torch.tensor([4]).expand(3))):
            ours, theirs = (ops.score(x, *sizes, 10, config, b) for b in ("triton", "torch"))
            assert torch.equal(ours["labels"], theirs["labels"])
        wild = torch.tensor([-3, 4, 2**32 + 5, 2**40])
        for backend in ("triton", "torch", "reference"):
            scores = ops.score(x, torch.zeros(4, dtype=torch.int64), wild, 10, config, backend)
            assert [Status(s).name for s in scores["status"].tolist()] == ["EMPTY", "OK", "TOO_MANY", "TOO_MANY"]
            assert scores["entropy"].isnan().flatten().tolist() == [True, False, True, True]


def test_constants_outlive_a_sweep() -> None:
    """A captured graph holds pointers to them."""
    first = triton_executor._constant((1.25,), torch.float64, torch.device("cpu"))
    for i in range(1000):
        triton_executor._constant((2 + i / 1000,), torch.float64, torch.device("cpu"))
    assert triton_executor._constant((1.25,), torch.float64, torch.device("cpu")) is first


def test_a_range_that_no_quotient_holds() -> None:
    x = tasks((10, 65), ("clustered",))
    config = FaseConfig(multiscale_range=(1e-200, 1e200))
    ours, theirs = (score_embeddings(x, config=config, backend=b) for b in ("triton", "torch"))
    torch.testing.assert_close(ours.multiscale, theirs.multiscale, rtol=1e-5, atol=1e-6)
    assert "multiscale_range" in refused(lambda: FaseConfig(multiscale_range=(0.1, 0.10000000000000002)))


CALLS = [
    (torch.zeros(5), None, None, 4, "x: expected [S, d]"),
    (torch.zeros(5, 2, dtype=torch.int64), None, None, 4, "x: expected [S, d]"),
    (torch.zeros(5, 2), torch.zeros(1), None, 4, "start: expected [T] int64"),
    (torch.zeros(5, 2), None, torch.zeros(2, dtype=torch.int64), 4, "count: expected [T] int64"),
    (torch.zeros(5, 2), None, torch.zeros(1, dtype=torch.int64, device="meta"), 4, "expected on cpu as x, got meta"),
    (torch.zeros(5, 2), None, None, 0, "max_samples: expected at least 1"),
]


@pytest.mark.parametrize(("x", "start", "count", "most", "message"), CALLS)
def test_the_operator_refuses_what_cannot_be(
    x: torch.Tensor, start: torch.Tensor | None, count: torch.Tensor | None, most: int, message: str
) -> None:
    start = torch.zeros(1, dtype=torch.int64) if start is None else start
    count = torch.zeros(1, dtype=torch.int64) if count is None else count
    if count.is_meta:
        with pytest.raises(InputError, match=message):
            ops._check(x, start, count, most)
    else:
        assert message in refused(lambda: ops.score(x, start, count, most))


@pytest.mark.parametrize("backend", ["torch", "triton", "reference"])
def test_the_operator_passes_torchs_own_checks(backend: str) -> None:
    x, start, count = packed(tasks((3, 10), ("clustered",)))
    config = [[1.6, 2.0], "scaled_mst_mode", "paper", "max_peak", 2, 2, 1000, 1e-6, 1e-3, 0.5, True, backend]
    torch.library.opcheck(torch.ops.fase_gpu.score.default, (x, start, count, 10, *config))


def test_the_operator_marks_tasks_of_too_many_samples() -> None:
    x, start, count = packed(tasks((3, 10, 5), ("clustered",)))
    for backend in ("torch", "triton"):
        scores = ops.score(x, start, count, 6, backend=backend)
        assert scores["status"].tolist() == [Status.OK, Status.TOO_MANY, Status.OK]
        assert scores["entropy"].isnan().flatten().tolist() == [False, True, False]
        assert scores["labels"].shape == (3, 1, 6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_that_scores_compiles_whole() -> None:
    x, start, count = packed(tasks((3, 10, 5), ("clustered",)))
    config = FaseConfig(alpha=(1.0, 2.0))

    def certainty(x: torch.Tensor) -> torch.Tensor:
        return 1 - ops.score(x * 2, start, count, 10, config)["multiscale"]

    compiled = torch.compile(certainty, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), certainty(x))


def test_a_scorer_scores_padded_and_packed_batches() -> None:
    parts = tasks((10, 9, 4), ("clustered",))
    x = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    for backend in ("torch", "triton"):
        scorer = Scorer(3, 10, 72, device="cpu", backend=backend)
        n = torch.tensor([10, 9, 4])
        expected = score_embeddings(x, n, backend=backend)
        first = scorer(x, n)
        same(first, expected)
        scorer.x.copy_(x * 3)
        assert torch.equal(scorer(n_samples=[10, 9, 4]).status, expected.status)
        same(first, expected)
        assert scorer(x).n_samples.tolist() == [10, 10, 10]
        rows, _, count = packed(parts)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), count.cumsum(0)])
        same(Scorer(3, 10, 72, device="cpu", rows=23, backend=backend)(rows, offsets=offsets), expected)


def test_a_scorer_refuses_what_does_not_fit() -> None:
    assert refused(lambda: Scorer(0, 1, 1)) == "tasks: expected an integer of at least 1, got 0"
    assert "float type" in refused(lambda: Scorer(1, 1, 1, torch.int64))
    assert "needs classes" in refused(lambda: Scorer(1, 1, 1, config=FaseConfig(variant="union")))
    assert "config: expected a FaseConfig, got dict" in refused(lambda: Scorer(1, 1, 1, config={}))  # type: ignore[arg-type]
    assert "device: expected cpu, cuda or cuda:N that is there, got 'gpu'" in refused(
        lambda: Scorer(1, 1, 1, device="gpu")
    )
    scorer = Scorer(2, 4, 3, device="cpu")
    scorer(torch.randn(2, 4, 3, requires_grad=True))
    assert not scorer.x.requires_grad
    assert "n_samples: expected integers, got dtype bool" in refused(lambda: scorer(n_samples=[True, False]))
    assert "x: expected a tensor, a NumPy array" in refused(lambda: scorer("abc"))
    assert "x: expected shape (2, 4, 3), got (2, 4, 5)" in refused(lambda: scorer(torch.zeros(2, 4, 5)))
    assert "n_samples[1]: expected 0 to N = 4, got 5" in refused(lambda: scorer(n_samples=[4, 5]))
    assert "only for a Scorer that was made with rows" in refused(lambda: scorer(offsets=[0, 1, 2]))
    packed_scorer = Scorer(2, 4, 3, device="cpu", rows=8)
    assert packed_scorer(offsets=[0, 3, 5]).n_samples.tolist() == [3, 2]
    assert packed_scorer(offsets=[0, 3, 5]).info.samples == 5
    assert "offsets: expected to end at or below S = 8, got 9" in refused(lambda: packed_scorer(offsets=[0, 3, 9]))
    assert "offsets: expected shape (3,), got (2,)" in refused(lambda: packed_scorer(offsets=[0, 3]))
    assert "x: expected one tensor or array of shape (2, 4, 3), got a list" in refused(lambda: scorer([[[0.0]]]))
    assert "needs offsets" in refused(lambda: packed_scorer())
    assert "offsets[2]: expected at least 4, the one before, got 3" in refused(
        lambda: packed_scorer(offsets=torch.tensor([0, 4, 3], dtype=torch.uint8))
    )


@pytest.mark.shared
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_real_embeddings_score_as_the_reference(shared_data: Path, dtype: torch.dtype) -> None:
    compared = 0
    for path in sorted((shared_data / "embeddings").glob("*.npz")):
        x = torch.from_numpy(np.load(path)["embeddings"]).to(dtype)
        count = torch.full((len(x),), x.shape[1])
        config = FaseConfig(alpha=(0.8, 1.6))
        compared += agree(columns(score_embeddings(x, config=config, backend="triton")), x, count, config)
    assert compared > 400
