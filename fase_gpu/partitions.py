"""Partitions of the samples of many tasks: numbering, union, intersection.

A partition is int64 [N, ...] with samples on the first axis and any number of independent columns behind it. Padding
samples may hold anything that no real sample holds.
"""

from __future__ import annotations

import torch


def first_appearance(ids: torch.Tensor, bound: int | None = None) -> torch.Tensor:
    """The same partition with classes numbered 0, 1, ... in the order in which they appear.

    ids     [N, ...] int64 in [0, bound); bound is N where it is not given
    """
    first = _first_member(ids, bound)
    sample = _samples(ids)
    number = (first == sample).to(torch.int64).cumsum_(0).sub_(1)
    return number.gather(0, first)


def intersection(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Classes are the pairs (class in a, class in b). Both [N, ...] with ids in [0, N)."""
    pair = (a * a.shape[0] + b).sort(dim=0, stable=True)
    new = torch.ones_like(a)
    new[1:] = (pair.values.diff(dim=0) != 0).to(a.dtype)
    return first_appearance(torch.empty_like(a).scatter_(0, pair.indices, new.cumsum(0) - 1))


def union(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Classes are the components of the graph that joins samples sharing a class in a or in b. Both [N, ...]."""
    a, b = _first_member(a, None), _first_member(b, None)
    label = a
    while True:
        wider = _least(_least(label, b), a)
        if torch.equal(wider, label):
            return first_appearance(label)
        label = wider.gather(0, wider)  # a label is a sample, whose own label is as good: chains halve each round


def _samples(ids: torch.Tensor) -> torch.Tensor:
    """0, 1, ... along the first axis, shaped like ids."""
    return torch.arange(ids.shape[0], device=ids.device).view(-1, *[1] * (ids.ndim - 1)).expand_as(ids)


def _first_member(ids: torch.Tensor, bound: int | None) -> torch.Tensor:
    """For each sample the first sample of its class."""
    size = ids.shape[0]
    first = torch.full((size if bound is None else bound, *ids.shape[1:]), size, device=ids.device)
    return first.scatter_reduce_(0, ids, _samples(ids), "amin").gather(0, ids)


def _least(label: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """The least label among the samples of each sample's class."""
    size = label.shape[0]
    return torch.full_like(label, size).scatter_reduce_(0, classes, label, "amin").gather(0, classes)


def misaligned_union(a: torch.Tensor, b: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """The released code's union, which joins the classes of different samples (SPEC 7); only to reproduce its table.

    It lists a with the samples that are alone in their class moved to the end, and b class by class, and then takes the
    two lists as labels of the same samples. a [N, A, T], b [N, 1, T], n [T]; padding is behind everything.
    """
    padding = _samples(a) >= n
    alone = torch.zeros_like(a).scatter_add_(0, a, torch.ones_like(a)).gather(0, a) == 1
    last = torch.where(padding, 2, alone.to(torch.int64))
    return union(a.gather(0, last.argsort(dim=0, stable=True)), first_appearance(b).sort(0).values.expand_as(a))
