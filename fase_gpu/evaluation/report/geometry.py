"""Distances, spanning trees and merges of single tasks, as the executor has them, for figures and drawings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fase_gpu.batching import EmbeddingSource, Indices, buckets
from fase_gpu.mst import edge_keys, minimum_spanning_trees

MOST_SAMPLES: Final = 512
"""Of a task whose distances are looked at one by one: those of larger ones are no figure that anyone could read."""
_LOW_BITS: Final = 0xFFFF


class Edge(NamedTuple):
    """An edge of a spanning tree between two samples of a task."""

    weight: float
    low: int
    high: int


class Geometry(NamedTuple):
    """A task's distances [n, n] float32, with zeros on the diagonal, and its n - 1 tree edges in ascending order."""

    distance: NDArray[np.float32]
    edges: list[Edge]


class Merge(NamedTuple):
    """Two single-linkage clusters that become one: a row of scipy.cluster.hierarchy.linkage.

    Cluster i < n is sample i, cluster n + k is what merge k made.
    """

    first: int
    second: int
    weight: float
    size: int


def geometries(source: EmbeddingSource, min_distance: float, tasks: Indices) -> Iterator[tuple[int, Geometry]]:
    """Geometry of each of the tasks that has 2 to MOST_SAMPLES samples, in an order of its own."""
    wanted = np.zeros_like(source.n)
    wanted[tasks] = np.where(source.n[tasks] <= MOST_SAMPLES, source.n[tasks], 0)
    for size, chunk in buckets(wanted, 1, source.device, 1):
        distances, _ = source.tile(chunk, size, min_distance)
        tree = minimum_spanning_trees(edge_keys(distances), torch.from_numpy(source.n[chunk]).to(source.device))
        weights = tree.weight.T.cpu().numpy()
        ends = tree.key.view(torch.int64).T.cpu().numpy()
        matrices = distances.cpu().numpy()
        for row, task in enumerate(chunk.tolist()):
            n = int(source.n[task])
            if n >= 2:
                found = zip(weights[row, : n - 1].tolist(), ends[row, : n - 1].tolist(), strict=True)
                edges = sorted(Edge(w, end >> 16 & _LOW_BITS, end & _LOW_BITS) for w, end in found)
                yield task, Geometry(matrices[row, :n, :n], edges)


def merges(edges: list[Edge]) -> list[Merge]:
    """The merge tree of a spanning tree's edges, given in ascending order."""
    n = len(edges) + 1
    cluster = list(range(n))
    size = [1] * n
    found = []
    for k, (weight, low, high) in enumerate(edges):
        a, b = sorted((cluster[low], cluster[high]))
        size.append(size[a] + size[b])
        cluster = [n + k if c in (a, b) else c for c in cluster]
        found.append(Merge(a, b, weight, size[-1]))
    return found


def leaf_order(found: list[Merge]) -> list[int]:
    """The n samples in an order in which every cluster is a run, larger ones first."""
    leaves = [[i] for i in range(len(found) + 1)]
    for a, b, _, _ in found:
        first, second = leaves[a], leaves[b]
        leaves.append(first + second if len(first) >= len(second) else second + first)
    return leaves[-1]


def tree_layout(edges: list[Edge], node: float = 1.0) -> list[tuple[float, float]]:
    """Positions [n] of the samples in the plane so that no two edges of the tree cross.

    Every subtree has a wedge of the plane for itself, as wide as it has leaves, seen from the tree's middle (the
    equal-angle layout of unrooted trees). Edges are longer the larger the logarithm of their weight, and long enough
    that nodes of diameter `node` beside each other do not overlap.
    """
    n = len(edges) + 1
    near: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    logs = [math.log(edge.weight) for edge in edges]
    low, span = min(logs), (max(logs) - min(logs)) or 1.0
    for edge, value in zip(edges, logs, strict=True):
        length = 2.4 * node + 2.4 * node * (value - low) / span
        near[edge.low].append((edge.high, length))
        near[edge.high].append((edge.low, length))

    root = _middle(near)
    order, parent = [root], {root: -1}
    for i in order:
        for j, _ in near[i]:
            if j != parent[i]:
                parent[j] = i
                order.append(j)
    leaves = [0] * n
    for i in reversed(order):
        leaves[i] = max(1, leaves[i])
        if parent[i] >= 0:
            leaves[parent[i]] += leaves[i]

    at = [(0.0, 0.0)] * n
    wedge = {root: (0.0, 2 * math.pi)}
    for i in order:
        start, width = wedge[i]
        for j, length in near[i]:
            if j == parent[i]:
                continue
            share = width * leaves[j] / leaves[i]
            angle = start + share / 2
            length = max(length, 0.65 * node / math.sin(min(share, math.pi) / 2))
            at[j] = at[i][0] + length * math.cos(angle), at[i][1] + length * math.sin(angle)
            wedge[j] = start, share
            start += share
    return at


def _middle(near: list[list[tuple[int, float]]]) -> int:
    """The sample in the middle of a longest path, counted in edges."""

    def walk(start: int) -> list[int]:
        before = {start: -1}
        order = [start]
        for i in order:
            for j, _ in near[i]:
                if j not in before:
                    before[j] = i
                    order.append(j)
        path = [order[-1]]
        while before[path[-1]] >= 0:
            path.append(before[path[-1]])
        return path

    path = walk(walk(0)[0])
    return path[len(path) // 2]
