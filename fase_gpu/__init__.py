"""fase_gpu: how likely an LLM's solutions to a task are to be correct, from how much they agree."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fase_gpu.config import FaseConfig
    from fase_gpu.errors import BackendError, FaseError, InputError, MissingExtraError, TaskStatusError
    from fase_gpu.pipeline import score_distances, score_embeddings, score_samples
    from fase_gpu.results import FaseResult, RunInfo, Status
    from fase_gpu.scorer import Scorer

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "FaseConfig",
    "FaseError",
    "FaseResult",
    "InputError",
    "MissingExtraError",
    "RunInfo",
    "Scorer",
    "Status",
    "TaskStatusError",
    "score_distances",
    "score_embeddings",
    "score_samples",
]

# Loaded on first use, so that the command's help and the file readers do not wait for torch.
_HOMES = {
    "config": ("FaseConfig",),
    "errors": ("BackendError", "FaseError", "InputError", "MissingExtraError", "TaskStatusError"),
    "pipeline": ("score_distances", "score_embeddings", "score_samples"),
    "results": ("FaseResult", "RunInfo", "Status"),
    "scorer": ("Scorer",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fase_gpu' has no attribute {name!r}")
    value = getattr(import_module(f"fase_gpu.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
