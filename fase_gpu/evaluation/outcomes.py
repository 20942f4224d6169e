"""Result files of `fase-gpu execute`: a JSON object a line for every sample that was run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fase_gpu.errors import InputError
from fase_gpu.files.paths import open_binary
from fase_gpu.files.scores import check_target, moved_into_place


class Outcome(NamedTuple):
    """What came of running one sample with its task's tests; the fields of a line of a result file, in their order."""

    task_id: str
    sample: int
    """Position among the task's samples, from 0."""
    program: str
    """`fingerprint` of the sample's text, so that results are never taken for those of other samples."""
    passed: bool
    error: str | None
    """None where it passed; else "assertion", "syntax", "timeout", "memory", "killed", "exit" (ended before its tests
    did), "tampered" (changed what the tests are judged by), or the name of the exception's type."""
    message: str | None
    """What the exception said, cut; None where there was none."""
    seconds: float
    """Wall time of the sample's process."""


def fingerprint(text: str) -> str:
    """16 hexadecimal digits of a program's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_outcomes(path: str | Path) -> Iterator[Outcome]:
    """Outcomes in the order of the file. Raises InputError, with the line, for what is not one."""
    with open_binary(path) as stream:
        for number, line in enumerate(stream, start=1):
            try:
                outcome = outcome_of(json.loads(line))
            except ValueError:
                outcome = None
            if outcome is None:
                expected = f"an object with {', '.join(Outcome._fields)}"
                raise InputError(f"{path}:{number}: not a result of fase-gpu execute; expected {expected}")
            yield outcome


def outcome_of(record: Any) -> Outcome | None:
    """The outcome that a line of a file holds; None where a field is absent or not what it is declared as."""
    try:
        outcome = Outcome(*(record[name] for name in Outcome._fields))
    except (KeyError, TypeError):
        return None
    texts = [outcome.task_id, outcome.program]
    texts += [text for text in (outcome.error, outcome.message) if text is not None]
    valid = (
        all(isinstance(text, str) for text in texts)
        and type(outcome.sample) is int
        and type(outcome.passed) is bool
        and outcome.passed == (outcome.error is None)
        and type(outcome.seconds) in (int, float)
    )
    return outcome if valid else None


def write_outcomes(path: str | Path, outcomes: Iterable[Outcome], overwrite: bool = False) -> None:
    """Write a result file, which appears under its name when it is complete. Raises InputError where it cannot be."""
    check_target(path, overwrite)
    with moved_into_place(Path(path).resolve(), overwrite) as stream:
        for outcome in outcomes:
            stream.write(json.dumps(outcome._asdict()).encode() + b"\n")
