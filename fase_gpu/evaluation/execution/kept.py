"""Outcomes of a run that is not complete: a file beside the output from which the same command continues."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType

from fase_gpu.evaluation.outcomes import Outcome, outcome_of

_Key = tuple[str, str]


class KeptOutcomes:
    """A file with a line for every program that was judged: its outcome, and `run`, what it was judged with.

    Outcomes that were judged with something else, and a last line that was cut off, are not found again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[tuple[str, _Key], Outcome] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                outcome = outcome_of(record)
                if outcome is not None and isinstance(record.get("run"), str):
                    self._found[record["run"], (outcome.task_id, outcome.program)] = outcome
        # Begins with the end of a line that a killed run may have left open.
        self._stream = open(path, "ab")  # noqa: SIM115
        self._stream.write(b"\n" if path.stat().st_size else b"")

    def __enter__(self) -> KeptOutcomes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()

    def find(self, run: str, task_id: str, program: str) -> Outcome | None:
        return self._found.get((run, (task_id, program)))

    def add(self, run: str, outcome: Outcome) -> None:
        self._stream.write(json.dumps({**outcome._asdict(), "run": run}).encode() + b"\n")
        self._stream.flush()
