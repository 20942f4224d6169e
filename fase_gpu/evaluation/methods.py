"""Every way of scoring a sample set without an LLM: the variants of SPEC 7, multiscale, means; also with structure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fase_gpu.batching import DistanceSource, EmbeddingSource, buckets
from fase_gpu.config import FaseConfig
from fase_gpu.entropy import class_entropy
from fase_gpu.errors import InputError, nearest
from fase_gpu.inputs import class_ids, distance_source
from fase_gpu.partitions import union
from fase_gpu.pipeline import score_source
from fase_gpu.results import FaseResult, Status
from fase_gpu.samples import Texts, collect, encode, load_encoders, text_classes

Array = NDArray[np.float64]

ALPHAS: Final = tuple(round(0.1 * i, 1) for i in range(1, 31))
"""The paper's sweep."""
RADII: Final = (*(round(0.01 * i, 2) for i in range(1, 21)), 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
"""The paper's sweep of `fixed_eps`, which is for neural encoders, and on to where syntax trees differ."""
CLUSTER_SIZES: Final = tuple(range(2, 10))
STRUCTURE: Final = "+structural"
"""Ends the name of a method joined with the structural classes; scaled_mst_mode with it is SPEC 7's `union`."""
ADAPTIVE: Final = ("scaled_mst_mode", "scaled_mst_mean", "scaled_pdm_mean", "mst_mean", "pdm_mean")
MEANS: Final = ("multiscale", "pdm_distance", "mst_distance")
METHODS: Final = (
    *(
        name + ending
        for name in (*ADAPTIVE, "released_max_peak", "released_min_peak", "fixed_eps", "fixed_mcs", *MEANS)
        for ending in ("", STRUCTURE)
    ),
    *("structural", "textual", "intersection"),
)
"""Names of all methods: the radius variants of SPEC 7, FASE with the released code's peaks, HDBSCAN, multiscale, the
mean of all distances and of the tree's weights, each also with STRUCTURE; classes by text."""
GIVEN: Final[dict[str, float]] = {"alpha": FaseConfig().scale_list[0], "eps": 0.03, "min_cluster_size": 2.0}
"""What is reported as "at the given value" where no other is asked for."""


@dataclass(frozen=True)
class Method:
    """The uncertainty of T tasks by one method, at each of A values of what it leaves open."""

    name: str
    swept: str
    """"alpha", "eps", "min_cluster_size", or "" for a method that leaves nothing open"""
    values: tuple[float, ...]
    """[A]; (nan,) where nothing is swept"""
    uncertainty: Array
    """[A, T] entropy, or a mean distance: low where the samples agree; NaN where the task has no score"""

    @property
    def scored(self) -> NDArray[np.bool_]:
        """[T] whether the task has a score."""
        scored: NDArray[np.bool_] = ~np.isnan(self.uncertainty[0])
        return scored


@dataclass(frozen=True)
class Inputs:
    """What the methods need of a sample set: its texts are encoded once."""

    source: EmbeddingSource
    texts: Texts
    multiscale_range: tuple[float, float]
    truncated: int | None
    unparsable: int | None
    workers: int | None

    @cached_property
    def structure(self) -> list[list[Hashable]]:
        """Structural class of each sample; worked out when it is first asked for."""
        return text_classes(self.texts, "structural", self.workers)[0]


def read_inputs(
    samples: Sequence[Sequence[str]],
    encoder: str,
    *,
    normalize_code: bool = True,
    device: str | None = None,
    batch_tokens: int | None = None,
    workers: int | None = None,
) -> Inputs:
    """Encode the samples of T tasks; arguments as in `score_samples`."""
    texts = collect(samples)
    encoders = load_encoders(encoder, device, batch_tokens, normalize_code, workers)
    encoded = encode(texts, encoders, normalize_code)
    lows, highs = zip(*(one.multiscale_range for one in encoders), strict=True)
    return Inputs(encoded.source, texts, (min(lows), max(highs)), encoded.truncated, encoded.unparsable, workers)


def method_names(wanted: Sequence[str] | None = None) -> tuple[str, ...]:
    """The names of all methods, or the wanted ones checked. Raises InputError for a name that none has."""
    for name in wanted or ():
        if name not in METHODS:
            raise InputError(f"methods: unknown {name!r}; {nearest(name, METHODS)}")
    return METHODS if wanted is None else tuple(name for name in METHODS if name in wanted)


def all_methods(
    inputs: Inputs,
    alphas: Sequence[float] = ALPHAS,
    radii: Sequence[float] = RADII,
    semantics: str = "paper",
    only: Sequence[str] | None = None,
) -> list[Method]:
    """The uncertainty of every task by every method of METHODS, or by those of `only`, in their order.

    The same numbers as `score_samples` gives with the method's variant. `semantics` = "released" takes the distances
    and the radii of the authors' code; its two peaks are there, as methods, in either case.
    """
    wanted = set(method_names(only))
    common: dict[str, Any] = {"multiscale_range": inputs.multiscale_range, "semantics": semantics}
    swept: dict[str, FaseConfig] = {
        variant: FaseConfig(variant=variant, alpha=tuple(alphas), **common) for variant in ADAPTIVE
    }
    for peak in ("max_peak", "min_peak"):
        released = common | {"semantics": "released"}
        swept[f"released_{peak}"] = FaseConfig(alpha=tuple(alphas), peak=peak, **released)
    swept["fixed_eps"] = FaseConfig(variant="fixed_eps", eps=tuple(radii), **common)
    found: list[Method] = []
    for name, config in swept.items():
        if not wanted & {name, name + STRUCTURE}:
            continue
        result = score_source(inputs.source, config, "auto", None)
        parameter = "eps" if name == "fixed_eps" else "alpha"
        found.append(Method(name, parameter, config.scale_list, _array(result.entropy).T))
        if name + STRUCTURE in wanted:
            joined = _union(inputs, _labels(result), result)
            found.append(Method(name + STRUCTURE, parameter, config.scale_list, joined))
    if wanted & {"fixed_mcs", "fixed_mcs" + STRUCTURE}:
        found += _fixed_mcs(inputs, common)
    found += [_class_method(inputs, variant) for variant in ("textual", "structural") if variant in wanted]
    if "intersection" in wanted:
        config = FaseConfig(variant="intersection", alpha=tuple(alphas), **common)
        result = score_source(inputs.source, config, "auto", inputs.structure)
        found.append(Method("intersection", "alpha", tuple(alphas), _array(result.entropy).T))
    for ending in ("", STRUCTURE):
        if wanted & {name + ending for name in MEANS}:
            source = _joined(inputs) if ending else inputs.source
            result = score_source(source, FaseConfig(return_labels=False, **common), "auto", None)
            columns = (result.multiscale, result.pdm_mean, result.mst_mean)
            found += [_single(name + ending, column) for name, column in zip(MEANS, columns, strict=True)]
    by_name = {method.name: method for method in found}
    return [by_name[name] for name in METHODS if name in wanted]


def _fixed_mcs(inputs: Inputs, common: dict[str, Any]) -> list[Method]:
    sizes = [FaseConfig(variant="fixed_mcs", min_cluster_size=size, **common) for size in CLUSTER_SIZES]
    results = [score_source(inputs.source, config, "auto", None) for config in sizes]
    values = tuple(map(float, CLUSTER_SIZES))
    both = torch.stack([_labels(result) for result in results], 1)
    return [
        Method("fixed_mcs", "min_cluster_size", values, np.stack([_array(r.entropy) for r in results])),
        Method("fixed_mcs" + STRUCTURE, "min_cluster_size", values, _union(inputs, both, results[0])),
    ]


def _class_method(inputs: Inputs, variant: str) -> Method:
    """Entropy of the "structural" or the "textual" classes."""
    classes = inputs.structure if variant == "structural" else inputs.texts.per_task(inputs.texts.index.tolist())
    config = FaseConfig(variant=variant, return_labels=False)
    return _single(variant, score_source(inputs.source, config, "auto", classes).entropy)


def _single(name: str, column: torch.Tensor) -> Method:
    return Method(name, "", (float("nan"),), _array(column)[None])


def _array(column: torch.Tensor) -> Array:
    return column.to("cpu", torch.float64).numpy()


def _labels(result: FaseResult) -> torch.Tensor:
    """[T, A, N] int64, or [T, N] for one value; padding in classes of its own."""
    assert result.labels is not None
    position = torch.arange(result.labels.shape[-1], device=result.labels.device)
    return torch.where(result.labels < 0, position, result.labels.to(torch.int64))


def _union(inputs: Inputs, labels: torch.Tensor, result: FaseResult) -> Array:
    """[A, T] entropy of labels [T, A, N] joined with the structural classes."""
    n = result.n_samples
    width = labels.shape[-1]
    ids = class_ids(inputs.structure, n.cpu().numpy(), width, labels.device)
    found = labels.permute(2, 1, 0)
    entropy = class_entropy(union(found, ids.T[:, None].expand_as(found)), n).normalised
    return _array(torch.where(result.status == Status.OK, entropy, torch.nan))


def _joined(inputs: Inputs) -> DistanceSource:
    """The distances of every task, 0 between samples of one structural class: what joins them at every radius."""
    source, structure = inputs.source, inputs.structure
    matrices = [torch.zeros(n, n, device=source.device) for n in source.n.tolist()]
    for size, chunk in buckets(source.n, 1, source.device, 1):
        tile = source.tile(chunk, size, FaseConfig.min_distance)
        for task, distance, status in zip(chunk.tolist(), tile.distance, tile.status.tolist(), strict=True):
            n = len(structure[task])
            keys = {key: i for i, key in enumerate(dict.fromkeys(structure[task]))}
            ids = torch.tensor([keys[key] for key in structure[task]], device=source.device)
            apart = distance[:n, :n] * (ids[:, None] != ids)
            matrices[task] = apart if status == Status.OK else torch.full_like(apart, torch.nan)
    return distance_source(matrices, None)
