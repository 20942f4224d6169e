"""Ragged tasks as rows of one matrix, and the buckets, chunks and tiles in which they are scored.

A number must not depend on the batch that a task comes in, so what a task is padded to is a function of its own n
alone: a BLAS is free to sum in another order for another shape. How many tasks a float32 product takes at once may
vary, which was measured not to matter; distance.py sees to float64's, where it does. tests/test_properties.py holds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad

from fase_gpu.distance import Tile, cosine_distances, given_distances

Indices = npt.NDArray[np.int64]

# Steps of at most 1/7 above 16, so that n * n work grows by less than 30 %; common sizes are among them.
_OCTAVE: Final = (36, 40, 45, 50, 57, 64)
_SIZES: Final[tuple[int, ...]] = (
    *range(17),
    18,
    20,
    22,
    25,
    28,
    32,
    *(s << shift for shift in range(24) for s in _OCTAVE),
)
# Bytes of a chunk of edge keys: what a core's cache holds, or what fills a GPU.
_CHUNK_BYTES: Final = {"cpu": 1 << 21, "cuda": 1 << 30}
_MOST_TASKS: Final = 1 << 12
# A chunk of large tasks has so many of them where they fit these bytes: every step of a tree is a call for all of them.
_FEW_TASKS: Final = 64
_FEW_BYTES: Final = 1 << 25
# Of a chunk that is split for the sake of threads.
_LEAST_BYTES: Final = 1 << 18


def padded_size(n: int) -> int:
    """What a task of n samples is padded to."""
    return _SIZES[bisect_left(_SIZES, n)]


def buckets(n: Indices, alphas: int, device: torch.device, threads: int) -> Iterator[tuple[int, Indices]]:
    """Chunks (padded size, tasks) of tasks that are scored together; tasks without samples are left out.

    Where there are tasks enough, so many chunks of a size that no thread is left without.
    """
    sizes = np.array(_SIZES)[np.searchsorted(_SIZES, n)]
    budget = _CHUNK_BYTES.get(device.type, _CHUNK_BYTES["cuda"])
    for size in np.unique(sizes[n > 0]).tolist():
        tasks = np.flatnonzero(sizes == size)
        of_task = 8 * size * (size + 4 * (alphas - 1))
        step = max(1, min(_MOST_TASKS, budget // of_task), min(_FEW_TASKS, _FEW_BYTES // of_task))
        least = max(1, _LEAST_BYTES // of_task)
        step = min(step, max(least, -(-tasks.size // threads)))
        for start in range(0, tasks.size, step):
            yield size, tasks[start : start + step]


@dataclass(frozen=True)
class Rows:
    """Embeddings of T tasks: task t is the rows start[t] .. start[t] + n[t] of x [S, d].

    With an index [S], row i is x[index[i]]: samples that are the same text share a row.
    """

    x: torch.Tensor
    start: Indices
    n: Indices
    index: Indices | None = None

    def tile(self, tasks: Indices, size: int) -> torch.Tensor:
        """Embeddings [B, size, d] of the tasks; padding repeats a row of the same task. A view where it can be."""
        start = self.start[tasks]
        step = int(start[1] - start[0]) if tasks.size > 1 else size
        even = step >= size and bool((self.n[tasks] == size).all()) and bool((np.diff(start) == step).all())
        if even and self.x.stride(1) == 1 and self.index is None:
            strides = (step * self.x.stride(0), *self.x.stride())
            first = int(start[0]) * self.x.stride(0) + self.x.storage_offset()
            return self.x.as_strided((tasks.size, size, self.x.shape[1]), strides, first)
        last = start + self.n[tasks] - 1
        rows = np.minimum(start[:, None] + np.arange(size), last[:, None]).reshape(-1)
        picked = torch.from_numpy(rows if self.index is None else self.index[rows]).to(self.x.device)
        return self.x.index_select(0, picked).view(tasks.size, size, self.x.shape[1])

    def task(self, task: int) -> torch.Tensor:
        """Embeddings [n, d] of one task."""
        return self.part(task, slice(0, int(self.n[task])))

    def part(self, task: int, samples: slice) -> torch.Tensor:
        """Embeddings of some consecutive samples of one task."""
        rows = slice(self.start[task] + samples.start, self.start[task] + samples.stop)
        return self.x[rows] if self.index is None else self.x[torch.from_numpy(self.index[rows]).to(self.x.device)]


@dataclass(frozen=True)
class EmbeddingSource:
    """Distances from embeddings; with two encoders the mean of their matrices (SPEC 11, "ast+NAME")."""

    rows: tuple[Rows, ...]
    width: int
    """N of the padded labels."""

    @property
    def n(self) -> Indices:
        return self.rows[0].n

    @property
    def device(self) -> torch.device:
        return self.rows[0].x.device

    def tile(self, tasks: Indices, size: int, min_distance: float) -> Tile:
        """Distances of the tasks, in order."""
        n = torch.from_numpy(self.n[tasks]).to(self.device)
        tile, *others = (cosine_distances(_Chunk(rows, tasks, size), n, min_distance) for rows in self.rows)
        for other in others:
            tile = Tile(tile.distance.add_(other.distance), torch.maximum(tile.status, other.status))
        if others:
            tile.distance.div_(len(self.rows))
        return tile


@dataclass(frozen=True)
class _Chunk:
    """Embeddings [B, size, d] of some tasks, of which few are in memory at a time."""

    rows: Rows
    tasks: Indices
    size: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.tasks.size, self.size, self.rows.x.shape[1]

    def __getitem__(self, part: slice | Indices) -> torch.Tensor:
        return self.rows.tile(self.tasks[part], self.size)


@dataclass(frozen=True)
class DistanceSource:
    """Given matrices [T, N, N] of which the first n[t] rows and columns count, or a list of [n, n]."""

    matrices: torch.Tensor | list[torch.Tensor]
    n: Indices
    width: int
    device: torch.device

    def tile(self, tasks: Indices, size: int, min_distance: float) -> Tile:
        """Distances of the tasks, in order."""
        if isinstance(self.matrices, list):
            parts = [self.matrices[task] for task in tasks.tolist()]
            picked = torch.stack([pad(part, (0, size - part.shape[0]) * 2) for part in parts])
        else:
            have = min(size, self.width)
            picked = self.matrices[:, :have, :have].index_select(0, torch.from_numpy(tasks).to(self.device))
            picked = pad(picked, (0, size - have) * 2)
        return given_distances(picked, torch.from_numpy(self.n[tasks]).to(self.device), min_distance)
