"""The torch executor: a chunk of tasks through all stages at once, on any device that torch has."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from fase_gpu.batching import DistanceSource, EmbeddingSource, Indices, buckets
from fase_gpu.cluster import dbscan_labels, hdbscan_labels, labels_of_runs, radius, tree_runs
from fase_gpu.config import FaseConfig
from fase_gpu.density import peak_mode, weight_mode, weight_stats
from fase_gpu.distance import rounded
from fase_gpu.entropy import class_entropy, multiscale_entropy
from fase_gpu.mst import EdgeKeys, Mst, minimum_spanning_trees
from fase_gpu.partitions import intersection, misaligned_union, union
from fase_gpu.results import SCORES, SWEPT_SCORES, Status


def score(
    source: EmbeddingSource | DistanceSource, config: FaseConfig, classes: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """The columns of FaseResult for all tasks of a source, [T] and [T, A], labels [T, A, N].

    classes   [T, N] int64 in [0, N) for the variants that need them, padding holding classes of its own
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
    edges = EdgeKeys(0, 0, device)
    for size, chunk in buckets(source.n, scales, device):
        if edges.size != size or edges.tasks < chunk.size:
            edges = EdgeKeys(size, chunk.size, device)
        index = torch.from_numpy(chunk).to(device)
        part = _score_chunk(source, chunk, edges, config, None if classes is None else classes[index])
        for name, column in part.items():
            if name == "labels":
                width = min(size, source.width)
                scores[name][index, :, :width] = column[..., :width].to(torch.int32)
            else:
                scores[name][index] = column.to(scores[name].dtype)
    return scores


def _score_chunk(
    source: EmbeddingSource | DistanceSource,
    chunk: Indices,
    edges: EdgeKeys,
    config: FaseConfig,
    classes: torch.Tensor | None,
) -> Mapping[str, torch.Tensor]:
    n = torch.from_numpy(source.n[chunk]).to(source.device)
    keep = config.min_samples != 2 or config.variant == "fixed_mcs"
    status, pdm_mean, matrices = _distances(source, chunk, edges, config, keep)
    pdm_mean /= n * n

    tree = minimum_spanning_trees(edges.keys(chunk.size), n)
    assert config.multiscale_range is not None
    multiscale = multiscale_entropy(tree, n, *config.multiscale_range)
    if edges.size > 1:
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
    elif edges.size > 1:
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
        present = (torch.arange(edges.size, device=n.device)[:, None] < n) & labelled
        columns["labels"] = torch.where(present[:, None], labels, -1).permute(2, 1, 0)
    return columns


def _distances(
    source: EmbeddingSource | DistanceSource, chunk: Indices, edges: EdgeKeys, config: FaseConfig, keep: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Fill the edge keys; returns status [B], sum of all distances [B] float64, and the matrices where kept."""
    statuses, totals, matrices = [], [], []
    done = 0
    for tile in source.tiles(chunk, edges.size, config.min_distance):
        distance = rounded(tile.distance) if config.semantics == "released" else tile.distance
        edges.fill(done, distance)
        done += distance.shape[0]
        statuses.append(tile.status)
        totals.append(distance.sum(2, dtype=torch.float64).sum(1))
        if keep:
            matrices.append(distance)
    single = torch.from_numpy(source.n[chunk] == 1).to(source.device) * int(Status.SINGLE)
    status = torch.maximum(torch.cat(statuses), single.to(torch.int8))
    return status, torch.cat(totals), torch.cat(matrices) if keep else None


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
        if config.misaligned_union:
            labels = misaligned_union(labels, classes, n)
        else:
            combine = union if config.variant == "union" else intersection
            labels = combine(labels, classes.expand_as(labels))
    return labels, labels


def _to_width(classes: torch.Tensor, size: int) -> torch.Tensor:
    """Classes [B, N] cut or extended to [B, size], new padding in classes of its own."""
    have = classes.shape[1]
    if have >= size:
        return classes[:, :size]
    extra = torch.arange(have, size, device=classes.device).expand(classes.shape[0], -1)
    return torch.cat([classes, extra], 1)
