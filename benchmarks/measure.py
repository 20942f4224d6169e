"""Timing: contenders side by side in interleaved rounds, and what the machine was when they ran."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  (see `threads`)
import threadpoolctl
import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("torch", "numpy", "scipy", "scikit-learn", "triton", "joblib"),
    *("fast-hdbscan", "quitefastmst", "sentence-transformers", "transformers"),
)
_FEWEST, _MOST = 3, 25
"""Rounds."""
_OVERDRAWN = 3.0
"""A case whose single round takes so many times its budget is measured once, and the record says one round."""


@dataclass(frozen=True)
class Contender:
    name: str
    run: Callable[[int], float | None]
    """Works on the first k tasks."""
    tasks: int = 1
    """That one call takes."""
    part: bool = False
    """Whether a call may take fewer tasks: what works one task at a time takes the same for each."""
    starts: bool = False
    """Whether the first call starts processes, and every call costs something beside its tasks, which are told from
    more of them then."""
    own_clock: bool = False
    """Whether `run` returns the seconds that count; a turn is one call then."""
    warm: bool = False
    """Whether the check has run it already, and a call takes seconds: it is not run before the first round."""


@dataclass(frozen=True)
class Work:
    """What a case compares, on the same inputs; the first contender is fase_gpu."""

    contenders: Sequence[Contender]
    check: Callable[[], str]
    """What is wrong with fase_gpu's result, "" if nothing is."""
    missing: Sequence[str] = field(default=())
    """Contenders that are not installed."""


def quantiles(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = np.quantile(np.asarray(values, dtype=np.float64), (0.2, 0.5, 0.8)).tolist()
    return {"median": middle, "p20": low, "p80": high}


def rounds(contenders: Sequence[Contender], budget: float, device: str = "cpu") -> list[dict[str, Any]]:
    """Time per task of each contender, in rounds of one turn each until the budget [s] is used.

    A turn is as many calls, or as many of the tasks, as fill its share of the time.
    """
    turn = budget / (6 * len(contenders))
    plans = [_plan(contender, turn, device) for contender in contenders]
    seconds: list[list[float]] = [[] for _ in contenders]
    start = time.perf_counter()
    for done in range(1, _MOST + 1):
        for contender, (tasks, calls), taken in zip(contenders, plans, seconds, strict=True):
            taken.append(sum(_timed(contender, tasks, device) for _ in range(calls)) / (tasks * calls))
        spent = time.perf_counter() - start
        if (done >= _FEWEST and spent * (done + 1) / done > budget) or spent > _OVERDRAWN * budget:
            break
    entries = []
    for contender, (tasks, calls), taken in zip(contenders, plans, seconds, strict=True):
        # Time per task first, then a ratio for each round: what disturbs a round disturbs both of its sides.
        ratios = [theirs / ours for theirs, ours in zip(taken, seconds[0], strict=True)]
        entries.append(
            {
                "name": contender.name,
                "tasks": tasks,
                "calls": calls,
                "subset_of": contender.tasks if tasks < contender.tasks else None,
                "rounds": len(taken),
                "us_per_task": {name: 1e6 * value for name, value in quantiles(taken).items()},
                "tasks_per_s": 1 / quantiles(taken)["median"],
                "ratio": None if contender is contenders[0] else quantiles(ratios) | {"rounds": ratios},
            }
        )
    return entries


def _plan(contender: Contender, turn: float, device: str) -> tuple[int, int]:
    """Tasks and calls of a turn, from one or two calls that also warm up."""
    if contender.own_clock or contender.warm:
        return contender.tasks, 1
    tasks = min(contender.tasks, 200 if contender.starts else 2) if contender.part else contender.tasks
    if contender.starts:
        turn = max(turn, 1.0)
        _timed(contender, tasks, device)
    first = _timed(contender, tasks, device)
    took = first if first > turn else max(_timed(contender, tasks, device), 1e-9)
    if contender.part:
        tasks, took = _filling(contender.tasks, turn * tasks / took), took / tasks
        took *= tasks
    return tasks, _filling(1 << 20, turn / took)


def _filling(most: int, wanted: float) -> int:
    return max(1, min(most, int(wanted)))


def _timed(contender: Contender, tasks: int, device: str) -> float:
    _wait(device)
    start = time.perf_counter()
    own = contender.run(tasks)
    _wait(device)
    return time.perf_counter() - start if own is None else own


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """BLAS, OpenMP and torch with so many threads each; numba and processes are told by their baselines.

    Only libraries that are loaded are reached: SciPy's own BLAS comes with the import at the top of this file. Left to
    two threads, its solver of triangles, of which a density of 10 weights needs two, takes ten times as long on a busy
    machine.
    """
    before = torch.get_num_threads()
    with threadpoolctl.threadpool_limits(count):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory(run: Callable[[], object], device: str) -> dict[str, float]:
    """Resident MB of this process before the call and at most during it, and the GPU's.

    Linux's VmHWM, because getrusage's maximum starts at what the parent held when it forked.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    resident = _status("VmRSS")
    if resident is None:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        run()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    else:
        before = resident
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of what made the inputs
        run()
        peak = _status("VmHWM") or 0
    found = {"before_mb": before / 1e6, "peak_mb": peak / 1e6}
    return found | ({"device_peak_mb": torch.cuda.max_memory_allocated() / 1e6} if device == "cuda" else {})


def _status(name: str) -> int | None:
    path = Path("/proc/self/status")
    if not path.exists():
        return None
    (line,) = (line for line in path.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    found = {
        "cpu": names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": cores(),
        "memory_gb": round(pages / 1e9, 1),
        "system": platform.platform(terse=True),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def load() -> float | None:
    """Processes that want a core, averaged over a minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def environment() -> dict[str, str]:
    """Settings that change how threads wait and how many there are."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(("OMP_", "MKL_", "KMP_"))}


def commit() -> dict[str, Any]:
    """Of the checkout, and whether files that git knows have changed since."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True, check=False)
        return done.stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "-uno"))}
    except FileNotFoundError:
        return {"commit": "", "changed": False}


def date() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
