"""From texts to embeddings and classes: every distinct text once."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from fase_gpu.batching import EmbeddingSource, Indices, Rows
from fase_gpu.encode import Encoder, load_encoder
from fase_gpu.errors import InputError
from fase_gpu.structural import structural_classes

SYNTAX_TREE: Final = "ast"


@dataclass(frozen=True)
class Texts:
    """The distinct texts of T tasks, and which of them each sample is."""

    distinct: list[str]
    index: Indices
    """[S] position in distinct of each sample, task after task"""
    n: Indices
    """[T] samples of each task"""

    def per_task(self, values: Sequence[Hashable]) -> list[list[Hashable]]:
        """Values of the S samples as a list for each task."""
        ends = np.cumsum(self.n).tolist()
        return [list(values[end - n : end]) for end, n in zip(ends, self.n.tolist(), strict=True)]


@dataclass(frozen=True)
class Encoded:
    """Embeddings of the samples, and how many were seen to be cut or not to parse; None where nothing would see it."""

    source: EmbeddingSource
    truncated: int | None
    unparsable: int | None


def collect(samples: Sequence[Sequence[str]]) -> Texts:
    """Raises InputError naming the task and sample that is not a string."""
    if isinstance(samples, str) or not isinstance(samples, Sequence):
        raise InputError(f"samples: expected a list of lists of strings, got {type(samples).__name__}")
    places: dict[str, int] = {}
    index: list[int] = []
    for task, texts in enumerate(samples):
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise InputError(f"samples[{task}]: expected a list of strings, got {type(texts).__name__}")
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"samples[{task}][{i}]: expected a string, got {type(text).__name__}")
            index.append(places.setdefault(text, len(places)))
    n = np.array([len(texts) for texts in samples], dtype=np.int64)
    return Texts(list(places), np.array(index, dtype=np.int64), n)


def load_encoders(
    name: str, device: str | torch.device | None, batch_tokens: int | None, normalize: bool, workers: int | None
) -> list[Encoder]:
    """One encoder, or those of "ast+NAME"; a name with a + that is a folder is that folder."""
    if not isinstance(name, str):
        raise InputError(f"encoder: expected a name, got {type(name).__name__}")
    names = [name] if os.path.exists(name) else [part.strip() for part in name.split("+")]
    if not all(names):
        raise InputError(f'encoder: expected a name, or two joined as in "ast+all-MiniLM-L6-v2", got {name!r}')
    return [
        load_encoder(part, device=device, batch_tokens=batch_tokens, normalize=normalize, workers=workers)
        for part in names
    ]


def encode(texts: Texts, encoders: Sequence[Encoder], normalize: bool) -> Encoded:
    """Encode the distinct texts and lay them out as the samples' packed rows."""
    start = np.cumsum(texts.n) - texts.n
    rows = []
    truncated = np.zeros(len(texts.distinct), dtype=bool)
    unparsable = np.zeros(len(texts.distinct), dtype=bool)
    for encoder in encoders:
        encoding = encoder.encode(texts.distinct)
        rows.append(Rows(encoding.vectors, start, texts.n, texts.index))
        truncated |= np.array(encoding.truncated, dtype=bool)
        unparsable |= np.array(encoding.unparsable, dtype=bool)
    trees = [encoder.name == SYNTAX_TREE for encoder in encoders]
    return Encoded(
        EmbeddingSource(tuple(rows), int(texts.n.max(initial=0))),
        None if all(trees) else int(truncated[texts.index].sum()),
        int(unparsable[texts.index].sum()) if normalize or any(trees) else None,
    )


def text_classes(texts: Texts, variant: str, workers: int | None) -> tuple[list[list[Hashable]], int | None]:
    """Classes of each task's samples for a variant of CLASS_VARIANTS, and the number of unparsable samples.

    Identical strings for "textual", else identical syntax-tree shape; a sample that does not parse is alone (SPEC 8).
    """
    if variant == "textual":
        return texts.per_task(texts.index.tolist()), None
    found = structural_classes(texts.distinct, workers=workers)
    keys = [
        (sample, "") if found.unparsable[text] else found.keys[text] for sample, text in enumerate(texts.index.tolist())
    ]
    return texts.per_task(keys), sum(found.unparsable[text] for text in texts.index.tolist())
