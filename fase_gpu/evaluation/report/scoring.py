"""Scores of a report's tasks, and their entropies over radii for the figures: every text encoded once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from fase_gpu import executor
from fase_gpu.batching import EmbeddingSource
from fase_gpu.config import RADIUS_VARIANTS, FaseConfig
from fase_gpu.errors import InputError
from fase_gpu.evaluation.report.tasks import ReportTasks
from fase_gpu.inputs import class_ids
from fase_gpu.results import FaseResult, RunInfo
from fase_gpu.samples import collect, encode, load_encoders, text_classes

ALPHAS: Final = tuple(round(0.1 * step, 1) for step in range(1, 31))
"""The paper's sweep, for every radius but the fixed one."""
RADII: Final = tuple(round(0.01 * step, 2) for step in range(1, 21))
"""The paper's sweep of fixed_eps."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Entropies of T tasks at A scales of a variant's radius."""

    variant: str
    scales: tuple[float, ...]
    """[A] alphas; radii for "fixed_eps"."""
    entropy: NDArray[np.float64]
    """[T, A], NaN for a task without a score."""


@dataclass(frozen=True, eq=False)
class Scored:
    """What is known of T tasks before anything is drawn.

    result       of score_samples, its tensors on the CPU
    source       the embeddings that it came from
    sweeps       one for each of RADIUS_VARIANTS; none where no task has labels
    structural   [T] entropy of the syntax-tree classes, NaN for a task without a score; None where no task has labels
    """

    result: FaseResult
    source: EmbeddingSource
    sweeps: list[Sweep]
    structural: NDArray[np.float64] | None

    @property
    def ok(self) -> NDArray[np.bool_]:
        """[T] whether a task has a score."""
        return np.asarray(self.result.status.numpy() == 0)


def score_tasks(
    tasks: ReportTasks,
    encoder: str,
    config: FaseConfig | None = None,
    *,
    normalize_code: bool = True,
    batch_tokens: int | None = None,
    device: str | torch.device | None = None,
    workers: int | None = None,
) -> Scored:
    """Score every task as score_samples does; the arguments are its own.

    Raises InputError for a config whose classes do not come from one radius with min_samples = 2, which is all that the
    drawings of a task can show, and what score_samples raises.
    """
    config = FaseConfig.of(config)
    if config.variant not in RADIUS_VARIANTS or config.swept or config.min_samples != 2 or config.semantics != "paper":
        raise InputError(
            f"config: a report needs one alpha, min_samples 2, paper semantics and a variant of "
            f"{', '.join(RADIUS_VARIANTS)}; got {config.variant}"
        )
    texts = collect(tasks.samples)
    encoders = load_encoders(encoder, device, batch_tokens, normalize_code, workers)
    encoded = encode(texts, encoders, normalize_code)
    if config.multiscale_range is None:
        lows, highs = zip(*(e.multiscale_range for e in encoders), strict=True)
        config = replace(config, multiscale_range=(min(lows), max(highs)))
    source = encoded.source
    info = RunInfo(
        backend="torch",
        encoder=encoder,
        normalize_code=None if encoded.truncated is None else normalize_code,
        samples=int(source.n.sum()),
        distinct_texts=len(texts.distinct),
        truncated_samples=encoded.truncated,
        unparsable_samples=encoded.unparsable,
    )
    columns = {name: column.cpu() for name, column in executor.score(source, config, None).items()}
    result = FaseResult.of_columns(columns, torch.from_numpy(source.n), config, info)
    if not any(tasks.passed):
        return Scored(result, source, [], None)
    classes = class_ids(text_classes(texts, "structural", workers)[0], source.n, source.width, source.device)
    by_shape = replace(config, variant="structural", eps=None, return_labels=False)
    structural = executor.score(source, by_shape, classes)["entropy"][:, 0]
    return Scored(result, source, [_sweep(source, config, v) for v in RADIUS_VARIANTS], _array(structural))


def _sweep(source: EmbeddingSource, config: FaseConfig, variant: str) -> Sweep:
    fixed = variant == "fixed_eps"
    scales = RADII if fixed else ALPHAS
    alpha, eps = (config.alpha, scales) if fixed else (scales, None)
    swept = replace(config, variant=variant, alpha=alpha, eps=eps, return_labels=False)
    return Sweep(variant, scales, _array(executor.score(source, swept, None)["entropy"]))


def _array(x: torch.Tensor) -> NDArray[np.float64]:
    return x.to("cpu", torch.float64).numpy()
