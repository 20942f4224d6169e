"""torch.ops.fase_gpu.score: embeddings to scores as one operator, for torch.compile and CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from fase_gpu import executor, reference
from fase_gpu.backends import LARGEST_MATRIX, choose_backend
from fase_gpu.batching import EmbeddingSource, Rows
from fase_gpu.config import CLASS_VARIANTS, NEURAL_RANGE, FaseConfig
from fase_gpu.errors import InputError
from fase_gpu.inputs import FLOAT_TYPES
from fase_gpu.results import SCORES, SWEPT_SCORES, Status

COLUMNS: Final = (*SCORES, "n_clusters", "status", "labels")
"""What the operator returns, in this order; labels only where return_labels is set."""


def score(
    x: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    max_samples: int,
    config: FaseConfig | None = None,
    backend: str = "auto",
) -> dict[str, torch.Tensor]:
    """Score T tasks whose places are on the device, as one operator that torch.compile does not look into.

    x              [S, d] float32, float16, bfloat16 or float64
    start, count   [T] int64 on the device of x: first row and number of samples of each task. They are trusted: a task
                   has to lie within x
    max_samples    samples that a task may have; one that has more gets the status TOO_MANY. On a GPU at most 1024, and
                   then nothing waits for the device
    config         of a variant that needs no classes
    backend        as in score_embeddings

    The operator has no gradient. On a GPU the first call with a config copies its constants there: make one before
    capturing a graph of your own. Where tasks of more than 64 samples are allowed, a launch for each size has slots for
    all tasks, in chunks of 1 GiB of distances.

    Returns the fields of FaseResult by name, those of SWEPT_SCORES and n_clusters [T, A], labels [T, A, max_samples].
    Raises InputError for shapes, types and devices that cannot be, before anything is launched.
    """
    config = FaseConfig.of(config)
    if isinstance(max_samples, bool) or not isinstance(max_samples, (int, torch.SymInt)):
        raise InputError(f"max_samples: expected an integer, got {max_samples!r}")
    for name, tensor in (("x", x), ("start", start), ("count", count)):
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if config.variant in CLASS_VARIANTS or config.misaligned_union:
        raise InputError(f'variant: "{config.variant}" needs classes; use score_embeddings')
    low, high = config.multiscale_range or NEURAL_RANGE
    found = torch.ops.fase_gpu.score(
        x.detach(),
        start,
        count,
        max_samples,
        list(config.scale_list),
        config.variant,
        config.semantics,
        config.peak,
        config.min_samples,
        config.min_cluster_size,
        config.grid,
        config.min_distance,
        low,
        high,
        config.return_labels,
        backend,
    )
    return dict(zip(COLUMNS, found, strict=False))


@torch.library.custom_op("fase_gpu::score", mutates_args=())
def _score(
    x: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    max_samples: int,
    scales: Sequence[float],
    variant: str,
    semantics: str,
    peak: str,
    min_samples: int,
    min_cluster_size: int,
    grid: int,
    min_distance: float,
    low: float,
    high: float,
    return_labels: bool,
    backend: str,
) -> list[torch.Tensor]:
    """See score."""
    _check(x, start, count, max_samples)
    start, count = start.contiguous(), count.contiguous()
    fixed = variant == "fixed_eps"
    config = FaseConfig(
        alpha=1.6 if fixed else tuple(scales),
        eps=tuple(scales) if fixed else None,
        variant=variant,
        semantics=semantics,
        peak=peak,
        min_samples=min_samples,
        min_cluster_size=min_cluster_size,
        grid=grid,
        min_distance=min_distance,
        multiscale_range=(low, high),
        return_labels=return_labels,
    )
    chosen = choose_backend(backend, x.device, config)
    if chosen == "triton" and x.device.type == "cuda" and max_samples > LARGEST_MATRIX:
        raise InputError(
            f"max_samples: expected at most {LARGEST_MATRIX} where sizes stay on the device, "
            f"got {max_samples}; use score_embeddings"
        )
    with torch.autocast(x.device.type, enabled=False):
        if chosen == "triton":
            from fase_gpu import triton_executor  # imports Triton

            scores = triton_executor.blank(count.numel(), max_samples, config, x.device)
            batch = triton_executor.Batch(triton_executor.readable(x), start, count, None)
            with triton_executor.on_device(x.device):
                triton_executor.fill(scores, batch, config, max_samples, None)
        else:
            scores = _score_on_host(x, start, count, max_samples, config, chosen)
    return [scores[name] for name in COLUMNS if name in scores]


@_score.register_fake
def _(
    x: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    max_samples: int,
    scales: Sequence[float],
    variant: str,
    semantics: str,
    peak: str,
    min_samples: int,
    min_cluster_size: int,
    grid: int,
    min_distance: float,
    low: float,
    high: float,
    return_labels: bool,
    backend: str,
) -> list[torch.Tensor]:
    tasks, alphas = count.shape[0], len(scales)
    dtype = torch.float64 if backend == "reference" else torch.float32
    found = [x.new_empty((tasks, alphas) if name in SWEPT_SCORES else (tasks,), dtype=dtype) for name in SCORES]
    found += [x.new_empty((tasks, alphas), dtype=torch.int32), x.new_empty((tasks,), dtype=torch.int8)]
    if return_labels:
        found.append(x.new_empty((tasks, alphas, max_samples), dtype=torch.int32))
    return found


def _score_on_host(
    x: torch.Tensor, start: torch.Tensor, count: torch.Tensor, max_samples: int, config: FaseConfig, backend: str
) -> dict[str, torch.Tensor]:
    """By an executor that sorts the tasks on the host."""
    n = count.cpu().numpy()
    too_many = n > max_samples
    rows = Rows(x, start.cpu().numpy(), np.where(too_many, 0, np.maximum(n, 0)))
    source = EmbeddingSource((rows,), max_samples)
    scores = (reference if backend == "reference" else executor).score(source, config, None)
    scores["status"].masked_fill_(torch.from_numpy(too_many).to(x.device), Status.TOO_MANY)
    # An operator's outputs are tensors of their own, laid out as the fake ones are.
    return {name: column.contiguous() for name, column in scores.items()}


def _check(x: torch.Tensor, start: torch.Tensor, count: torch.Tensor, max_samples: int) -> None:
    if x.ndim != 2 or x.shape[1] < 1 or x.dtype not in FLOAT_TYPES:
        raise InputError(f"x: expected [S, d] of a float type, got shape {tuple(x.shape)} of {x.dtype}")
    for name, sizes in (("start", start), ("count", count)):
        if sizes.ndim != 1 or sizes.dtype != torch.int64 or sizes.shape != start.shape:
            raise InputError(f"{name}: expected [T] int64, got shape {tuple(sizes.shape)} of {sizes.dtype}")
        if sizes.device != x.device:
            raise InputError(f"{name}: expected on {x.device} as x, got {sizes.device}; move it there")
    if max_samples < 1:
        raise InputError(f"max_samples: expected at least 1, got {max_samples}")
