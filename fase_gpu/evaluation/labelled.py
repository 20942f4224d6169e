"""Sample sets with the labels that scores are held against: who passed the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fase_gpu.errors import InputError
from fase_gpu.evaluation.outcomes import fingerprint, read_outcomes
from fase_gpu.files import read_samples


@dataclass(frozen=True)
class LabelledSet:
    """T tasks with their samples and, for each sample, whether it passed its task's tests.

    name       of the set: its file's name without the suffix
    task_ids   [T], all different
    prompts    [T], "" where the file has none
    samples    [T] lists of programs
    passed     [T] lists of booleans, one for each sample
    """

    name: str
    task_ids: list[str]
    prompts: list[str]
    samples: list[list[str]]
    passed: list[list[bool]]

    def __len__(self) -> int:
        return len(self.task_ids)

    @property
    def pass_at_1(self) -> NDArray[np.float64]:
        """[T] share of each task's samples that passed; NaN for a task without samples."""
        return np.array([np.mean(labels) if labels else np.nan for labels in self.passed], np.float64)


def read_labelled(path: str | Path, results: str | Path | None = None) -> LabelledSet:
    """Read a sample file with its labels: the field `passed` of its records, or a file that `fase-gpu execute` wrote.

    Raises InputError where a sample has no label, and where the results are of other samples.
    """
    texts = read_samples(path, labels=results is None, prompts=True)
    passed = texts.passed if results is None else _joined(texts.task_ids, texts.samples, results)
    if passed is None:
        raise InputError(f"{path}: has no labels (passed); give the results of fase-gpu execute with --results")
    prompts = texts.prompts or [""] * len(texts.task_ids)
    return LabelledSet(set_name(Path(path)), texts.task_ids, prompts, texts.samples, passed)


def read_sets(paths: Sequence[str | Path], results: Sequence[str | Path] = ()) -> list[LabelledSet]:
    """`read_labelled` of several files, whose names differ; results: none, or one for each of them, in order."""
    if results and len(results) != len(paths):
        raise InputError(f"results: expected none or one for each of {len(paths)} sample files, got {len(results)}")
    names = [set_name(Path(path)) for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name}: two sets have this name; rename one of the files")
    labels: Sequence[str | Path | None] = results or [None] * len(paths)
    return [read_labelled(path, of_path) for path, of_path in zip(paths, labels, strict=True)]


def set_name(path: Path) -> str:
    """What a sample set is called: its file's name without the suffixes."""
    name = path.name
    for suffix in (".gz", ".jsonl", ".json", ".parquet"):
        name = name.removesuffix(suffix)
    return name or path.name


def _joined(task_ids: list[str], samples: list[list[str]], results: str | Path) -> list[list[bool]]:
    """The labels of every sample from a result file."""
    found = {(outcome.task_id, outcome.sample): outcome for outcome in read_outcomes(results)}
    passed = []
    for task_id, texts in zip(task_ids, samples, strict=True):
        labels = []
        for i, text in enumerate(texts):
            outcome = found.get((task_id, i))
            if outcome is None:
                others = ", ".join(repr(name) for name in dict.fromkeys(name for name, _ in found) if name != task_id)
                raise InputError(
                    f"{results}: no result for sample {i} of task {task_id!r}; run fase-gpu execute on these samples "
                    f"(it has {others[:100] or 'no other task'})"
                )
            if outcome.program != fingerprint(text):
                raise InputError(f"{results}: task {task_id!r}: sample {i} is not the program that was run")
            labels.append(outcome.passed)
        passed.append(labels)
    return passed
