"""Encoders: texts to unit vectors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fase_gpu.backends import torch_device
from fase_gpu.encode._reading import read_each
from fase_gpu.encode._syntax_tree import normalized
from fase_gpu.errors import InputError

# torch is imported where an encoder is made: structural classes and normalize_code work without its seconds of import.
if TYPE_CHECKING:
    import torch

__all__ = ["Encoder", "Encoding", "load_encoder", "normalize_code"]


# transformers replaces its own module while it is imported, which a second thread must not do at the same time.
_loading = threading.Lock()


class Encoding(NamedTuple):
    """What an encoder makes of n texts, in their order."""

    vectors: torch.Tensor
    """[n, d] float32, rows of length 1, on the encoder's device; equal texts have equal rows."""
    truncated: list[bool]
    """Per text: the tokenizer's limit cut it (what reaches the tokenizer, so after normalisation where that is on)."""
    unparsable: list[bool]
    """Per text: the original does not parse as Python. All False from a neural encoder that does not normalise."""


class Encoder(Protocol):
    """A model that `load_encoder` made ready."""

    @property
    def name(self) -> str:
        """As given to `load_encoder`."""

    @property
    def multiscale_range(self) -> tuple[float, float]:
        """Radii (lo, hi) between which the multiscale entropy of its distances is taken (SPEC 10)."""

    def encode(self, texts: Sequence[str]) -> Encoding:
        """Vectors of n texts; raises InputError, with the index, for what is not a string."""


def load_encoder(
    name: str,
    *,
    device: str | torch.device | None = None,
    batch_tokens: int | None = None,
    normalize: bool = True,
    workers: int | None = None,
) -> Encoder:
    """An encoder by name: "ast", a preset ("all-MiniLM-L6-v2"), a local model folder, or a hub id ("owner/model").

    device         of the vectors and the model; None is "cuda" where there is one, else "cpu"
    batch_tokens   padded tokens in one forward pass of a neural encoder; None is a measured default
    normalize      strip comments and docstrings with `normalize_code` before a neural encoder
    workers        processes that parse programs: 0 for none, None for as many as there are cores and work for them

    Raises InputError for an unknown name (with the nearest known one), a model that is not at hand or is of a kind not
    supported, and a bad setting; MissingExtraError without transformers.
    """
    if not isinstance(name, str):
        raise InputError(f"encoder: expected a name, got {type(name).__name__}")
    for setting, value, least in (("batch_tokens", batch_tokens, 1), ("workers", workers, 0)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise InputError(f"{setting}: expected None or an integer of at least {least}, got {value!r}")

    from fase_gpu.encode import neural, syntax_tree

    where = torch_device(device)
    if name == "ast":
        return syntax_tree.SyntaxTreeEncoder(where, workers)
    with _loading:
        return neural.load(name, where, batch_tokens, normalize, workers)


def normalize_code(text: str) -> str:
    """The program printed again without comments and docstrings (SPEC 11), so that small encoders see the code.

    Text that does not parse is returned unchanged, and so is a program that has no printed form (nested deeper than 150
    levels; before Python 3.12, some f-strings). Raises InputError for what is not a string.
    """
    if not isinstance(text, str):
        raise InputError(f"text: expected a string, got {type(text).__name__}")
    return read_each(normalized, [text])[0][0]
