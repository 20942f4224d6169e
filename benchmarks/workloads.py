"""What the cases compare: inputs, contenders on them, and the check that comes before any timing."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import fase_gpu as fg
from benchmarks import baselines
from benchmarks.baselines import Array, Scores, entropy_of, installed, scipy_task
from benchmarks.measure import ROOT, Contender, Work
from fase_gpu.encode import load_encoder

if TYPE_CHECKING:
    from benchmarks.cases import Case

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SAMPLES = ROOT / "examples" / "samples.jsonl"
_POOL = 1 << 27
"""Bytes of distinct tasks; larger inputs repeat them, at other places in memory."""
TOLERANCE = 1e-6
"""Of a distance (SPEC 2), and so of their means."""


def embeddings(tasks: int, n: int, d: int, dtype: str = "fp32", device: str = "cpu", seed: int = 0) -> torch.Tensor:
    """Tasks [T, n, d] such as encoders make of samples: a few groups of near-duplicates, distances up to about 0.3."""
    random = torch.Generator().manual_seed(seed)
    pool = max(1, min(tasks, _POOL // (4 * n * d)))
    groups = max(1, n // 3)
    group = torch.randint(groups, (pool, n, 1), generator=random).expand(-1, -1, d)
    apart = 10 ** (torch.rand(pool, groups, 1, generator=random) * 1.2 - 1.6)
    centre = torch.randn(pool, 1, d, generator=random) + apart * torch.randn(pool, groups, d, generator=random)
    spread = 10 ** (torch.rand(pool, n, 1, generator=random) * 1.5 - 2.2)
    x = torch.randn(pool, n, d, generator=random).mul_(spread).add_(centre.gather(1, group))
    found = torch.empty(tasks, n, d, dtype=TYPES[dtype], device=device)
    for start in range(0, tasks, pool):
        found[start : start + pool] = x[: tasks - start]
    return found


def disagreement(result: fg.FaseResult, tasks: Mapping[int, Array]) -> str:
    """What is wrong with the scores of some tasks, by place, against SciPy's in float64; "" if nothing is.

    Discrete results follow from the reported mode and radius: the mode must be a maximum of the density, to what the
    tolerance of the distances moves it, and the entropy must lie between those just above and just below the radius.
    """
    for t, rows in tasks.items():
        # Above this the check would take longer than the case.
        wide = len(rows) ** 2 * rows.shape[1] < 5e10
        truth = scipy_task(rows.astype(np.float64 if wide else np.float32), result.config.scale_list)
        problem = _difference(result, t, truth, TOLERANCE if wide else 3 * TOLERANCE)
        if problem:
            return f"task {t}: {problem}"
    return ""


def _difference(result: fg.FaseResult, t: int, truth: Scores, tolerance: float) -> str:
    if result.status[t] != 0:
        return f"status {fg.Status(int(result.status[t])).name}"
    for name, within in (("mst_mean", tolerance), ("pdm_mean", tolerance), ("multiscale", 2e-4)):
        got, expected = float(getattr(result, name)[t]), getattr(truth, name)
        if not abs(got - expected) <= within + 1e-6 * abs(expected):
            return f"{name}: expected {expected:.8g}, got {got:.8g}"
    mode, weights = float(result.mode[t]), truth.links[:, 2]
    if weights.min() < weights.max():
        here, best = baselines.density(weights, np.array([mode, truth.mode]))
        if not here >= best * (1 - 1e-3):
            return f"mode: density {here:.8g} at {mode:.8g}, but {best:.8g} at {truth.mode:.8g}"
    alphas = result.config.scale_list
    eps, entropy = result.eps[t].view(-1).tolist(), result.entropy[t].view(-1).tolist()
    for alpha, radius, got in zip(alphas, eps, entropy, strict=True):
        expected = alpha * mode * (1 - truth.mst_mean / truth.pdm_mean) if truth.mst_mean < truth.pdm_mean else 0.0
        if expected > 0 and not abs(radius - expected) <= 1e-4 * expected + 4 * alpha * tolerance:
            return f"eps: expected {expected:.8g}, got {radius:.8g}"
        least, most = (cut_entropy(truth.links, radius + side * 2 * tolerance) for side in (1, -1))
        if not least - 1e-6 <= got <= most + 1e-6:
            return f"entropy at radius {radius:.8g}: expected {least:.8g} to {most:.8g}, got {got:.8g}"
    return ""


def cut_entropy(links: Array, radius: float) -> float:
    from scipy.cluster.hierarchy import fcluster

    return entropy_of(fcluster(links, radius, "distance"))


def released_disagreement(tasks: Iterable[Array]) -> str:
    """Where semantics="released" gives another entropy than the released algorithm; "" if nowhere."""
    for t, rows in enumerate(tasks):
        result = fg.score_embeddings(rows[None], config=fg.FaseConfig(semantics="released"))
        got, expected = float(result.entropy[0]), baselines.released(rows)
        # The baseline's float32 distances move by a unit of the sixth decimal, and with them an edge near the radius.
        if abs(got - expected) > 1e-6 and float(result.margin[0] * result.eps[0]) > 5e-6:
            return f"released, task {t} of those checked: expected entropy {expected:.8g}, got {got:.8g}"
    return ""


def some_of(x: torch.Tensor) -> dict[int, Array]:
    """The tasks of [T, N, d] that are checked, from first to last."""
    tasks, n, _ = x.shape
    count = 8 if n <= 100 else 2 if n <= 1000 else 1
    places = np.unique(np.linspace(0, tasks - 1, count).astype(int)).tolist()
    return {t: x[t].float().cpu().numpy() for t in places}


def pipeline(case: Case, device: str) -> Work:
    """From embeddings to scores; on the same embeddings the baselines, and torch.bmm, which only multiplies."""
    x = embeddings(case.tasks, case.n, case.d, case.dtype, device)
    config = fg.FaseConfig(alpha=np.linspace(0.1, 3, case.alphas).tolist() if case.alphas > 1 else 1.6)
    alphas = config.scale_list
    small = case.n <= 1000
    ours = Contender("fase_gpu", lambda k: done(fg.score_embeddings(x, config=config)), case.tasks, warm=not small)
    contenders = [ours]
    some = some_of(x)

    def check() -> str:
        problem = disagreement(fg.score_embeddings(x, config=config), some)
        return problem or (released_disagreement(list(some.values())[: 8 if case.n <= 100 else 1]) if small else "")

    if case.against:
        plain = x[: 4096 if small else 1].float().cpu().numpy()
        released = partial(baselines.released_sweep, alphas=alphas)
        for name, task in (("released", released), ("scipy", partial(scipy_task, alphas=alphas))):
            if name == "scipy" or small:
                contenders.append(_baseline(name, task, plain, case.tasks, torch.get_num_threads()))
    contenders.append(Contender("bmm", lambda k: done(torch.bmm(x, x.mT)), case.tasks))
    if device == "cuda":
        contenders += _on_gpu(x)
    return Work(contenders, check, () if installed("cuml") or device == "cpu" else ("cuml",))


def _baseline(name: str, task: Callable[[Array], object], x: Array, tasks: int, processes: int) -> Contender:
    """One task after another, or slices of them over all cores."""
    processes = min(processes, tasks)
    if processes == 1:
        return Contender(name, lambda k: baselines.one_by_one(task, x[:k]), min(len(x), tasks), part=True)
    run = partial(baselines.over_cores, task)
    name = f"{name} x {processes}"
    return Contender(name, lambda k: run(x[:k], processes), min(len(x), tasks), part=True, starts=True)


def _on_gpu(x: torch.Tensor) -> list[Contender]:
    """What there is to compare with on a GPU. Never run here: there was none."""
    compiled = torch.compile(partial(fg.score_embeddings, backend="torch"))
    found = [
        Contender("torch.compile", lambda k: done(compiled(x)), len(x)),
        Contender("copy", lambda k: done(x.clone()), len(x)),
    ]
    if installed("cuml"):
        eps = fg.score_embeddings(x).eps.tolist()
        unit = torch.nn.functional.normalize(x.float(), dim=-1)

        def dbscan(k: int) -> None:
            for t in range(k):
                baselines.cuml_task(unit[t], eps[t])

        found.append(Contender("cuml", dbscan, len(x), True))
    return found


def done(result: object) -> None:
    """A result is dropped where it is made, so that no contender pays for freeing another's."""


def batch(case: Case, device: str) -> Work:
    """One call at a size of batch."""
    x = embeddings(case.tasks, case.n, case.d, case.dtype, device)
    some = some_of(x)
    return Work(
        [
            Contender("fase_gpu", lambda k: done(fg.score_embeddings(x)), case.tasks, warm=case.tasks > 10**4),
            Contender("bmm", lambda k: done(torch.bmm(x, x.mT)), case.tasks),
        ],
        lambda: disagreement(fg.score_embeddings(x), some),
    )


def ragged(case: Case, device: str) -> Work:
    """Tasks of 2 to 64 samples, packed."""
    n = np.random.default_rng(0).integers(2, 65, case.tasks)
    offsets = np.concatenate([[0], np.cumsum(n)])
    padded = embeddings(case.tasks, 64, case.d, case.dtype, device)
    x = torch.cat([rows[:k] for rows, k in zip(padded, n.tolist(), strict=True)])
    plain = [x[a:b].float().cpu().numpy() for a, b in pairwise(offsets.tolist())]
    return Work(
        [
            Contender("fase_gpu", lambda k: done(fg.score_embeddings(x, offsets=offsets)), case.tasks),
            Contender("released", lambda k: baselines.one_by_one(baselines.released, plain[:k]), case.tasks, True),
            Contender("scipy", lambda k: baselines.one_by_one(scipy_task, plain[:k]), case.tasks, True),
        ],
        lambda: disagreement(fg.score_embeddings(x, offsets=offsets), dict(enumerate(plain[:16]))),
    )


def requests(case: Case, device: str) -> Work:
    """Requests of a few tasks each, one call after another; a task of the record is a request."""
    count = 256
    x = embeddings(count * case.tasks, case.n, case.d, case.dtype, device).view(count, case.tasks, case.n, case.d)
    scorer = fg.Scorer(case.tasks, case.n, case.d, TYPES[case.dtype], device)
    plain = x.float().cpu().numpy()

    def each(score: Callable[[Any], object], batches: Any) -> Callable[[int], None]:
        return lambda k: [score(one) for one in batches[:k]].clear()

    return Work(
        [
            Contender("fase_gpu", each(scorer, x), count, True),
            Contender("score_embeddings", each(fg.score_embeddings, x), count, True),
            Contender("released", each(partial(baselines.one_by_one, baselines.released), plain), count, True),
            Contender("scipy", each(partial(baselines.one_by_one, scipy_task), plain), count, True),
        ],
        lambda: disagreement(scorer(x[1]), dict(enumerate(plain[1]))),
    )


def stage(case: Case, device: str) -> Work:
    """One stage alone; imported here, so that a stage that has moved fails its own cases only."""
    from benchmarks import stages

    return stages.stage(case, device)


def tree(case: Case, device: str) -> Work:
    """The whole pipeline of one large task beside packages that only find its tree; all trees are exact."""
    x = embeddings(case.tasks, case.n, case.d, case.dtype, device)
    unit = torch.nn.functional.normalize(x[0].float(), dim=1).cpu().numpy()
    count = torch.get_num_threads()
    known = {"fast_hdbscan": baselines.fast_hdbscan_tree, "quitefastmst": baselines.quitefastmst_tree}
    there = {name: task for name, task in known.items() if installed(name)}

    def check() -> str:
        expected = float(fg.score_embeddings(x).mst_mean[0]) * (case.n - 1)
        for name, task in there.items():
            total = task(unit, count)
            if abs(total - expected) > TOLERANCE * case.n + 1e-5 * expected:
                return f"sum of the tree's weights: expected {total:.8g} as from {name}, got {expected:.8g}"
        return ""

    ours = Contender("fase_gpu", lambda k: done(fg.score_embeddings(x)), case.tasks)
    others = [
        Contender(name, lambda k, task=task: done(task(unit, count)), warm=True)  # type: ignore[misc]
        for name, task in there.items()
    ]
    return Work([ours, *others], check, [name for name in known if name not in there])


def texts() -> list[list[str]]:
    return [json.loads(line)["samples"] for line in SAMPLES.read_text().splitlines()]


def text(case: Case, device: str) -> Work:
    """From texts to scores, a neural encoder's loading included."""
    samples, encoder = texts(), case.name.split()[1]

    def ours() -> fg.FaseResult:
        return fg.score_samples(samples, encoder, device=device, normalize_code=False)

    def check() -> str:
        with torch.no_grad():
            oracle = fg.score_samples(samples, encoder, device=device, normalize_code=False, backend="reference")
        off = (ours().pdm_mean.double() - oracle.pdm_mean).abs().max().item()
        return "" if off <= TOLERANCE else f"pdm_mean: off by {off:.3g} from the reference backend"

    contenders = [Contender("fase_gpu", lambda k: done(ours()), len(samples))]
    if encoder == "ast":
        return Work(contenders, check)
    if not installed("sentence_transformers"):
        return Work(contenders, check, ["released"])

    def released(k: int) -> None:
        encode = baselines.sentence_encoder()
        for task in samples:
            baselines.released(encode(task))

    return Work([*contenders, Contender("released", released, len(samples))], check)


def encode(case: Case, device: str) -> Work:
    """Texts to vectors, the model loaded: one call for each task as the released code does, or one for all texts."""
    samples = texts()
    flat = [sample for task in samples for sample in task]
    encoder = load_encoder("all-MiniLM-L6-v2", device=device, normalize=False)
    ours = Contender("fase_gpu", lambda k: done(encoder.encode(flat)), len(samples), warm=True)
    names = ("sentence-transformers, a call a task", "sentence-transformers, one call")
    if not installed("sentence_transformers"):
        return Work([ours], lambda: "", names)
    other = baselines.sentence_encoder()
    distinct = list(dict.fromkeys(flat))

    def check() -> str:
        off = np.abs(encoder.encode(distinct).vectors.cpu().numpy() - other(distinct)).max()
        return "" if off < 1e-4 else f"vectors: off by {off:.3g} from sentence-transformers"

    per_task = Contender(names[0], lambda k: [other(task) for task in samples].clear(), len(samples), warm=True)
    together = Contender(names[1], lambda k: done(other(distinct)), len(samples), warm=True)
    return Work([ours, per_task, together], check)


def files(case: Case, device: str) -> Work:
    """The command, in a process of its own, from a file to a file."""
    folder = Path(tempfile.mkdtemp(prefix="fase-benchmarks-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    output, given = folder / "scores.parquet", [str(SAMPLES), "--encoder", case.name.split()[1]]
    if case.n:
        path = folder / "x.npy"
        np.save(path, embeddings(case.tasks, case.n, case.d).numpy())
        given = [str(path), "--embeddings"]
    command = [sys.executable, "-m", "fase_gpu", "score", *given, "-o", str(output), "--overwrite"]

    def run(k: int) -> None:
        subprocess.run(command, check=True, capture_output=True)

    def check() -> str:
        import pyarrow.parquet as parquet

        run(1)
        table = parquet.read_table(output).to_pydict()
        if len(table["entropy"]) != case.tasks or set(table["status"]) != {"OK"}:
            return f"expected {case.tasks} rows with status OK, got {len(table['entropy'])}"
        return ""

    return Work([Contender("fase_gpu", run, case.tasks)], check)


def busy(case: Case, device: str) -> Work:
    """The same call while so many other processes keep a core each busy, beside the quiet machine."""
    x = embeddings(case.tasks, case.n, case.d, case.dtype, device)
    some = some_of(x)

    def beside(processes: int) -> Callable[[int], float]:
        def run(k: int) -> float:
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
            try:
                time.sleep(0.2)
                calls, start = 0, time.perf_counter()
                while time.perf_counter() - start < 0.6:
                    fg.score_embeddings(x)
                    calls += 1
                return (time.perf_counter() - start) / calls
            finally:
                for other in others:
                    other.kill()
                    other.wait()

        return run

    count = int(case.name.rpartition(" ")[2])
    return Work(
        [
            Contender("fase_gpu", beside(count), case.tasks, own_clock=True),
            Contender("quiet", beside(0), case.tasks, own_clock=True),
        ],
        lambda: disagreement(fg.score_embeddings(x), some),
    )


def start(case: Case, device: str) -> Work:
    """Importing, and the first call after it, each in a new process that times itself."""
    timed = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
    call = "import torch, fase_gpu; fase_gpu.score_embeddings; x = torch.randn(100, 10, 384); "
    programs = {
        "import": {"fase_gpu": "import fase_gpu; fase_gpu.score_embeddings", "import torch": "import torch"},
        "first call": {"fase_gpu": "fase_gpu.score_embeddings(x)"},
    }[case.name]

    def program(body: str) -> Callable[[int], float]:
        code = (call if case.name == "first call" else "") + timed.format(body)
        return lambda k: float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)

    return Work([Contender(name, program(body), own_clock=True) for name, body in programs.items()], lambda: "")


def limit(case: Case, device: str) -> Work:
    """What the machine can do at most: bytes, floating-point operations or exponentials, counted as tasks."""
    x = torch.randn(1 << 26, device=device)
    y, small = torch.empty_like(x), torch.randn(1 << 18, device=device)
    square = x[: 1 << 20].view(1 << 10, 1 << 10)
    runs: dict[str, tuple[int, Callable[[], object]]] = {
        "read": (4 * x.numel(), lambda: x.sum()),
        "copy": (8 * x.numel(), lambda: y.copy_(x)),
        "multiply": (2 << 30, lambda: square @ square),
        "exp": (small.numel(), lambda: torch.exp(small, out=y[: 1 << 18])),
    }
    count, run = runs[case.name.split()[1]]
    return Work([Contender("machine", lambda k: done(run()), count)], lambda: "")
