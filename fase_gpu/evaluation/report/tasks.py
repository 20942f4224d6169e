"""The tasks of a report: one or more sample sets one after another, with labels where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fase_gpu.errors import InputError
from fase_gpu.evaluation.labelled import read_labelled, set_name
from fase_gpu.files import read_samples


@dataclass(frozen=True, eq=False)
class ReportTasks:
    """T tasks of all sets.

    sets       names of the sets, all different
    set_of     [T] which of them each task is of
    task_ids   [T], all different within a set
    prompts    [T], "" where there is none
    samples    [T] lists of programs
    passed     [T] lists of booleans, one for each sample; None for a task of a set without labels
    """

    sets: list[str]
    set_of: NDArray[np.int64]
    task_ids: list[str]
    prompts: list[str]
    samples: list[list[str]]
    passed: list[list[bool] | None]

    def __len__(self) -> int:
        return len(self.task_ids)

    @property
    def pass_at_1(self) -> NDArray[np.float64]:
        """[T] share of samples that passed; NaN for a task without labels or samples."""
        return np.array([np.mean(labels) if labels else np.nan for labels in self.passed], np.float64)


def read_tasks(paths: Sequence[str | Path], results: Sequence[str | Path] = ()) -> ReportTasks:
    """Read sample files; labels come from their `passed`, or from a result file for each of them, in their order.

    Raises InputError where a file cannot be read, where results are of other samples, and where there are not as many
    result files as sample files.
    """
    if results and len(results) != len(paths):
        raise InputError(f"results: expected one file for each of {len(paths)} sample files, got {len(results)}")
    sets: list[_Set] = []
    for i, path in enumerate(paths):
        if results:
            s = read_labelled(path, results[i])
            sets.append((s.name, s.task_ids, s.prompts, s.samples, list(s.passed)))
        else:
            texts = read_samples(path, labels=True, prompts=True)
            count = len(texts.task_ids)
            passed: list[list[bool] | None] = [None] * count if texts.passed is None else list(texts.passed)
            sets.append((set_name(Path(path)), texts.task_ids, texts.prompts or [""] * count, texts.samples, passed))
    return _joined(sets)


_Set = tuple[str, list[str], list[str], list[list[str]], list[list[bool] | None]]


def _joined(sets: Sequence[_Set]) -> ReportTasks:
    tasks = ReportTasks([], np.repeat(np.arange(len(sets)), [len(s[1]) for s in sets]), [], [], [], [])
    for name, task_ids, prompts, samples, passed in sets:
        tasks.sets.append(_unused(name, tasks.sets))
        tasks.task_ids.extend(task_ids)
        tasks.prompts.extend(prompts)
        tasks.samples.extend(samples)
        tasks.passed.extend(passed)
    return tasks


def _unused(name: str, taken: Sequence[str]) -> str:
    """The name, with a number behind it where files of different folders share it."""
    names = (f"{name} ({i})" if i > 1 else name for i in range(1, len(taken) + 2))
    return next(candidate for candidate in names if candidate not in taken)
