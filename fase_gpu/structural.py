"""Structural classes: which programs have the same syntax-tree shape (SPEC 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fase_gpu.encode._reading import distinct, read_each
from fase_gpu.encode._syntax_tree import structure


class StructuralClasses(NamedTuple):
    """What SPEC 8 compares of n texts, in their order."""

    keys: list[str]
    """Equal exactly if two programs are structurally equal; "" for a text that does not parse, which is a class of its
    own even beside an equal text, so that callers give every "" a class."""
    unparsable: list[bool]


def structural_classes(texts: Sequence[str], *, workers: int | None = None) -> StructuralClasses:
    """Keys of n programs by node types alone, children in any order, over the significant subtrees.

    Two programs are equal if their Import, FunctionDef, If, ClassDef, While, For, comprehension and Return subtrees are
    the same multiset; without such a node, if their whole trees are equal. `workers` as in `load_encoder`.

    Raises InputError, with the index, for what is not a string.
    """
    unique, index = distinct(texts)
    read = read_each(structure, unique, workers)
    keys = [read[i] for i in index]
    return StructuralClasses([key or "" for key in keys], [key is None for key in keys])
