"""The only place that chooses an executor."""

from __future__ import annotations

from typing import Final

from fase_gpu.errors import BackendError, InputError, nearest

BACKENDS: Final = ("auto", "torch", "reference", "triton")


def choose_backend(backend: str) -> str:
    """The executor for a request: a forced one or an error, never another in its place.

    Raises InputError for an unknown name and BackendError for one that cannot run.
    """
    if backend not in BACKENDS:
        raise InputError(f"backend: unknown {backend!r}; {nearest(str(backend), BACKENDS)}")
    if backend == "triton":
        raise BackendError('backend "triton": its kernels are not part of this version; use backend="torch" or "auto"')
    return "torch" if backend == "auto" else backend
