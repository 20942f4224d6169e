"""Reading many texts: each distinct one once, in worker processes where there are enough of them."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final, Protocol, TypeVar

from fase_gpu.encode import _syntax_tree
from fase_gpu.errors import BackendError, InputError

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

CHARS_PER_WORKER: Final = 100_000
"""What one worker must have to read before starting it pays: 30 ms of start against 4 MB/s."""
CHARS_PER_CHUNK: Final = 50_000
MAX_WORKERS: Final = 16
"""Beyond it this process's own share, moving texts and results, is the limit."""

Range = tuple[int, int]


class Job(Protocol[R_co]):
    """One of _syntax_tree's readings of a text; `readable=False` is the reading of a text that does not parse."""

    __name__: str

    def __call__(self, text: str, readable: bool = True) -> R_co: ...


def distinct(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """The distinct texts in first-seen order, and for each text its position among them.

    Raises InputError, with the index, for what is not a string.
    """
    if isinstance(texts, str):
        raise InputError("texts: expected a sequence of strings, got one string")
    seen: dict[str, int] = {}
    index = []
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"texts[{i}]: expected a string, got {type(text).__name__}")
        index.append(seen.setdefault(text, len(seen)))
    return list(seen), index


def read_each(job: Job[R], texts: Sequence[str], workers: int | None = None) -> list[R]:
    """`job` of every text, in order; the same whatever `workers` is.

    workers    processes; 0 reads in this one, None takes as many as there are cores and work for them

    A text that kills its worker is read as one that does not parse, and harms no other. Raises BackendError if no
    worker can be started.
    """
    chars = sum(map(len, texts))
    if workers is None:
        workers = 0 if chars < 2 * CHARS_PER_WORKER else min(chars // CHARS_PER_WORKER, _cores(), MAX_WORKERS)
    results: list[Any] = [None] * len(texts)
    chunks = deque(_chunks(texts))
    # A thread even for reading in this process: its stack is empty, so that the caller's depth does not count against
    # the nesting that Python's parser accepts.
    with ThreadPoolExecutor(max(workers, 1), thread_name_prefix="fase_gpu.read") as pool:
        read = _read_in_worker if workers else _read_here
        threads = [pool.submit(read, job, texts, chunks, results) for _ in range(min(max(workers, 1), len(chunks)))]
        try:
            for thread in threads:
                thread.result()
        except BaseException:
            chunks.clear()  # the other threads stop after the chunk they are at
            raise
    return results


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _chunks(texts: Sequence[str]) -> list[Range]:
    """Consecutive ranges that cover the texts, each of about CHARS_PER_CHUNK."""
    cuts = [0]
    chars = 0
    for i, text in enumerate(texts, start=1):
        chars += len(text)
        if chars >= CHARS_PER_CHUNK or i == len(texts):
            cuts.append(i)
            chars = 0
    return list(pairwise(cuts))


def _read_here(job: Job[Any], texts: Sequence[str], chunks: deque[Range], results: list[Any]) -> None:
    while chunks:
        start, stop = chunks.popleft()
        results[start:stop] = _syntax_tree.read_each(job, texts[start:stop])


def _read_in_worker(job: Job[Any], texts: Sequence[str], chunks: deque[Range], results: list[Any]) -> None:
    """Take chunks until there are none; halve one that killed the worker, until the guilty text is alone."""
    worker: _Worker | None = None
    try:
        while True:
            try:
                start, stop = chunks.popleft()
            except IndexError:
                return
            worker = worker or _Worker()
            read = worker.ask(job.__name__, list(texts[start:stop]))
            if read is not None:
                results[start:stop] = read
                continue
            worker.close()
            worker = None
            if stop - start == 1:
                results[start] = job(texts[start], readable=False)
            else:
                middle = (start + stop) // 2
                chunks.extendleft([(middle, stop), (start, middle)])
    finally:
        if worker is not None:
            worker.close()


class _Worker:
    """A process that runs _syntax_tree.py, isolated (-I -S) from the user's path and environment.

    Not from multiprocessing, whose spawn runs a caller's script again unless that has a `__main__` guard, and whose
    fork is unsafe beside torch's threads.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", _syntax_tree.__file__]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            raise BackendError(f"syntax-tree worker: {sys.executable!r} does not start ({error})") from error
        if self._receive() != "ready":
            self.close()
            raise BackendError(f"syntax-tree worker: {sys.executable!r} starts but does not run {command[-1]}")

    def ask(self, job: str, texts: list[str]) -> list[Any] | None:
        """The results, or None if the process died over them."""
        assert self._process.stdin is not None
        try:
            pickle.dump((job, texts), self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
        except OSError:
            return None
        results: list[Any] | None = self._receive()
        return results

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        try:
            return pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            return None

    def close(self) -> None:
        """End the process and its pipes."""
        self._process.kill()
        with contextlib.suppress(OSError):  # what a dead worker never took is still to be flushed
            self._process.__exit__(None, None, None)
