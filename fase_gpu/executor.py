"""The torch executor: a chunk of tasks through all stages at once, on any device that torch has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import torch

from fase_gpu.batching import DistanceSource, EmbeddingSource, Indices, buckets
from fase_gpu.cluster import dbscan_labels, hdbscan_labels, labels_of_runs, radius, tree_runs
from fase_gpu.config import FaseConfig
from fase_gpu.density import peak_mode, weight_mode, weight_stats
from fase_gpu.distance import rounded
from fase_gpu.entropy import class_entropy, multiscale_entropy
from fase_gpu.errors import InputError
from fase_gpu.mst import MAX_SAMPLES, Mst, edge_keys, minimum_spanning_trees
from fase_gpu.partitions import intersection, misaligned_union, union
from fase_gpu.results import SCORES, SWEPT_SCORES, Status
from fase_gpu.streaming import MAX_SAMPLES as STREAMED_SAMPLES
from fase_gpu.streaming import stream_tree

# Tasks of more samples are streamed where they can be. On a CPU that is quicker from 1000 to 1500 samples on: at 4096,
# d = 384 and one thread, 0.8 to 1.3 s instead of 2.4 to 3.5 s, and 40 MB instead of 700 MB.
MOST_DENSE: Final = 1024
# What a pair of samples takes at most on the way to the tree: three float64 matrices and one of float32.
_PAIR_BYTES: Final = 28


class _Measured(NamedTuple):
    """What the stages after the tree need of B tasks."""

    tree: Mst
    status: torch.Tensor
    """[B] int8"""
    total: torch.Tensor
    """[B] float64, the sum of all distances"""
    matrices: torch.Tensor | None
    """[B, N, N] float32 where a stage needs them"""


def score(
    source: EmbeddingSource | DistanceSource,
    config: FaseConfig,
    classes: torch.Tensor | None,
    kernels: bool = False,
) -> dict[str, torch.Tensor]:
    """The columns of FaseResult for all tasks of a source, [T] and [T, A], labels [T, A, N].

    classes   [T, N] int64 in [0, N) for the variants that need them, padding holding classes of its own
    kernels   whether tasks that are streamed are scanned by the Triton kernel
    """
    tasks, device = source.n.size, source.device
    scales = len(config.scale_list)
    scores = {
        name: torch.full(
            (tasks, scales) if name in SWEPT_SCORES else (tasks,), math.nan, dtype=torch.float32, device=device
        )
        for name in SCORES
    }
    scores["n_clusters"] = torch.zeros(tasks, scales, dtype=torch.int32, device=device)
    scores["status"] = torch.full((tasks,), Status.EMPTY, dtype=torch.int8, device=device)
    if config.return_labels:
        scores["labels"] = torch.full((tasks, scales, source.width), -1, dtype=torch.int32, device=device)
    needs_matrices = config.min_samples != 2 or config.variant == "fixed_mcs"
    streams = isinstance(source, EmbeddingSource) and not needs_matrices
    most, largest = STREAMED_SAMPLES if streams else MAX_SAMPLES, int(source.n.max(initial=0))
    if largest > most:
        raise InputError(f"samples: expected at most {most} in one task, got {largest}")

    def measure_and_score(size: int, chunk: Indices) -> None:
        if streams and size > MOST_DENSE:
            assert isinstance(source, EmbeddingSource)
            measured = _stream(source, chunk, size, config, kernels)
        else:
            measured = _measure(source, chunk, size, config, needs_matrices)
        index = torch.from_numpy(chunk).to(device)
        part = _score_chunk(source, chunk, measured, config, None if classes is None else classes[index])
        for name, column in part.items():
            if name == "labels":
                width = min(size, source.width)
                scores[name][index, :, :width] = column[..., :width].to(torch.int32)
            else:
                scores[name][index] = column.to(scores[name].dtype)

    threads = torch.get_num_threads() if device.type == "cpu" else 1
    chunks = list(buckets(source.n, scales, device, threads))
    large = [chunk for chunk in chunks if chunk[0] > MOST_DENSE]
    _side_by_side(measure_and_score, chunks[: len(chunks) - len(large)], threads)
    for size, chunk in large:  # each takes memory and all threads for itself
        measure_and_score(size, chunk)
    return scores


def _side_by_side(work: Callable[[int, Indices], None], chunks: list[tuple[int, Indices]], threads: int) -> None:
    """Each chunk on one thread, a single one too: threads that share every small step of a chunk wait for each other
    most of the time, and a BLAS may round differently on several."""
    if threads == 1:
        for chunk in chunks:
            work(*chunk)
        return
    if not chunks:
        return
    inference = torch.is_inference_mode_enabled()

    def run(size: int, chunk: Indices) -> None:
        with torch.inference_mode(inference):
            work(size, chunk)

    # What a thread sets is its own number of threads, but also MKL's and that of threads to come: the caller's is set
    # again when all is done.
    pool = ThreadPoolExecutor(min(threads, len(chunks)), "fase_gpu", lambda: torch.set_num_threads(1))
    try:
        for future in [pool.submit(run, *chunk) for chunk in chunks]:
            future.result()
    finally:
        try:
            pool.shutdown(cancel_futures=True)
        finally:
            torch.set_num_threads(threads)


def _score_chunk(
    source: EmbeddingSource | DistanceSource,
    chunk: Indices,
    measured: _Measured,
    config: FaseConfig,
    classes: torch.Tensor | None,
) -> Mapping[str, torch.Tensor]:
    n = torch.from_numpy(source.n[chunk]).to(source.device)
    tree, status, total, matrices = measured
    pdm_mean = total / (n * n)
    size = tree.order.shape[0]
    assert config.multiscale_range is not None
    multiscale = multiscale_entropy(tree, n, *config.multiscale_range)
    if size > 1:
        weight = tree.weight.sort(0).values
        stats = weight_stats(weight, n - 1)
        if config.semantics == "released":
            mode = peak_mode(weight, stats, config.grid, config.peak)
        else:
            mode = weight_mode(weight, stats, config.grid)
        mst_mean = stats.mean
    else:
        mode = mst_mean = torch.full_like(pdm_mean, math.nan)

    eps = radius(config, mode, mst_mean, pdm_mean)
    partition, labels = _partition(tree, matrices, n, eps, config, classes)
    entropy = class_entropy(partition, n)
    margin = torch.full_like(eps, math.nan)
    if not config.has_radius:
        eps = margin
    elif size > 1:
        margin = ((tree.weight[:, None].to(torch.float64) - eps).abs() / eps).amin(0)

    scored = status == Status.OK
    labelled = scored | (status == Status.SINGLE)
    columns = {
        "entropy": entropy.normalised,
        "bits": entropy.bits,
        "multiscale": multiscale,
        "eps": eps,
        "mode": mode,
        "mst_mean": mst_mean,
        "pdm_mean": pdm_mean,
        "margin": margin,
    }
    columns = {name: torch.where(scored, column, math.nan).movedim(-1, 0) for name, column in columns.items()}
    columns["n_clusters"] = torch.where(labelled, entropy.n_clusters, 0).T
    columns["status"] = status
    if config.return_labels and labels is not None:
        present = (torch.arange(size, device=n.device)[:, None] < n) & labelled
        columns["labels"] = torch.where(present[:, None], labels, -1).permute(2, 1, 0)
    return columns


def _measure(
    source: EmbeddingSource | DistanceSource, chunk: Indices, size: int, config: FaseConfig, keep: bool
) -> _Measured:
    """By way of the distance matrices, which are kept where a later stage needs them."""
    # All at once, and given back: more than a machine has is refused here, before half of it is written.
    torch.empty(_PAIR_BYTES * chunk.size * size * size, dtype=torch.uint8, device=source.device)
    n = torch.from_numpy(source.n[chunk]).to(source.device)
    distance, status = source.tile(chunk, size, config.min_distance)
    if config.semantics == "released":
        distance = rounded(distance)
    total = distance.sum(2, dtype=torch.float64).sum(1)
    tree = minimum_spanning_trees(edge_keys(distance), n)
    status = torch.maximum(status, (n == 1).to(torch.int8) * int(Status.SINGLE))
    return _Measured(tree, status, total, distance if keep else None)


def _stream(source: EmbeddingSource, chunk: Indices, size: int, config: FaseConfig, kernels: bool) -> _Measured:
    """Without the distance matrices, one task after another."""
    released = config.semantics == "released"
    done = [stream_tree(source, task, size, config.min_distance, released, kernels) for task in chunk.tolist()]
    tree = Mst(*(torch.cat(parts, 1) for parts in zip(*(one.tree for one in done), strict=True)))
    return _Measured(tree, torch.cat([one.status for one in done]), torch.cat([one.total for one in done]), None)


def _partition(
    tree: Mst,
    matrices: torch.Tensor | None,
    n: torch.Tensor,
    eps: torch.Tensor,
    config: FaseConfig,
    classes: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The classes in any order of the samples, for their sizes, and the labels in sample order where wanted."""
    if classes is not None:
        size = tree.order.shape[0]
        classes = _to_width(classes, size).T[:, None]
    if config.variant in ("textual", "structural"):
        assert classes is not None
        given = classes.expand(-1, eps.shape[0], -1)
        return given, given
    if config.variant == "fixed_mcs":
        assert matrices is not None
        labels = hdbscan_labels(matrices, n, config.min_cluster_size).expand(-1, eps.shape[0], -1)
        return labels, labels
    if config.min_samples == 2:
        runs = tree_runs(tree.weight, eps)
        if classes is None:
            return runs, labels_of_runs(runs, tree) if config.return_labels else None
        labels = labels_of_runs(runs, tree)
    else:
        assert matrices is not None
        labels = dbscan_labels(matrices, n, eps, config.min_samples)
    if classes is not None:
        labels = combined(labels, classes, n, config)
    return labels, labels


def combined(labels: torch.Tensor, classes: torch.Tensor, n: torch.Tensor, config: FaseConfig) -> torch.Tensor:
    """The classes of a class variant, from those of the radius [N, A, T] and the given ones [N, 1, T]."""
    if config.misaligned_union:
        return misaligned_union(labels, classes, n)
    classes = classes.expand_as(labels)
    if config.variant in ("textual", "structural"):
        return classes
    return union(labels, classes) if config.variant == "union" else intersection(labels, classes)


def _to_width(classes: torch.Tensor, size: int) -> torch.Tensor:
    """Classes [B, N] cut or extended to [B, size], new padding in classes of its own."""
    have = classes.shape[1]
    if have >= size:
        return classes[:, :size]
    extra = torch.arange(have, size, device=classes.device).expand(classes.shape[0], -1)
    return torch.cat([classes, extra], 1)
