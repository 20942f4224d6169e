"""All samples of a set through the sandbox: who passes its task's tests."""

from __future__ import annotations

import math
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from fase_gpu.errors import InputError
from fase_gpu.evaluation.execution.kept import KeptOutcomes
from fase_gpu.evaluation.execution.sandbox import Ending, Isolation, Limits, Sandbox
from fase_gpu.evaluation.execution.tasks import Task, task_of
from fase_gpu.evaluation.outcomes import Outcome, fingerprint
from fase_gpu.files import SampleSet

MESSAGE_LENGTH = 200
# A program that had less than this share of its time on a processor may have been kept waiting by others.
_BUSY = 0.9
# What it gets then: so much of the wall time, on the condition that it has a processor for this share of it.
_PATIENCE, _SHARE = 4, 0.2


@dataclass(frozen=True)
class Execution:
    """What came of a run.

    outcomes     of every sample, in the order of the set
    distinct     (task, program) pairs that differ; each was run once
    kept         of those, how many an earlier, interrupted run had judged
    repeated     of those, how many were run again alone, because others may have been the reason that they failed
    isolation    of the processes
    seconds      wall time
    """

    outcomes: list[Outcome]
    distinct: int
    kept: int
    repeated: int
    isolation: Isolation
    seconds: float


@dataclass(frozen=True)
class _Pair:
    task: Task
    task_id: str
    program: str
    text: str
    run: str


def execute(
    samples: SampleSet,
    tasks: Mapping[str, Task],
    limits: Limits | None = None,
    *,
    workers: int | None = None,
    partial: Path | None = None,
    sandbox: Sandbox | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Execution:
    """Run every sample with its task's tests, each in a process of its own.

    This runs code that a language model wrote; `Sandbox` says how it is confined, `Isolation.missing` what it is not
    kept from here.

    Equal programs of one task are run once and have the same outcome. A program that ran out of time without having had
    a processor for nine tenths of it, or that was killed from outside, is run once more, alone, at the end, and the
    second outcome counts. There the limit is on its processor time, within four times the wall time, unless it neither
    had nor wanted a processor for most of its time. So neither other samples nor other work on the machine decides a
    label, short of a machine that is too busy even then.

    workers     processes at a time; by default as many as there are cores for this process. For root at most 14 run,
                as many as there are users that no one else is
    partial     a file that outcomes are appended to as they come, and read from first; the caller removes it
    sandbox     where to run; by default a new one with the best isolation that works
    progress    called with the number of pairs that are done and of all, from this thread

    Raises InputError, before anything is run, for samples whose task is not in `tasks`; SandboxError when processes
    cannot be started.
    """
    started = time.monotonic()
    limits = limits or Limits()
    workers = workers or len(os.sched_getaffinity(0))
    if workers < 1:
        raise InputError(f"workers: expected a positive number, got {workers}")
    chosen = _tasks(samples, tasks)
    with Sandbox() if sandbox is None else nullcontext(sandbox) as box:
        pairs: dict[tuple[str, str], _Pair] = {}
        for task_id, texts in zip(samples.task_ids, samples.samples, strict=True):
            run = f"{chosen[task_id].fingerprint()} {limits} {platform.python_version()} {box.isolation}"
            for text in texts:
                program = fingerprint(text)
                pairs.setdefault((task_id, program), _Pair(chosen[task_id], task_id, program, text, run))
        run_all = _Run(box, limits, len(pairs), progress)
        if partial is None:
            run_all.go(list(pairs.values()), workers, None)
        else:
            with KeptOutcomes(partial) as kept:
                run_all.go(list(pairs.values()), workers, kept)
        outcomes = [
            run_all.outcomes[task_id, fingerprint(text)]._replace(sample=i)
            for task_id, texts in zip(samples.task_ids, samples.samples, strict=True)
            for i, text in enumerate(texts)
        ]
        took = time.monotonic() - started
        return Execution(outcomes, len(pairs), run_all.kept, run_all.repeated, box.isolation, took)


class _Run:
    def __init__(
        self, sandbox: Sandbox, limits: Limits, pairs: int, progress: Callable[[int, int], None] | None
    ) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._pairs = pairs
        self._progress = progress
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        self.kept = 0
        self.repeated = 0

    def go(self, pairs: list[_Pair], workers: int, kept: KeptOutcomes | None) -> None:
        waiting = []
        for pair in pairs:
            found = kept.find(pair.run, pair.task_id, pair.program) if kept else None
            if found is None:
                waiting.append(pair)
            else:
                self.kept += 1
                self._done(pair, found, None)
        alone = []
        with ThreadPoolExecutor(workers) as pool:
            try:
                futures = {pool.submit(self._ending, pair, self._limits): pair for pair in waiting}
                for future in as_completed(futures):
                    pair, ending = futures[future], future.result()
                    if workers > 1 and _others_may_be_why(ending, self._limits):
                        alone.append(pair)
                    else:
                        self._done(pair, _outcome(pair, ending, self._limits), kept)
            except BaseException:
                # The pool would wait for processes that nobody wants any more.
                pool.shutdown(wait=False, cancel_futures=True)
                self._sandbox.interrupt()
                raise
        seconds = self._limits.seconds
        # A second more, for the kernel counts it more roughly than the verdict does.
        patient = replace(
            self._limits,
            seconds=_PATIENCE * seconds,
            cpu_seconds=math.ceil(seconds) + 1,
            idle=(seconds, _SHARE * seconds),
        )
        for pair in alone:
            self.repeated += 1
            ending = self._ending(pair, patient)
            if ending.seconds > seconds and not _SHARE * ending.seconds <= ending.cpu <= seconds:
                ending = ending._replace(ended="timeout")
            self._done(pair, _outcome(pair, ending, self._limits), kept)

    def _ending(self, pair: _Pair, limits: Limits) -> Ending:
        task = pair.task
        payload = {
            "program": pair.text,
            "kind": task.kind,
            "test": task.test,
            "entry_point": task.entry_point,
            "prompt": task.prompt,
            "defined": list(task.defined),
        }
        return self._sandbox.run("judge", payload, limits)

    def _done(self, pair: _Pair, outcome: Outcome, kept: KeptOutcomes | None) -> None:
        self.outcomes[pair.task_id, pair.program] = outcome
        if kept:
            kept.add(pair.run, outcome)
        if self._progress:
            self._progress(len(self.outcomes), self._pairs)


def _tasks(samples: SampleSet, tasks: Mapping[str, Task]) -> dict[str, Task]:
    found = {task_id: task_of(tasks, task_id) for task_id in samples.task_ids}
    unknown = [task_id for task_id, task in found.items() if task is None]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        some = ", ".join(repr(name) for name in list(tasks)[:3])
        raise InputError(f"tasks: no tests for {unknown[0]!r}{more}; the task file has {len(tasks)}: {some}, ...")
    return {task_id: task for task_id, task in found.items() if task is not None}


def _others_may_be_why(ending: Ending, limits: Limits) -> bool:
    starved = ending.ended == "timeout" and ending.cpu < _BUSY * limits.seconds
    return starved or (ending.ended == "exit" and ending.code == -signal.SIGKILL)


def _outcome(pair: _Pair, ending: Ending, limits: Limits) -> Outcome:
    passed, error, message = _verdict(ending, limits)
    shown = _shown(message)[:MESSAGE_LENGTH] or None
    return Outcome(pair.task_id, 0, pair.program, passed, error, shown, round(ending.seconds, 4))


def _verdict(ending: Ending, limits: Limits) -> tuple[bool, str | None, str]:
    if ending.ended == "timeout":
        return False, "timeout", f"more than {limits.seconds:g} s"
    if ending.forged:
        return False, "tampered", "wrote into the report"
    if ending.report is not None and ending.code == 0:
        verdict, _, rest = ending.report.partition("\n")
        if verdict == "passed":
            return True, None, ""
        error, _, message = rest.partition("\n")
        return False, _shown(error)[:MESSAGE_LENGTH], message
    if ending.code < 0:
        if ending.code in (-signal.SIGKILL, -signal.SIGXCPU) and ending.cpu > limits.seconds:
            return False, "timeout", f"more than {limits.seconds:g} s of all its threads' time"
        known = [found.name for found in signal.Signals if found == -ending.code]
        return False, "killed", known[0] if known else f"signal {-ending.code}"
    return False, "exit", f"exit status {ending.code}"


def _shown(text: str) -> str:
    """The text on one line, without what does not print."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
