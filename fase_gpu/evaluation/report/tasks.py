"""The tasks of a report: one or more sample sets one after another, with labels where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fase_gpu.evaluation.labelled import paired, read_with_labels, set_name


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
    tasks = ReportTasks([], np.empty(0, np.int64), [], [], [], [])
    sizes = []
    for path, of_path in paired(paths, results):
        texts = read_with_labels(path, of_path)
        sizes.append(len(texts.task_ids))
        tasks.sets.append(_unused(set_name(Path(path)), tasks.sets))
        tasks.task_ids.extend(texts.task_ids)
        tasks.prompts.extend(texts.prompts or [])
        tasks.samples.extend(texts.samples)
        tasks.passed.extend(texts.passed or [None] * len(texts.task_ids))
    return replace(tasks, set_of=np.repeat(np.arange(len(sizes)), sizes))


def _unused(name: str, taken: Sequence[str]) -> str:
    """The name, with a number behind it where files of different folders share it."""
    names = (f"{name} ({i})" if i > 1 else name for i in range(1, len(taken) + 2))
    return next(candidate for candidate in names if candidate not in taken)
