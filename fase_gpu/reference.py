"""The oracle: SPEC 2-7 and 10 in NumPy float64, one task at a time, in plain loops. Slow, and meant to be read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fase_gpu.batching import DistanceSource, EmbeddingSource
from fase_gpu.config import FaseConfig
from fase_gpu.distance import SLACK
from fase_gpu.errors import MissingExtraError
from fase_gpu.results import SCORES, SWEPT_SCORES, Status

Array = npt.NDArray[np.float64]
Edge = tuple[float, int, int]


def score(
    source: EmbeddingSource | DistanceSource, config: FaseConfig, classes: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """The columns of FaseResult, as executor.score gives them, in float64."""
    tasks, scales = source.n.size, config.scale_list
    shape = (tasks, len(scales))
    scores: dict[str, Any] = {name: np.full(shape if name in SWEPT_SCORES else tasks, math.nan) for name in SCORES}
    scores["n_clusters"] = np.zeros(shape, dtype=np.int32)
    scores["status"] = np.zeros(tasks, dtype=np.int8)
    labels = np.full((*shape, source.width), -1, dtype=np.int32)
    for task in range(tasks):
        given = None if classes is None else classes[task, : source.n[task]].tolist()
        distance, status = _task_distances(source, task, config.min_distance)
        n = len(distance)
        if status == Status.OK and n < 2:
            status = Status.SINGLE if n else Status.EMPTY
            labels[task, :, :n] = 0
            scores["n_clusters"][task] = n
        scores["status"][task] = status
        if status != Status.OK:
            continue
        if config.semantics == "released":
            distance = np.round(distance, 6)
        edges = kruskal(distance)
        weights = [w for w, _, _ in edges]
        mst_mean, pdm_mean = sum(weights) / (n - 1), float(distance.sum()) / n**2
        mode = weight_mode(weights, config)
        scores["mode"][task], scores["mst_mean"][task], scores["pdm_mean"][task] = mode, mst_mean, pdm_mean
        assert config.multiscale_range is not None
        scores["multiscale"][task] = multiscale(edges, n, config.multiscale_range)
        for a, scale in enumerate(scales):
            eps = radius(config, scale, mode, mst_mean, pdm_mean)
            found = _labels(distance, eps, config, given)
            labels[task, a, :n] = found
            bits = entropy_bits(found)
            scores["entropy"][task, a], scores["bits"][task, a] = min(bits / math.log2(n), 1.0), bits
            scores["n_clusters"][task, a] = len(set(found))
            if config.has_radius:
                scores["eps"][task, a] = eps
                scores["margin"][task, a] = min(abs(w - eps) / eps for w in weights)
    if config.return_labels:
        scores["labels"] = labels
    return {name: torch.from_numpy(column).to(source.device) for name, column in scores.items()}


def cosine_distances(x: Array, min_distance: float) -> tuple[Array, Status]:
    """Distances [n, n] of the rows of x [n, d]."""
    if not np.isfinite(x).all():
        return np.zeros((len(x), len(x))), Status.NOT_FINITE
    largest = np.abs(x).max(axis=1, initial=0.0)
    if (largest == 0).any():
        return np.zeros((len(x), len(x))), Status.ZERO_VECTOR
    unit = x / largest[:, None]
    unit = unit / np.sqrt((unit**2).sum(axis=1))[:, None]
    distance = np.zeros((len(x), len(x)))
    for i in range(len(x)):
        for j in range(i):
            difference = unit[i] - unit[j]
            distance[i, j] = distance[j, i] = max(float(difference @ difference) / 2, min_distance)
    return distance, Status.OK


def kruskal(distance: Array) -> list[Edge]:
    """Edges (weight, smaller end, larger end) of the minimum spanning tree, ascending, ties by the ends."""
    n = len(distance)
    edges = sorted((float(distance[i, j]), i, j) for i in range(n) for j in range(i + 1, n))
    component = list(range(n))
    tree = []
    for w, i, j in edges:
        a, b = component[i], component[j]
        if a != b:
            tree.append((w, i, j))
            component = [a if c == b else c for c in component]
    return tree


def weight_mode(weights: Sequence[float], config: FaseConfig) -> float:
    """Grid point of largest density; with semantics="released" its rightmost or leftmost peak if it has several."""
    w = np.array(weights)
    m, low, high = len(w), w.min(), w.max()
    if m == 1 or low == high:
        return float(w.mean())
    bandwidth = m ** (-1 / 5) * w.std(ddof=1)
    grid = np.linspace(low, high, config.grid)
    density = sum(np.exp(-0.5 * ((grid - centre) / bandwidth) ** 2) for centre in w)
    assert isinstance(density, np.ndarray)
    peaks = _peaks(density.tolist()) if config.semantics == "released" else []
    if len(peaks) > 1:
        return float(grid[peaks[-1] if config.peak == "max_peak" else peaks[0]])
    # The first of those that only rounding tells apart: symmetric weights tie all the time.
    return float(grid[(density >= density.max() * (1 - 1e-12)).argmax()])


def _peaks(density: Sequence[float]) -> list[int]:
    """Middles of the interior stretches that are higher than what is on either side."""
    peaks = []
    start = 1
    while start < len(density) - 1:
        end = start
        while end < len(density) - 1 and density[end + 1] == density[start]:
            end += 1
        if density[start - 1] < density[start] and end < len(density) - 1 and density[end + 1] < density[start]:
            peaks.append((start + end) // 2)
        start = end + 1
    return peaks


def radius(config: FaseConfig, scale: float, mode: float, mst_mean: float, pdm_mean: float) -> float:
    """The neighbourhood radius of the configured variant (SPEC 5 and 7)."""
    scaling = 1 - mst_mean / pdm_mean if pdm_mean else 0.0
    values = {
        "fixed_eps": scale,
        "pdm_mean": scale * pdm_mean,
        "mst_mean": scale * mst_mean,
        "scaled_pdm_mean": scale * pdm_mean * scaling,
        "scaled_mst_mean": scale * mst_mean * scaling,
    }
    eps = values.get(config.variant, scale * mode * scaling)
    if eps > 0:
        return eps
    return scale * (0.001 if config.variant in ("pdm_mean", "mst_mean") and config.semantics == "released" else 0.0005)


def dbscan(distance: Array, eps: float, min_samples: int) -> list[int]:
    """Labels as sklearn.cluster.DBSCAN(metric="precomputed") gives them; -1 for noise."""
    n = len(distance)
    near = [[j for j in range(n) if distance[i, j] <= eps] for i in range(n)]
    labels = [-1] * n
    cluster = 0
    for seed in range(n):
        if labels[seed] != -1 or len(near[seed]) < min_samples:
            continue
        stack = [seed]
        while stack:
            i = stack.pop()
            if labels[i] == -1:
                labels[i] = cluster
                if len(near[i]) >= min_samples:
                    stack.extend(j for j in near[i] if labels[j] == -1)
        cluster += 1
    return labels


def hdbscan(distance: Array, min_cluster_size: int) -> list[int]:
    """scikit-learn's HDBSCAN with allow_single_cluster; -1 for noise."""
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError as error:
        raise MissingExtraError('variant "fixed_mcs"', "eval") from error
    if len(distance) < min_cluster_size:
        return [-1] * len(distance)
    model = HDBSCAN(min_cluster_size=min_cluster_size, metric="precomputed", allow_single_cluster=True, copy=True)
    found: list[int] = model.fit(distance).labels_.tolist()
    return found


def multiscale(edges: Sequence[Edge], n: int, between: tuple[float, float]) -> float:
    """The multiscale entropy from the merges of the tree in ascending order (SPEC 10)."""
    low, high = between
    component, size, total = list(range(n)), [1] * n, 0.0
    for w, i, j in edges:
        a, b = component[i], component[j]
        gain = _x_log_x(size[a] + size[b]) - _x_log_x(size[a]) - _x_log_x(size[b])
        height = (math.log(w) - math.log(low)) / (math.log(high) - math.log(low)) if w else 0.0
        total += gain * min(max(height, 0.0), 1.0)
        component = [a if c == b else c for c in component]
        size[a] += size[b]
    return total / _x_log_x(n)


def entropy_bits(labels: Sequence[int]) -> float:
    """Entropy of the class sizes in bits."""
    n = len(labels)
    return sum(-c / n * math.log2(c / n) for c in Counter(labels).values())


def relabel(labels: Sequence[Any]) -> list[int]:
    """Labels numbered by first appearance."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in labels]


def union(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Components of the graph joining samples that share a class in a or in b."""
    component = list(range(len(a)))
    for i in range(len(a)):
        for j in range(i):
            if a[i] == a[j] or b[i] == b[j]:
                old, new = component[i], component[j]
                component = [new if c == old else c for c in component]
    return relabel(component)


def _labels(distance: Array, eps: float, config: FaseConfig, classes: list[int] | None) -> list[int]:
    if config.variant in ("textual", "structural"):
        assert classes is not None
        return relabel(classes)
    if config.variant == "fixed_mcs":
        found = hdbscan(distance, config.min_cluster_size)
    else:
        found = dbscan(distance, eps, config.min_samples)
    labels = relabel([(label, i if label == -1 else -1) for i, label in enumerate(found)])
    if config.misaligned_union:
        assert classes is not None
        alone = [labels.count(label) == 1 for label in labels]
        moved = [x for x, a in zip(labels, alone, strict=True) if not a] + [
            x for x, a in zip(labels, alone, strict=True) if a
        ]
        return union(moved, sorted(relabel(classes)))
    if config.variant == "union":
        assert classes is not None
        return union(labels, classes)
    if config.variant == "intersection":
        assert classes is not None
        return relabel(list(zip(labels, classes, strict=True)))
    return labels


def _x_log_x(k: int) -> float:
    return k * math.log2(k)


def _task_distances(source: EmbeddingSource | DistanceSource, task: int, min_distance: float) -> tuple[Array, Status]:
    n = int(source.n[task])
    if isinstance(source, EmbeddingSource):
        found = []
        for rows in source.rows:
            x = rows.task(task).to(torch.float64).contiguous().cpu().numpy()
            found.append(cosine_distances(x, min_distance))
        return np.mean([distance for distance, _ in found], axis=0), max(status for _, status in found)
    given = source.matrices[task][:n, :n].to(torch.float64).cpu().numpy().copy()
    np.fill_diagonal(given, 0.0)
    if not np.isfinite(given).all():
        return np.zeros_like(given), Status.NOT_FINITE
    if (given < -SLACK).any() or (np.abs(given - given.T) > SLACK * (1 + np.abs(given))).any():
        return np.zeros_like(given), Status.NOT_A_DISTANCE
    distance = np.maximum((given + given.T) / 2, min_distance)
    np.fill_diagonal(distance, 0.0)
    return distance, Status.OK
