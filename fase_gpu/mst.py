"""Minimum spanning trees of many tasks at once (SPEC 3), with tasks on the last axis."""

from __future__ import annotations

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


def edge_keys(distance: torch.Tensor) -> torch.Tensor:
    """The keys of all pairs, [T, N, N] float64, from their distances [T, N, N] float32."""
    size = distance.shape[1]
    if size > MAX_SAMPLES:
        raise InputError(f"samples: expected at most {MAX_SAMPLES} in one task, got {size}")
    sample = torch.arange(size, device=distance.device)
    ends = torch.minimum(sample[:, None], sample).bitwise_left_shift_(16)
    ends.bitwise_or_(torch.maximum(sample[:, None], sample))
    keys = distance.contiguous().view(torch.int32).to(torch.int64)
    return keys.bitwise_left_shift_(32).bitwise_or_(ends).view(torch.float64)


def minimum_spanning_trees(keys: torch.Tensor, n: torch.Tensor) -> Mst:
    """Prim's algorithm over all tasks in step.

    keys   [T, N, N] float64 from edge_keys; entries of padding are not read
    n      [T] int64, samples of each task
    """
    tasks, size, _ = keys.shape
    device = keys.device
    rows = keys.view(tasks * size, size)
    position = torch.arange(size, device=device)
    order = position[:, None].repeat(1, tasks)
    edges = torch.full((max(size - 1, 0), tasks), NO_EDGE, dtype=torch.float64, device=device)
    # NO_EDGE where a sample is in the tree or is padding: the maximum with it takes a key out of the search.
    taken = torch.zeros(tasks, size, dtype=torch.float64, device=device)
    taken.masked_fill_((position >= n[:, None]) | (position == 0), NO_EDGE)
    best, reach = torch.full_like(taken, NO_EDGE), torch.empty_like(taken)
    first = torch.arange(tasks, device=device) * size
    row = first.clone()
    for step in range(size - 1):
        torch.index_select(rows, 0, row, out=reach)
        torch.minimum(best, reach, out=best)
        torch.maximum(best, taken, out=best)
        latest = order[step + 1]
        torch.min(best, 1, out=(edges[step], latest))
        latest.masked_fill_(n <= step + 1, step + 1)
        taken.scatter_(1, latest[:, None], NO_EDGE)
        torch.add(first, latest, out=row)
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
