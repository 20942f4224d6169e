"""Sample sets with the labels that scores are held against: who passed the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fase_gpu.errors import InputError
from fase_gpu.evaluation.outcomes import fingerprint, read_outcomes
from fase_gpu.files import SampleSet, read_samples


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
    texts = read_with_labels(path, results)
    if texts.passed is None:
        raise InputError(f"{path}: has no labels (passed); give the results of fase-gpu execute with --results")
    assert texts.prompts is not None
    return LabelledSet(set_name(Path(path)), texts.task_ids, texts.prompts, texts.samples, texts.passed)


def read_with_labels(path: str | Path, results: str | Path | None) -> SampleSet:
    """A sample file with its prompts and, where there are any, its labels, as `read_labelled` finds them."""
    texts = read_samples(path, labels=results is None, prompts=True)
    return texts if results is None else replace(texts, passed=_joined(texts.task_ids, texts.samples, results))


def paired(paths: Sequence[str | Path], results: Sequence[str | Path]) -> list[tuple[str | Path, str | Path | None]]:
    """Each sample file with its results; these are none, or one for each, in order. Raises InputError otherwise."""
    if results and len(results) != len(paths):
        raise InputError(f"results: expected none or one for each of {len(paths)} sample files, got {len(results)}")
    labels: Sequence[str | Path | None] = results or [None] * len(paths)
    return list(zip(paths, labels, strict=True))


def read_sets(paths: Sequence[str | Path], results: Sequence[str | Path] = ()) -> list[LabelledSet]:
    """`read_labelled` of several files, whose names differ; results: none, or one for each of them, in order."""
    names = [set_name(Path(path)) for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name}: two sets have this name; rename one of the files")
    return [read_labelled(path, of_path) for path, of_path in paired(paths, results)]


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
