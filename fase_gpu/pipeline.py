"""The order of the stages: texts -> embeddings -> distances -> tree -> mode -> radius -> classes -> entropy."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from fase_gpu import executor, reference
from fase_gpu.backends import choose_backend, known_backend
from fase_gpu.batching import DistanceSource, EmbeddingSource
from fase_gpu.config import CLASS_VARIANTS, NEURAL_RANGE, FaseConfig
from fase_gpu.errors import InputError
from fase_gpu.inputs import class_ids, distance_source, embedding_source
from fase_gpu.results import FaseResult, RunInfo
from fase_gpu.samples import collect, encode, load_encoders, text_classes


def score_embeddings(
    x: Any,
    n_samples: Any = None,
    offsets: Any = None,
    config: FaseConfig | None = None,
    backend: str = "auto",
    *,
    classes: Sequence[Sequence[Hashable]] | None = None,
) -> FaseResult:
    """Score T tasks from the embeddings of their samples.

    x           padded [T, N, d], packed [S, d] with offsets, or a list of T [n, d]; a torch tensor, a NumPy array or
                anything with DLPack; float32, float16, bfloat16 or float64; not modified
    n_samples   [T] integers from 0 to N, for padded x; None: every task has N
    offsets     [T + 1] integers, task t is the rows offsets[t] .. offsets[t + 1], for packed x
    config      what to compute; None is FaseConfig()
    backend     "auto": "triton" for CUDA tensors, "torch" elsewhere; one of them; or "reference" (float64 NumPy, slow)
    classes     for the variants "union", "intersection", "structural" and "textual": a class, any hashable value, for
                each sample of each task

    Bad tasks have a status and NaN (see Status); bad arguments raise InputError. The result is on the device of x. On a
    GPU, sizes that live there are copied to the host once, to sort the tasks into buckets.
    """
    return score_source(embedding_source(x, n_samples, offsets), FaseConfig.of(config), backend, classes)


def score_distances(
    distances: Any,
    n_samples: Any = None,
    config: FaseConfig | None = None,
    backend: str = "auto",
    *,
    classes: Sequence[Sequence[Hashable]] | None = None,
) -> FaseResult:
    """Score T tasks from distance matrices [T, N, N] with n_samples [T], one matrix [N, N], or a list of [n, n].

    The torch and triton backends work on them in float32. Off-diagonal entries are raised to config.min_distance, the
    diagonal is not read. A task with NaN, Inf or what float32 does not hold gets the status NOT_FINITE; one with an
    entry below zero, or whose two halves differ (by more than 1e-4, absolute and relative), NOT_A_DISTANCE. The other
    arguments are those of score_embeddings.
    """
    return score_source(distance_source(distances, n_samples), FaseConfig.of(config), backend, classes)


def score_samples(
    samples: Sequence[Sequence[str]],
    encoder: str = "ast",
    config: FaseConfig | None = None,
    batch_tokens: int | None = None,
    device: str | torch.device | None = None,
    *,
    normalize_code: bool | None = None,
    workers: int | None = None,
    backend: str = "auto",
) -> FaseResult:
    """Score T tasks from the texts of their samples.

    samples          for each task its samples, complete programs
    encoder          "ast" (syntax trees, no model), "all-MiniLM-L6-v2", a hub name or a local folder of a transformer;
                     "ast+NAME" averages the distances of two
    config           None is FaseConfig(); where its multiscale_range is None, the encoder's own range is used
    batch_tokens     padded tokens in one batch of a neural encoder
    device           of a neural encoder and of the result; None is a GPU where there is one
    normalize_code   strip comments and docstrings before a neural encoder; None: unless semantics is "released"
    workers          processes that parse code; None: as many as pay off
    backend          as in score_embeddings

    Every distinct text is encoded once. result.info holds the counts and the time per stage. Raises InputError for a
    sample that is not a string, an unknown encoder or weights that cannot be found, MissingExtraError without the
    packages that the encoder needs.
    """
    config = FaseConfig.of(config)
    known_backend(backend)
    if normalize_code is not None and not isinstance(normalize_code, bool):
        raise InputError(f"normalize_code: expected None, True or False, got {normalize_code!r}")
    normalize = config.semantics == "paper" if normalize_code is None else normalize_code
    texts = collect(samples)
    seconds: dict[str, float] = {}
    with _timed(seconds, "load"):
        encoders = load_encoders(encoder, device, batch_tokens, normalize, workers)
    with _timed(seconds, "encode"):
        encoded = encode(texts, encoders, normalize)
    classes, unparsable = None, encoded.unparsable
    if config.variant in CLASS_VARIANTS:
        with _timed(seconds, "classes"):
            classes, counted = text_classes(texts, config.variant, workers)
        unparsable = counted if unparsable is None else unparsable
    if config.multiscale_range is None:
        lows, highs = zip(*(e.multiscale_range for e in encoders), strict=True)
        config = replace(config, multiscale_range=(min(lows), max(highs)))
    result = score_source(encoded.source, config, backend, classes)
    info = replace(
        result.info,
        encoder=encoder,
        normalize_code=None if encoded.truncated is None else normalize,
        distinct_texts=len(texts.distinct),
        truncated_samples=encoded.truncated,
        unparsable_samples=unparsable,
        seconds=seconds | result.info.seconds,
    )
    return replace(result, info=info)


def score_source(
    source: EmbeddingSource | DistanceSource,
    config: FaseConfig,
    backend: str,
    classes: Sequence[Sequence[Hashable]] | None,
) -> FaseResult:
    """The scores of a source, which may be scored again with another config; arguments as in `score_embeddings`."""
    needs_classes = config.variant in CLASS_VARIANTS
    if needs_classes and classes is None:
        raise InputError(
            f'classes: variant "{config.variant}" needs one for each sample; give them or use score_samples'
        )
    if classes is not None and not needs_classes:
        raise InputError(f'classes: not used by variant "{config.variant}"; used by {", ".join(CLASS_VARIANTS)}')
    if config.multiscale_range is None:
        config = replace(config, multiscale_range=NEURAL_RANGE)
    matrix = int(source.n.max(initial=0)) if isinstance(source, DistanceSource) else 0
    chosen = choose_backend(backend, source.device, config, matrix)
    ids = None if classes is None else class_ids(classes, source.n, source.width, source.device)
    seconds: dict[str, float] = {}
    # A caller's autocast is meant for models; here it would take products in 8 bits of mantissa.
    with _timed(seconds, "score"), torch.autocast(source.device.type, enabled=False):
        columns = _columns(chosen, source, config, ids)
    info = RunInfo(backend=chosen, samples=int(source.n.sum()), seconds=seconds)
    return FaseResult.of_columns(columns, torch.from_numpy(source.n).to(source.device), config, info)


def _columns(
    chosen: str, source: EmbeddingSource | DistanceSource, config: FaseConfig, classes: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    if chosen == "reference":
        return reference.score(source, config, classes)
    if chosen == "triton":
        from fase_gpu import triton_executor  # imports Triton

        return triton_executor.score(source, config, classes)
    return executor.score(source, config, classes)


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start
