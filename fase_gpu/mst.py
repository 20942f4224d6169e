"""Minimum spanning trees of many tasks at once (SPEC 3), with tasks on the last axis."""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

import torch

from fase_gpu.errors import InputError

MAX_SAMPLES: Final = 1 << 16

# An edge is one float64: the bits of its float32 weight above the bits of (smaller end << 16 | larger end). Positive
# doubles order as their bits do, so one comparison orders edges by (weight, smaller end, larger end), and the tree is
# unique. Weight bits of +inf make the largest key, which stands for "no edge".
_NO_EDGE_BITS: Final = 0x7F800000 << 32
NO_EDGE: Final[float] = float(torch.tensor(_NO_EDGE_BITS, dtype=torch.int64).view(torch.float64))


class Mst(NamedTuple):
    """Minimum spanning trees of T tasks, with their samples in an order in which every single-linkage cluster is a run
    of consecutive positions: that in which Prim's algorithm from sample 0 reaches them is one.

    Between positions i and i + 1 stands the edge that joins the clusters on its two sides, so that the components at a
    radius are the runs between the weights above it. That is why nothing after the tree needs union-find.
    """

    key: torch.Tensor
    """[N-1, T] float64 that orders a task's edges as (weight, smaller end, larger end) does; NO_EDGE in padding."""
    weight: torch.Tensor
    """[N-1, T] float32, the weight of the edge between positions i and i + 1; +inf in padding."""
    order: torch.Tensor
    """[N, T] int64, the sample at each position; padding keeps its own place."""


class EdgeKeys:
    """The keys of all pairs, [N, N, T] float64, filled tile by tile."""

    def __init__(self, size: int, tasks: int, device: torch.device) -> None:
        self.size, self.tasks = size, tasks
        if size > MAX_SAMPLES:
            raise InputError(f"samples: expected at most {MAX_SAMPLES} in one task, got {size}")
        self._words = torch.zeros(size, size, tasks, 2, dtype=torch.int32, device=device)
        sample = torch.arange(size, device=device)
        ends = torch.minimum(sample[:, None], sample) << 16 | torch.maximum(sample[:, None], sample)
        self._low, self._high = (0, 1) if sys.byteorder == "little" else (1, 0)
        self._words[..., self._low] = ends.to(torch.int32)[..., None]

    def fill(self, start: int, distance: torch.Tensor) -> None:
        """Write the distances [B, N, N] float32 of tasks start, start + 1, ..."""
        weights = self._words.view(torch.float32)[:, :, start : start + distance.shape[0], self._high]
        weights.copy_(distance.permute(1, 2, 0))

    def keys(self, tasks: int) -> torch.Tensor:
        """The keys of the first tasks."""
        return self._words.view(torch.float64)[:, :, :tasks, 0]


def minimum_spanning_trees(keys: torch.Tensor, n: torch.Tensor) -> Mst:
    """Prim's algorithm over all tasks in step.

    keys   [N, N, T] float64 from EdgeKeys; entries of padding are not read
    n      [T] int64, samples of each task
    """
    size, _, tasks = keys.shape
    position = torch.arange(size, device=keys.device)[:, None]
    order = position.repeat(1, tasks)
    edges = torch.full((max(size - 1, 0), tasks), NO_EDGE, dtype=torch.float64, device=keys.device)
    # NO_EDGE where a sample is in the tree or is padding: the maximum with it takes a key out of the search.
    taken = torch.zeros(size, tasks, dtype=torch.float64, device=keys.device)
    taken.masked_fill_((position >= n) | (position == 0), NO_EDGE)
    best = torch.full_like(taken, NO_EDGE)
    latest = torch.zeros(1, tasks, dtype=torch.int64, device=keys.device)
    for step in range(size - 1):
        reach = torch.gather(keys, 0, latest[None].expand(1, size, tasks))[0]
        torch.minimum(best, reach, out=best)
        torch.maximum(best, taken, out=best)
        least = best.min(0, keepdim=True)
        edges[step] = least.values[0]
        latest = torch.where(step + 1 < n, least.indices, step + 1)
        order[step + 1] = latest[0]
        taken.scatter_(0, latest, NO_EDGE)
    weight = (edges.view(torch.int64) >> 32).to(torch.int32).view(torch.float32)
    return Mst(edges, weight, order)


def linked_tree(weight: torch.Tensor, low: torch.Tensor, high: torch.Tensor, size: int) -> Mst:
    """The tree of one task from its edges, with a leaf order of its single-linkage clusters; T = 1.

    weight      [n-1] float32 of edges in ascending order of (weight, low, high)
    low, high   [n-1] int64, their ends
    size        N, to which the task is padded

    The ranks of the edges are their keys, so that no number of samples is too large. Works on the host: lists of
    samples are joined end to end, edge by edge.
    """
    n = weight.shape[0] + 1
    # A list's root is its first sample. The longer list comes first, which keeps the paths to the roots short.
    root, last, length = list(range(n)), list(range(n)), [1] * n
    following, edge_behind = [-1] * n, [-1] * n
    a = 0
    for rank, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        while root[a] != a:
            root[a] = a = root[root[a]]
        while root[b] != b:
            root[b] = b = root[root[b]]
        if length[a] < length[b]:
            a, b = b, a
        end = last[a]
        following[end], edge_behind[end] = b, rank
        root[b], last[a] = a, last[b]
        length[a] += length[b]
    order, ranks = list(range(size)), []
    for position in range(n):
        order[position] = a
        ranks.append(edge_behind[a])
        a = following[a]
    device = weight.device
    edges = torch.tensor(ranks[:-1], dtype=torch.int64, device=device)
    tree = Mst(
        torch.full((max(size - 1, 0), 1), NO_EDGE, dtype=torch.float64, device=device),
        torch.full((max(size - 1, 0), 1), torch.inf, dtype=torch.float32, device=device),
        torch.tensor(order, dtype=torch.int64, device=device)[:, None],
    )
    tree.key[: n - 1, 0] = edges.to(torch.float64)
    tree.weight[: n - 1, 0] = weight[edges]
    return tree
