"""The exceptions that fase_gpu raises on purpose, all below `FaseError`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FaseError(Exception):
    """Anything that fase_gpu refuses: the message names the thing and the remedy, on one line."""


class InputError(FaseError, ValueError):
    """An argument, a tensor or a file that cannot be what it has to be."""


class MissingExtraError(FaseError, ImportError):
    """An optional package is not installed; the message gives the pip command."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs packages that are not installed: pip install 'fase-gpu[{extra}]'")


class BackendError(FaseError, RuntimeError):
    """A forced backend cannot run here."""


class SandboxError(FaseError, RuntimeError):
    """A sample could not be run: no verdict on it, but something is wrong with the machine."""


class TaskStatusError(FaseError, RuntimeError):
    """Under `strict`, a task that has no score (see `Status`)."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: "did you mean 'x'?", or the list of what there is."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
