"""Trees of the corpus, and what the kernels behind the tree stage take and give, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from cases import distances

from fase_gpu import reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where kernels are tested: interpreted on the CPU unless there is a GPU."""
NO_EDGE = np.iinfo(np.int64).max

Edge = tuple[float, int, int]


@lru_cache
def corpus_tree(kind: str, n: int) -> tuple[Edge, ...]:
    """Edges of the tree of a task of the corpus, ascending."""
    return tuple(reference.kruskal(distances(kind, n).astype(np.float64))) if n > 1 else ()


def random_tree(n: int, rng: np.random.Generator, deep: bool = False) -> tuple[Edge, ...]:
    """A tree of ascending weights with ties; its clusters grow evenly and are joined by late comers where `deep`."""
    clusters = [[sample] for sample in rng.permutation(n).tolist()]
    edges = []
    for weight in np.sort(rng.integers(1, max(2, n // 2), size=n - 1) / np.float32(n)).tolist():
        if deep:
            clusters.sort(key=len, reverse=True)
            (a, b), ends = (clusters.pop(), clusters.pop()), (-1, -1)
        else:
            a, b = (clusters.pop(rng.integers(len(clusters))) for _ in range(2))
            ends = (rng.integers(len(a)), rng.integers(len(b)))
        i, j = a[ends[0]], b[ends[1]]
        edges.append((weight, min(i, j), max(i, j)))
        clusters.append(a + b)
    return tuple(edges)


def keys(edges: Sequence[Edge], width: int) -> npt.NDArray[np.int64]:
    """The edges as they leave the tree stage: [width] of weight bits, smaller end, larger end."""
    found = np.full(width, NO_EDGE)
    for e, (weight, i, j) in enumerate(edges):
        found[e] = int(np.float32(weight).view(np.uint32)) << 32 | i << 16 | j
    return found


def leaf_order(edges: Sequence[Edge], n: int) -> tuple[list[int], list[float]]:
    """The sample at each position and the weight that joins it to the position before, by joining lists."""
    runs = {sample: ([sample], [math.inf]) for sample in range(n)}
    head = list(range(n))
    for weight, i, j in edges:
        first, second = sorted((head[i], head[j]))
        order, gap = runs.pop(second)
        for sample in order:
            head[sample] = first
        runs[first][0].extend(order)
        runs[first][1].extend([weight, *gap[1:]])
    return runs[0]
