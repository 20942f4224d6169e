"""Scores of a report's tasks, and their entropies over radii for the figures: every text encoded once."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fase_gpu.batching import EmbeddingSource
from fase_gpu.config import RADIUS_VARIANTS, FaseConfig
from fase_gpu.errors import InputError
from fase_gpu.evaluation.methods import STRUCTURE, Method, all_methods, read_inputs
from fase_gpu.evaluation.report.tasks import ReportTasks
from fase_gpu.pipeline import score_source
from fase_gpu.results import FaseResult, Status

CURVES: Final = (*RADIUS_VARIANTS, "scaled_mst_mode" + STRUCTURE, "fixed_mcs")
MOST_CLUSTERED: Final = 1000
"""Tasks for which `fixed_mcs` is worked out."""


@dataclass(frozen=True, eq=False)
class Scored:
    """What is known of T tasks before anything is drawn.

    result     of score_samples, its tensors on the CPU
    source     the embeddings that it came from
    curves     CURVES over what they leave open; none where no task has labels
    levels     what leaves nothing open, beside multiscale; none where no task has labels
    """

    result: FaseResult
    source: EmbeddingSource
    curves: list[Method]
    levels: list[Method]

    @property
    def ok(self) -> NDArray[np.bool_]:
        """[T] whether a task has a score."""
        return np.asarray(self.result.status.numpy() == Status.OK)


def score_tasks(
    tasks: ReportTasks,
    encoder: str,
    config: FaseConfig | None = None,
    *,
    normalize_code: bool = True,
    batch_tokens: int | None = None,
    device: str | None = None,
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
    inputs = read_inputs(
        tasks.samples, encoder, normalize_code=normalize_code, device=device, batch_tokens=batch_tokens, workers=workers
    )
    config = replace(config, multiscale_range=config.multiscale_range or inputs.multiscale_range)
    result = score_source(inputs.source, config, "auto", None)
    info = replace(
        result.info,
        encoder=encoder,
        normalize_code=None if inputs.truncated is None else normalize_code,
        distinct_texts=len(inputs.texts.distinct),
        truncated_samples=inputs.truncated,
        unparsable_samples=inputs.unparsable,
    )
    found = {field.name: getattr(result, field.name) for field in fields(result)}
    columns: dict[str, Any] = {name: value.cpu() for name, value in found.items() if isinstance(value, torch.Tensor)}
    result = replace(result, info=info, **columns)
    if not any(tasks.passed):
        return Scored(result, inputs.source, [], [])
    # HDBSCAN takes a millisecond a task and size.
    wanted = [name for name in CURVES if name != "fixed_mcs" or len(tasks) <= MOST_CLUSTERED]
    methods = all_methods(inputs, only=[*wanted, "structural"])
    curves, levels = [m for m in methods if m.swept], [m for m in methods if not m.swept]
    return Scored(result, inputs.source, curves, levels)
