"""The fused kernel in Triton's interpreter, against the reference and the torch executor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from cases import KINDS
from fase_gpu.kernels import fused

from fase_gpu import FaseConfig, FaseResult, Status, reference, score_embeddings
from fase_gpu.config import RADIUS_VARIANTS
from fase_gpu.triton_executor import Scores

ALPHAS = (0.4, 1.6, 3.0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
UNIT = 2.0**-24
POISON = -77


def poisoned(tasks: int, alphas: int, width: int) -> Scores:
    """Outputs that hold what no kernel writes."""
    swept = ("entropy", "bits", "eps", "margin")
    scores = {name: torch.full((tasks, alphas), float(POISON)) for name in swept}
    scores |= {name: torch.full((tasks,), float(POISON)) for name in ("multiscale", "mode", "mst_mean", "pdm_mean")}
    scores["n_clusters"] = torch.full((tasks, alphas), POISON, dtype=torch.int32)
    scores["status"] = torch.full((tasks,), POISON, dtype=torch.int8)
    scores["labels"] = torch.full((tasks, alphas, width), POISON, dtype=torch.int32)
    return scores


def logs(size: int) -> torch.Tensor:
    return torch.tensor([0] + [round(math.log2(k) * fused.LOG_UNIT) for k in range(1, size + 1)])


def launch(
    x: torch.Tensor,
    count: torch.Tensor,
    size: int,
    task: torch.Tensor | None = None,
    alphas: tuple[float, ...] = ALPHAS,
    variant: str = "scaled_mst_mode",
    start: torch.Tensor | None = None,
    index: torch.Tensor | None = None,
    scores: Scores | None = None,
    labels: bool = True,
    min_distance: float = 1e-6,
) -> Scores:
    """Padded [T, N, d], or rows [S, d] with start, through the kernel."""
    tasks = count.numel()
    start = torch.arange(tasks) * x.shape[1] if start is None else start
    scores = poisoned(tasks, len(alphas), size) if scores is None else scores
    given = scores if labels else {name: column for name, column in scores.items() if name != "labels"}
    with np.errstate(all="ignore"):  # what overflows in a kernel is dealt with there
        _launch(x, start, count, task, index, alphas, size, given, variant, min_distance)
    return scores


def _launch(
    x: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    task: torch.Tensor | None,
    index: torch.Tensor | None,
    alphas: tuple[float, ...],
    size: int,
    given: Scores,
    variant: str,
    min_distance: float,
) -> None:
    fused.launch_fused(
        x.reshape(-1, x.shape[-1]),
        start,
        count,
        task,
        index,
        torch.tensor(alphas, dtype=torch.float64),
        logs(size),
        given,
        size,
        size,
        variant,
        1000,
        min_distance,
        (1e-3, 0.5),
    )


def corpus(sizes: tuple[int, ...], dtype: torch.dtype, d: int = 72) -> tuple[torch.Tensor, torch.Tensor]:
    """Tasks of every kind and of these sizes, padded [T, N, d] with rows that must not be read, and their sizes."""
    width = max(sizes)
    made = torch.full((len(KINDS) * len(sizes), width, d), math.nan)
    count = []
    for kind, make in KINDS.items():
        for n in sizes:
            rows = make(n, np.random.default_rng([n, list(KINDS).index(kind)]))[:, :d]
            made[len(count), :n] = 0
            made[len(count), :n, : rows.shape[1]] = torch.from_numpy(rows)
            count.append(n)
    return made.to(dtype), torch.tensor(count)


def tied(weights: list[float], config: FaseConfig) -> bool:
    """Whether the two best grid points of the density are the same but for one part in a million (SPEC 4)."""
    w = np.array(weights)
    if len(w) < 2 or w.min() == w.max():
        return False
    bandwidth = len(w) ** -0.2 * w.std(ddof=1)
    if bandwidth < 1e-6:  # all weights differ by less than the distances may
        return True
    grid = np.linspace(w.min(), w.max(), config.grid)
    density = np.exp(-0.5 * ((grid[:, None] - w) / bandwidth) ** 2).sum(1)
    # What a distance's error of 2e-7 moves the density by, beside what is called a tie.
    near = density >= density.max() * (1 - 1e-6 - 2e-7 / bandwidth)
    where = np.flatnonzero(near)
    return bool(where[-1] - where[0] > 1)


def agree(scores: Scores, x: torch.Tensor, count: torch.Tensor, config: FaseConfig) -> int:
    """Assert that the scores are the reference's; the number of (task, alpha) at which classes were compared.

    Distances may be off by 1e-6 and are by 3e-7 at most, which moves what follows: the mode by as much, unless two grid
    points tie; the radius in proportion; the classes where an edge is within that of the radius. Those are left out,
    and counted by the caller.
    """
    expected = score_embeddings(torch.nan_to_num(x.float()), count, config=config, backend="reference")
    torch.testing.assert_close(scores["status"], expected.status, rtol=0, atol=0)
    for name in ("mst_mean", "pdm_mean"):
        close(scores, expected, name, 4e-7)
    compared = 0
    low = config.multiscale_range[0] if config.multiscale_range else 1e-3
    # A merge's height is the logarithm of its weight; nothing moves below the range.
    close(scores, expected, "multiscale", 4e-7 / low / math.log(0.5 / low))
    for task, n in enumerate(count.tolist()):
        if expected.status[task] != Status.OK:
            assert scores["n_clusters"][task].tolist() == expected.n_clusters[task].tolist()
            assert scores["labels"][task, :, :n].tolist() == expected.labels[task, :, :n].tolist()
            continue
        rows = x[task, :n].double().numpy()
        weights = [w for w, _, _ in reference.kruskal(reference.cosine_distances(rows, 1e-6)[0])]
        if tied(weights, config):
            continue
        step = (max(weights) - min(weights)) / (config.grid - 1)
        assert abs(float(scores["mode"][task]) - float(expected.mode[task])) <= 4e-7 + step * 1.01
        for a in range(len(config.scale_list)):
            eps, right = float(scores["eps"][task, a]), float(expected.eps[task, a])
            slack = abs(eps - right) + 4e-7
            assert abs(eps - right) <= 1e-5 * right + (step + 4e-6) * config.scale_list[a]
            if float(expected.margin[task, a]) * right <= slack:
                continue
            compared += 1
            assert scores["labels"][task, a, :n].tolist() == expected.labels[task, a, :n].tolist()
            assert int(scores["n_clusters"][task, a]) == int(expected.n_clusters[task, a])
            for name in ("entropy", "bits"):
                assert abs(float(scores[name][task, a]) - float(getattr(expected, name)[task, a])) < 1e-6
    padding = torch.arange(scores["labels"].shape[2]) >= count[:, None]
    assert (scores["labels"].permute(0, 2, 1)[padding] == -1).all()
    return compared


def close(scores: Scores, expected: FaseResult, name: str, tolerance: float) -> None:
    right: torch.Tensor = getattr(expected, name).float()
    torch.testing.assert_close(
        scores[name], right, rtol=2 * UNIT, atol=tolerance, equal_nan=True, msg=lambda m: f"{name}: {m}"
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("size", "sizes"), [(16, (1, 2, 3, 10, 15, 16)), (32, (17, 31, 32)), (64, (33, 63, 64))])
def test_scores_are_the_references(size: int, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    x, count = corpus(sizes, dtype)
    scores = launch(x, count, size)
    compared = agree(scores, x, count, FaseConfig(alpha=ALPHAS))
    assert compared > 0.6 * len(ALPHAS) * (count > 1).sum()


@pytest.mark.parametrize("variant", RADIUS_VARIANTS)
def test_every_variant(variant: str) -> None:
    x, count = corpus((2, 5, 16), torch.float32)
    fixed = {"eps": ALPHAS} if variant == "fixed_eps" else {"alpha": ALPHAS}
    config = FaseConfig(variant=variant, **fixed)  # type: ignore[arg-type]
    assert agree(launch(x, count, 16, variant=variant), x, count, config) > len(ALPHAS) * 12


@pytest.mark.parametrize("d", [1, 7, 33, 128, 2100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_any_dimension(d: int, dtype: torch.dtype) -> None:
    """Of no multiple of anything, and of so many that the tensor core's sums are taken in slices of several blocks."""
    rng = np.random.default_rng(d)
    centres = rng.standard_normal((6, 3, d))[np.arange(6)[:, None], rng.integers(3, size=(6, 10))]
    spread = 10.0 ** rng.uniform(-1, 0, (6, 10, 1))
    x = torch.from_numpy(centres + spread * rng.standard_normal((6, 10, d))).to(dtype)
    count = torch.tensor([10, 2, 4, 9, 10, 7])
    assert agree(launch(x, count, 16), x, count, FaseConfig(alpha=ALPHAS)) >= (3 if d == 1 else 12)


def test_small_tasks_score_the_same_in_every_size_and_beside_any_others() -> None:
    x, count = corpus((2, 9, 16), torch.float32)
    alone = launch(x, count, 16)
    order = torch.randperm(count.numel(), generator=torch.Generator().manual_seed(0))
    moved = launch(x[order], count[order], 16)
    for name, column in alone.items():
        assert torch.equal(moved[name].view(torch.uint8), column[order].view(torch.uint8)), name
    larger = launch(x, count, 32)
    for name in ("status", "n_clusters", "pdm_mean", "mode", "eps", "entropy", "multiscale"):
        torch.testing.assert_close(larger[name], alone[name], rtol=1e-6, atol=1e-6, equal_nan=True)


def test_bad_tasks_have_statuses_and_harm_no_other() -> None:
    x, count = corpus((10,), torch.float32)
    good = launch(x, count, 16)
    bad = x.clone()
    bad[1, 3, 5] = math.nan
    bad[2, 9] = math.inf
    bad[3, 0] = 0
    bad[4, 2] = 0
    bad[4, 3, 0] = -math.inf
    count = count.clone()
    count[5], count[6] = 0, 1
    bad[6, 1:] = math.nan
    scores = launch(bad, count, 16)
    names = [Status(s).name for s in scores["status"].tolist()]
    assert names == ["OK", "NOT_FINITE", "NOT_FINITE", "ZERO_VECTOR", "NOT_FINITE", "EMPTY", "SINGLE", "OK"]
    for task in (0, 7):
        assert all(torch.equal(scores[k][task], good[k][task]) for k in good)
    for name in ("entropy", "bits", "eps", "margin", "multiscale", "mode", "mst_mean", "pdm_mean"):
        assert scores[name][1:7].isnan().all(), name
    assert (scores["labels"][1:6] == -1).all()
    assert scores["labels"][6].tolist() == [[0] + [-1] * 15] * len(ALPHAS)
    assert scores["n_clusters"][1:7, 0].tolist() == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lengths_that_float32_squares_do_not_hold(dtype: torch.dtype) -> None:
    x, count = corpus((10,), dtype)
    least = 1e-38 if dtype == torch.float32 else 1e-30  # the interpreter loses digits of bfloat16's subnormals
    lengths = torch.tensor([1e-29, 1e-20, 1e-12, 1.0, 1e12, 1e17, 1e25, 1e33, 1e37, least])
    scaled = (x.float() * 2.0 ** lengths.log2().round()[:, None]).to(dtype)
    exact = (scaled.float() / 2.0 ** lengths.log2().round()[:, None]) == x.float()
    assert exact.float().mean() > 0.98  # what the smallest rows lost to subnormals
    scores = launch(scaled, count, 16)
    assert agree(scores, scaled, count, FaseConfig(alpha=ALPHAS)) >= 12


def test_slots_of_tasks_of_other_sizes_and_empty_ones_are_passed_over() -> None:
    x, count = corpus((5, 16), torch.float32)
    whole = launch(x, count, 16)
    task = torch.tensor([3, -1, -1, 0, 7, -1, 12, -1])
    scores = launch(x, count, 16, task)
    for name, column in scores.items():
        chosen = torch.zeros(count.numel(), dtype=torch.bool)
        chosen[task[task >= 0]] = True
        assert torch.equal(column[chosen], whole[name][chosen]), name
        assert (column[~chosen] == POISON).all(), name
    launch(x, count, 16, torch.empty(0, dtype=torch.int64))


def test_a_task_larger_than_announced_has_a_status_and_no_score() -> None:
    x, count = corpus((20,), torch.float32)
    scores = launch(x, count, 16)
    assert (scores["status"] == Status.TOO_MANY).all()
    assert scores["entropy"].isnan().all()
    assert (scores["labels"] == -1).all()


def test_packed_rows_in_any_order_and_shared_ones() -> None:
    x, count = corpus((4, 9), torch.float32)
    whole = launch(x, count, 16)
    rows = torch.cat([task[:n] for task, n in zip(x, count.tolist(), strict=True)])
    start = count.cumsum(0) - count
    for stride in (rows.shape[1], rows.shape[1] + 3):  # rows that follow each other, and rows apart and not aligned
        apart = torch.full((rows.shape[0], stride), math.nan)
        apart[:, : rows.shape[1]] = rows
        packed = launch(apart[:, : rows.shape[1]] if stride > rows.shape[1] else rows, count, 16, start=start)
        assert all(torch.equal(packed[k], whole[k]) for k in whole)
    shuffled = torch.randperm(rows.shape[0], generator=torch.Generator().manual_seed(1))
    place = torch.empty_like(shuffled)
    place[shuffled] = torch.arange(rows.shape[0])
    shared = launch(rows[shuffled], count, 16, start=start, index=place)
    assert all(torch.equal(shared[k], whole[k]) for k in whole)


def test_many_alphas_and_no_labels() -> None:
    x, count = corpus((10,), torch.float32)
    alphas = tuple(np.linspace(0.1, 3, 30).tolist())
    swept = launch(x, count, 16, alphas=alphas)
    assert agree(swept, x, count, FaseConfig(alpha=alphas)) > 150
    without = launch(x, count, 16, alphas=alphas, labels=False)
    assert (without["labels"] == POISON).all()
    assert all(torch.equal(without[k], swept[k]) for k in swept if k != "labels")


def test_labels_narrower_and_wider_than_the_size() -> None:
    x, count = corpus((5,), torch.float32)
    for width in (5, 40):
        scores = launch(x, count, 16, scores=poisoned(count.numel(), len(ALPHAS), width))
        assert (scores["labels"][:, :, :5] >= 0).all()
        assert (scores["labels"][:, :, 5:16] == -1).all()
        assert (scores["labels"][:, :, 16:] == POISON).all()


def test_identical_rows_of_any_type_are_at_the_least_distance() -> None:
    for dtype in DTYPES:
        row = torch.randn(1, 1, 700, generator=torch.Generator().manual_seed(3)).to(dtype)
        x = (row * torch.tensor([1, 1, 2, 0.5])[:, None]).contiguous()
        for least in (1e-6, 1e-30):
            scores = launch(x, torch.tensor([4]), 16, min_distance=least)
            assert float(scores["mst_mean"]) == np.float32(least)


def test_what_is_shipped_is_what_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[dict[str, Any]] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Kernel:
            return self

        def __call__(self, *arguments: object, **options: object) -> None:
            launched.append(options)

    expected = [
        record.constants
        | {"num_warps": record.warps, "num_stages": record.stages, "maxnreg": record.maxnreg}
        | {"enable_fp_fusion": record.fp_fusion}
        for record in fused.shipped()
    ]
    monkeypatch.setattr(fused, "_fused_kernel", Kernel())
    monkeypatch.setattr(fused, "_INTERPRETED", False)
    for size in fused.SIZES:
        for dtype in DTYPES:
            for d in (32, 64, 65, 100, 384, 4096):
                x, count, task = torch.zeros(2, 3, d, dtype=dtype), torch.tensor([3, 2]), torch.tensor([1, 0])
                for index in (None, torch.arange(6)):
                    launch(x, count, size, task=task, index=index)
    assert all(options in launched for options in expected)
    plain = [options | {"INDEXED": False} for options in expected]
    assert all(options | {"INDEXED": False} in plain for options in launched)
