"""The `ast` encoder: hashed counts of a program's syntax subtrees, without a model (SPEC 11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from fase_gpu.config import SYNTAX_TREE_RANGE
from fase_gpu.encode import Encoding
from fase_gpu.encode._reading import distinct, read_each
from fase_gpu.encode._syntax_tree import Features, features

DIMENSIONS: Final = 2048
_BLOCK: Final = 1024
"""Texts made dense at once: 16 MB of float64."""


class SyntaxTreeEncoder:
    """Vectors of Python programs by what their syntax trees are made of; variable names and docstrings do not count.

    Each canonical subtree and each node type adds sqrt(count), with a hashed sign, at a hashed position of 2048. Text
    that does not parse is represented by its token bigrams in the same way, and flagged; a program without a statement
    (an empty text, or nothing but comments) by its empty module. No text has the zero vector.
    """

    name = "ast"
    multiscale_range = SYNTAX_TREE_RANGE

    def __init__(self, device: torch.device, workers: int | None = None) -> None:
        self._device = device
        self._workers = workers

    def encode(self, texts: Sequence[str]) -> Encoding:
        """[len(texts), 2048] float32 unit vectors; nothing is ever truncated.

        Raises InputError, with the index, for what is not a string.
        """
        unique, index = distinct(texts)
        read = read_each(features, unique, self._workers)
        dense = np.empty((len(unique), DIMENSIONS), np.float32)
        for start in range(0, len(unique), _BLOCK):
            dense[start : start + _BLOCK] = _unit_vectors(read[start : start + _BLOCK])
        vectors = torch.from_numpy(dense).to(self._device)
        if len(unique) < len(index):
            vectors = vectors[torch.tensor(index, dtype=torch.int64, device=self._device)]
        return Encoding(vectors, [False] * len(index), [read[i][2] for i in index])


def _unit_vectors(read: Sequence[Features]) -> npt.NDArray[np.float64]:
    """[n, DIMENSIONS] float64 unit vectors of n texts."""
    digest = np.frombuffer(b"".join(digests for digests, _, _ in read), "<u8")[::2]
    count = np.frombuffer(b"".join(counts for _, counts, _ in read), np.uint32)
    row = np.repeat(np.arange(len(read)), [len(counts) // 4 for _, counts, _ in read])
    position = row * DIMENSIONS + (digest % DIMENSIONS).astype(np.int64)
    value = np.where(digest >> 63, 1.0, -1.0) * np.sqrt(count)
    dense = np.bincount(position, value, len(read) * DIMENSIONS).reshape(len(read), DIMENSIONS)
    # cumsum adds in order, where sum adds in an order that depends on the processor
    norm = np.sqrt(np.cumsum(dense * dense, axis=1)[:, -1:])
    # Hostile text can be made of features that cancel; it must not become a vector without a cosine.
    dense[norm[:, 0] == 0, 0] = 1.0
    return dense / np.where(norm == 0, 1.0, norm)
