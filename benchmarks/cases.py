"""The registry: every case that `python -m benchmarks` runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks import workloads
from benchmarks.measure import Work

SIZES: Final = (5, 10, 20, 50, 100, 1000)
DIMENSIONS: Final = (384, 768, 1024, 2560, 4096)
_BYTES: Final = 1 << 27
"""Of a case's embeddings: more than caches hold."""
_PRODUCTS: Final = 4e9
"""Multiplications of a case at most, which one core does in a fraction of a second."""


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[Case, str], Work]
    """From the case and the device."""
    n: int = 0
    d: int = 0
    tasks: int = 1
    """T, what one call of fase_gpu takes."""
    dtype: str = "fp32"
    alphas: int = 1
    cores: bool = False
    """Whether it may use all threads of the run; else one, as the baselines do."""
    against: bool = True
    """Whether the baselines that take a task at a time run too."""
    quick: bool = False
    memory: bool = False
    """Whether peak memory is measured too, in a process of its own."""
    seconds: float = 2.0
    devices: tuple[str, ...] = ("cpu", "cuda")

    @property
    def group(self) -> str:
        return self.name.split()[0]


def cases(device: str = "cpu") -> list[Case]:
    """Those for the device, in the order in which they run."""
    found = [*_limits(), *_starts(), *_pipelines(), *_batches(), *_stages(), *_others()]
    return [case for case in found if device in case.devices]


def matching(found: list[Case], words: str) -> list[Case]:
    """Those whose names have all of the words in them; a word such as n=10 is a whole one, and not in n=100."""

    def has(name: str, word: str) -> bool:
        return word in (name.split() if "=" in word else name)

    return [case for case in found if all(has(case.name.lower(), word) for word in words.lower().split())]


def _tasks(n: int, d: int, most: int = 20_000) -> int:
    return max(1, min(most, _BYTES // (4 * n * d), int(_PRODUCTS / (n * n * d))))


def _limits() -> list[Case]:
    return [
        Case(f"limit {what} {'all cores' if cores else 'one core'}", workloads.limit, cores=cores, seconds=1)
        for what in ("read", "copy", "multiply", "exp")
        for cores in (False, True)
    ]


def _starts() -> list[Case]:
    return [
        Case("import", workloads.start, seconds=15, cores=True, quick=True, devices=("cpu",)),
        Case("first call", workloads.start, seconds=10, cores=True, devices=("cpu",)),
    ]


def _pipelines() -> list[Case]:
    """On one core up to n = 1000, beside loops over tasks; 10,000 takes seconds, and all cores."""

    def case(group: str, n: int, d: int, dtype: str = "fp32", **settings: Any) -> Case:
        return Case(f"{group} n={n} d={d} {dtype}", workloads.pipeline, n, d, _tasks(n, d), dtype, **settings)

    quick = {(10, 384), (10, 1024), (100, 768), (1000, 768)}
    found = [
        case("pipeline", n, d, quick=(n, d) in quick, memory=d in (384, 4096), seconds=4 if n == 1000 else 2)
        for n in SIZES
        for d in DIMENSIONS
    ]
    found += [case("pipeline", n, d, "bf16") for n, d in ((10, 384), (10, 4096), (100, 768))]
    found += [
        case("cores", n, d, cores=True, seconds=3)
        for n, d in [(10, d) for d in DIMENSIONS] + [(50, 768), (100, 768), (1000, 768)]
    ]
    return found + [
        case("cores", 10_000, d, cores=True, against=d == 384, memory=d in (384, 4096), seconds=4) for d in DIMENSIONS
    ]


def _batches() -> list[Case]:
    """10^6 tasks of d = 384 would be 15 GB, so there d is 64, with 10^5 of the same beside it."""
    sizes = [(10**k, 384) for k in range(6)] + [(10**5, 64), (10**6, 64)]
    return [
        Case(
            f"batch {tasks} n=10 d={d} fp32", workloads.batch, 10, d, tasks, cores=True, seconds=2, memory=tasks > 10**4
        )
        for tasks, d in sizes
    ]


def _stages() -> list[Case]:
    names = ("distances", "tree", "mode", "multiscale", "labels")
    return [
        Case(f"stage {name} n={n} d=384", workloads.stage, n, 384, quick=n == 10, seconds=1)
        for n in (10, 100, 1000)
        for name in names
    ]


def _others() -> list[Case]:
    sweeps = [
        Case(f"alphas {k} n=10 d=384", workloads.pipeline, 10, 384, 5000, alphas=k, quick=k == 30, memory=k == 300)
        for k in (1, 30, 300)
    ]
    small = [
        Case(f"requests {k} n=10 d=384", workloads.requests, 10, 384, k, quick=k == 1, seconds=2) for k in (1, 10, 100)
    ]
    text = [
        Case("text ast", workloads.text, tasks=24, quick=True, cores=True, seconds=2),
        Case("text all-MiniLM-L6-v2", workloads.text, tasks=24, cores=True, seconds=10),
        Case("encode all-MiniLM-L6-v2", workloads.encode, tasks=24, cores=True, seconds=10),
    ]
    files = [
        Case("files ast", workloads.files, tasks=24, cores=True, seconds=8, devices=("cpu",)),
        Case("files embeddings", workloads.files, 10, 384, 10_000, cores=True, seconds=8, devices=("cpu",)),
    ]
    trees = [
        Case("mst n=1000 d=384", workloads.tree, 1000, 384),
        Case("mst n=10000 d=384", workloads.tree, 10_000, 384, cores=True, seconds=8),
    ]
    beside = [
        Case(f"busy n=10 d=384 beside {k}", workloads.busy, 10, 384, 10_000, cores=True, seconds=8, devices=("cpu",))
        for k in (1, 2)
    ]
    return [
        Case("ragged n=2..64 d=384", workloads.ragged, 64, 384, 1000, quick=True),
        *sweeps,
        *small,
        *text,
        *files,
        *trees,
        *beside,
    ]
