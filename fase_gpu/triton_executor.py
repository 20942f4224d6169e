"""The Triton executor: which kernels a batch takes, and their outputs and workspace.

Tasks of up to 64 samples take one launch for each size of 16, 32 and 64; those of up to 1024 the staged kernels, in
chunks of slots whose distances fit the workspace; larger ones stream. Where the numbers of samples are known on the
device only, every launch covers all tasks that it might have to and its surplus slots are empty, so that nothing waits
for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import torch

from fase_gpu import executor
from fase_gpu.backends import LARGEST_MATRIX
from fase_gpu.batching import DistanceSource, EmbeddingSource, Indices, Rows
from fase_gpu.config import CLASS_VARIANTS, FaseConfig
from fase_gpu.density import peak_mode, weight_stats
from fase_gpu.distance import rounded
from fase_gpu.entropy import class_entropy
from fase_gpu.kernels import boruvka, components, cosine, density, fused, merge
from fase_gpu.results import SCORES, SWEPT_SCORES, Status

SIZES: Final = (*fused.SIZES, 128, 256, 512, 1024)
assert SIZES[-1] == LARGEST_MATRIX
# Bytes of a workspace: what keeps every multiprocessor busy, and little beside a GPU's memory.
_WORKSPACE: Final = {"cpu": 1 << 26, "cuda": 1 << 30}

Scores = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Batch:
    """Tasks as rows, all on one device."""

    x: torch.Tensor
    """[S, d] float32, float16 or bfloat16, stride 1 along d"""
    start: torch.Tensor
    """[T] int64, first row of each task"""
    count: torch.Tensor
    """[T] int64, its samples"""
    index: torch.Tensor | None
    """[R] int64 where row i is x[index[i]]"""


def score(source: EmbeddingSource | DistanceSource, config: FaseConfig, classes: torch.Tensor | None) -> Scores:
    """The columns of FaseResult, as executor.score gives them, for what choose_backend allows."""
    plain = config
    if config.variant in CLASS_VARIANTS:
        plain = replace(config, variant="scaled_mst_mode", misaligned_union=False, return_labels=True)
    scores = blank(source.n.size, source.width, plain, source.device)
    with on_device(source.device):
        if isinstance(source, EmbeddingSource) and len(source.rows) == 1:
            fill(scores, batch(source.rows[0]), plain, source.width, source.n)
        else:
            _fill_from_matrices(scores, source, plain)
        _stream_large(scores, source, plain)
    if config.variant in CLASS_VARIANTS:
        assert classes is not None
        _combine(scores, torch.from_numpy(source.n).to(source.device), config, classes)
    return scores


def batch(rows: Rows) -> Batch:
    """Rows on their device, in a type that the kernels read."""
    device = rows.x.device
    index = None if rows.index is None else torch.from_numpy(rows.index).to(device)
    return Batch(readable(rows.x), torch.from_numpy(rows.start).to(device), torch.from_numpy(rows.n).to(device), index)


def readable(x: torch.Tensor) -> torch.Tensor:
    """Embeddings [S, d] as the kernels read them: stride 1 along d, and float32 in the place of float64."""
    if x.dtype == torch.float64:
        # The directions in float32 are off by less than 1e-7, and so scaled no length is too large for it.
        largest = x.abs().amax(1, keepdim=True)
        x = (x / torch.where(largest > 0, largest, 1.0)).to(torch.float32)
    return x if x.stride(1) == 1 else x.contiguous()


def blank(tasks: int, most: int, config: FaseConfig, device: torch.device) -> Scores:
    """Memory for the scores; of tasks that may be left as they are, those of one with too many samples."""
    alphas = len(config.scale_list)
    written = most <= fused.SIZES[0] and config.semantics == "paper"

    def column(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if written:
            return torch.empty(shape, dtype=dtype, device=device)
        return torch.full(shape, value, dtype=dtype, device=device)

    scores = {name: column(math.nan, *((tasks, alphas) if name in SWEPT_SCORES else (tasks,))) for name in SCORES}
    scores["n_clusters"] = column(0, tasks, alphas, dtype=torch.int32)
    scores["status"] = column(Status.TOO_MANY, tasks, dtype=torch.int8)
    if config.return_labels:
        scores["labels"] = column(-1, tasks, alphas, most, dtype=torch.int32)
    return scores


def fill(scores: Scores, tasks: Batch, config: FaseConfig, most: int, n: Indices | None) -> None:
    """Score every task of up to LARGEST_MATRIX samples.

    most   samples that a task may have; one that has more is left as it is
    n      the numbers of samples where the host has them: no launch is then larger than it has to be
    """
    device = tasks.x.device
    if n is None:  # nobody has checked them
        tasks = replace(tasks, count=tasks.count.clamp_min(0))
    small = () if config.semantics == "released" else fused.SIZES
    alphas = _constant(config.scale_list, torch.float64, device)
    assert config.multiscale_range is not None
    for size, of_size in _by_size(tasks.count, most, n, bool(small)):
        if size in small:
            fused.launch_fused(
                tasks.x,
                tasks.start,
                tasks.count,
                of_size,
                tasks.index,
                alphas,
                _logs(size, device),
                scores,
                size,
                min(size, most),
                config.variant,
                config.grid,
                config.min_distance,
                config.multiscale_range,
            )
            continue
        for work in _workspaces(of_size, tasks.count, size, config):
            _measure(work, tasks, config.min_distance, config.semantics == "released")
            _score_measured(scores, work, tasks.count, alphas, config)


def _by_size(count: torch.Tensor, most: int, n: Indices | None, one: bool) -> Iterator[tuple[int, torch.Tensor | None]]:
    """The sizes that occur and their tasks [W], -1 where a slot is empty; None where every task is launched.

    one   whether a kernel of a single size sees to the tasks with too many samples itself
    """
    sizes = SIZES[: 1 + int(np.searchsorted(SIZES, most))]
    if n is not None:
        of_task = np.searchsorted(sizes, n)
        for place, size in enumerate(sizes):
            chosen = np.flatnonzero(of_task == place)
            if chosen.size:
                yield size, None if chosen.size == n.size else torch.from_numpy(chosen).to(count.device)
    elif len(sizes) == 1 and one:
        yield sizes[0], None
    else:
        of_task_here = torch.bucketize(count, _constant(sizes, torch.int64, count.device))
        by_size = torch.where(count > most, len(sizes), of_task_here).sort(stable=True)
        index = torch.arange(len(sizes), device=count.device)
        first = torch.searchsorted(by_size.values, index)
        end = torch.searchsorted(by_size.values, index, right=True)
        slot = torch.arange(count.numel(), device=count.device)
        for place, size in enumerate(sizes):
            at = first[place] + slot
            yield size, torch.where(at < end[place], by_size.indices[at.clamp_max(count.numel() - 1)], -1)


class _Workspace(NamedTuple):
    """What the staged kernels pass on, for W slots of up to N samples."""

    task: torch.Tensor
    """[W] int64, -1 where a slot is empty"""
    status: torch.Tensor
    """[W] int8"""
    dist: torch.Tensor
    """[W, N, N] float32"""


def _workspaces(tasks: torch.Tensor | None, count: torch.Tensor, size: int, config: FaseConfig) -> Iterator[_Workspace]:
    """The same memory for one chunk of slots after another."""
    # Distances, some numbers for each sample, and where peaks are searched the whole density, several times over.
    slot = 4 * size * size + 80 * size + (72 * config.grid if config.semantics == "released" else 0)
    if tasks is None:
        tasks = torch.arange(count.numel(), device=count.device)
    most = max(1, _WORKSPACE.get(count.device.type, _WORKSPACE["cuda"]) // slot)
    dist = torch.empty(min(most, tasks.numel()), size, size, dtype=torch.float32, device=count.device)
    status = torch.empty(dist.shape[0], dtype=torch.int8, device=count.device)
    for first in range(0, tasks.numel(), most):
        part = tasks[first : first + most]
        yield _Workspace(part, status[: part.numel()], dist[: part.numel()])


def _measure(work: _Workspace, tasks: Batch, min_distance: float, round_off: bool) -> None:
    """Distances and status of every slot, from embeddings."""
    slots, size = work.dist.shape[:2]
    rows = torch.empty(slots, cosine.NUMBERS.value, size, dtype=torch.float32, device=work.dist.device)
    cosine.launch_cosine(
        tasks.x,
        tasks.x.stride(0),
        tasks.start,
        tasks.count,
        work.task,
        tasks.index,
        rows,
        work.dist,
        work.status,
        min_distance,
        round_off,
    )


def _score_measured(
    scores: Scores, work: _Workspace, count: torch.Tensor, alphas: torch.Tensor, config: FaseConfig
) -> None:
    """Tree, order, mode and classes of every slot, from its distances."""
    task, status, dist = work
    slots, size = dist.shape[:2]

    def new(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.empty(slots, *shape, dtype=dtype, device=dist.device)

    tree, total = new(size, dtype=torch.int64), new()
    boruvka.launch_boruvka(dist, count, task, status, new(3, size, dtype=torch.int64), tree, total)
    order, position = new(size, dtype=torch.int32), new(size, dtype=torch.int32)
    gap, merged = new(size, dtype=torch.float32), new()
    assert config.multiscale_range is not None
    linked = new(2, size, dtype=torch.int64)
    merge.launch_merge(tree, None, count, task, status, linked, order, position, gap, merged, config.multiscale_range)
    mean, mode = new(), new()
    if config.semantics == "released":
        m = torch.where((task >= 0) & (status == Status.OK), count[task.clamp_min(0)] - 1, 0)
        edge = torch.arange(1, size, device=dist.device) <= m[:, None]
        weight = torch.where(edge, gap[:, 1:], torch.inf).T.sort(0).values
        stats = weight_stats(weight, m)
        mean, mode = stats.mean, peak_mode(weight, stats, config.grid, config.peak)
    else:
        density.launch_density(gap, count, task, status, mean, mode, config.grid)
    components.launch_components(
        order,
        position,
        gap,
        merged,
        mean,
        mode,
        total,
        count,
        task,
        status,
        alphas,
        scores,
        config.variant,
        config.semantics == "released",
    )


def _fill_from_matrices(scores: Scores, source: EmbeddingSource | DistanceSource, config: FaseConfig) -> None:
    """Given matrices, or the means of those of several encoders."""
    device = source.device
    count = torch.from_numpy(source.n).to(device)
    alphas = _constant(config.scale_list, torch.float64, device)
    for size, of_size in _by_size(count, source.width, source.n, False):
        for work in _workspaces(of_size, count, size, config):
            if isinstance(source, EmbeddingSource):
                first, *others = (batch(rows) for rows in source.rows)
                _measure(work, first, config.min_distance, False)
                for other in others:
                    more = _Workspace(work.task, torch.empty_like(work.status), torch.empty_like(work.dist))
                    _measure(more, other, config.min_distance, False)
                    work.dist.add_(more.dist)
                    torch.maximum(work.status, more.status, out=work.status)
                work.dist.div_(len(source.rows))
            else:
                tile = source.tile(work.task.cpu().numpy(), size, config.min_distance)
                work.dist.copy_(tile.distance)
                work.status.copy_(tile.status)
            if config.semantics == "released":
                work.dist.copy_(rounded(work.dist))
            _score_measured(scores, work, count, alphas, config)


def _stream_large(scores: Scores, source: EmbeddingSource | DistanceSource, config: FaseConfig) -> None:
    """Score the tasks of more samples than any workspace takes, one after another."""
    large = np.flatnonzero(source.n > LARGEST_MATRIX)
    if not large.size:
        return
    assert isinstance(source, EmbeddingSource)
    rows = tuple(replace(part, start=part.start[large], n=part.n[large]) for part in source.rows)
    index = torch.from_numpy(large).to(source.device)
    found = executor.score(EmbeddingSource(rows, source.width), config, None, kernels=True)
    for name, column in found.items():
        scores[name][index] = column


def _combine(scores: Scores, n: torch.Tensor, config: FaseConfig, classes: torch.Tensor) -> None:
    """Put the classes of a class variant in the place of those of the radius, or join the two."""
    status = scores["status"]
    labelled = (status == Status.OK) | (status == Status.SINGLE)
    sample = torch.arange(classes.shape[1], device=n.device)[:, None, None]
    present = (sample < n) & labelled
    labels = torch.where(present, scores["labels"].permute(2, 1, 0).to(torch.int64), sample)
    labels = executor.combined(labels, classes.T[:, None], n, config)
    entropy = class_entropy(labels, n)
    scored = (status == Status.OK)[:, None]
    scores["entropy"] = torch.where(scored, entropy.normalised.T, math.nan).to(torch.float32)
    scores["bits"] = torch.where(scored, entropy.bits.T, math.nan).to(torch.float32)
    scores["n_clusters"] = torch.where(labelled[:, None], entropy.n_clusters.T, 0).to(torch.int32)
    scores["labels"] = torch.where(present, labels, -1).permute(2, 1, 0).to(torch.int32).contiguous()
    if not config.has_radius:
        scores["eps"], scores["margin"] = (torch.full_like(scores["eps"], math.nan) for _ in range(2))
    if not config.return_labels:
        del scores["labels"]


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Where Triton launches: it takes the current device, whatever that of the tensors is."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Kept on the device for good: a copy from the host would wait and cannot be captured, and a graph may hold it."""
    constant = torch.tensor(values, dtype=dtype, device=device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # other streams read it
    return constant


def _logs(size: int, device: torch.device) -> torch.Tensor:
    """log2 of 0 (as 0), 1, ... size in units of 1 / LOG_UNIT."""
    units = tuple(round(math.log2(k) * fused.LOG_UNIT) if k else 0 for k in range(size + 1))
    return _constant(units, torch.int64, device)
