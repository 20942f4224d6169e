"""The only place that chooses an executor."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Final

from fase_gpu.config import FaseConfig
from fase_gpu.errors import BackendError, InputError, nearest

if TYPE_CHECKING:
    import torch

BACKENDS: Final = ("auto", "torch", "reference", "triton")
# Samples up to which the staged kernels keep a task's distances in memory.
LARGEST_MATRIX: Final = 1024


def torch_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, with its index; a GPU where there is one, else "cpu", for None. Raises InputError if it is
    not there."""
    import torch

    try:
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise InputError(f"device: expected cpu, cuda or cuda:N that is there, got {device!r}") from error


def known_backend(backend: str) -> None:
    """Raise InputError for a name that is none."""
    if backend not in BACKENDS:
        raise InputError(f"backend: unknown {backend!r}; {nearest(str(backend), BACKENDS)}")


def choose_backend(backend: str, device: torch.device, config: FaseConfig, largest_matrix: int = 0) -> str:
    """The executor for a request: "auto" is triton for CUDA tensors where its kernels can do what is asked for, and
    torch elsewhere; a forced one or an error, never another in its place.

    largest_matrix   samples of the largest distance matrix that is given, 0 where embeddings are

    Raises InputError for an unknown name and BackendError for one that cannot run.
    """
    known_backend(backend)
    installed = importlib.util.find_spec("triton") is not None
    lacking = _unsupported(config, largest_matrix)
    if backend == "auto":
        return "triton" if device.type == "cuda" and installed and lacking is None else "torch"
    if backend == "triton":
        if not installed:
            raise BackendError('backend "triton": triton is not installed here; use backend="torch" or "auto"')
        if device.type != "cuda" and not _interpreted():
            raise BackendError(
                f'backend "triton": expected tensors on a CUDA device, got {device.type}; use backend="torch" or '
                '"auto", or set TRITON_INTERPRET=1 before Python starts, which is for tests'
            )
        if lacking is not None:
            raise BackendError(f'backend "triton": {lacking}; use backend="torch" or "auto"')
    return backend


def _unsupported(config: FaseConfig, largest_matrix: int) -> str | None:
    """What the kernels lack, None where they can do it."""
    if config.min_samples != 2:
        return f"its kernels are for min_samples = 2, got {config.min_samples}"
    if config.variant == "fixed_mcs":
        return 'it has no variant "fixed_mcs"'
    if largest_matrix > LARGEST_MATRIX:
        return f"it takes distance matrices of up to {LARGEST_MATRIX} samples, got {largest_matrix}"
    return None


def _interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter, on tensors of a CPU."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
