"""Embedding files: .npy and .npz, told apart by their content."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fase_gpu.errors import InputError
from fase_gpu.files.paths import open_binary, to_utf8

_NAMES = {name: name for name in ("embeddings", "n_samples", "offsets", "task_id")} | {
    "x": "embeddings",
    "task_ids": "task_id",
}


@dataclass(frozen=True)
class EmbeddingSet:
    """Embeddings of T tasks, in the forms that `score_embeddings` takes.

    x           float16, float32 or float64: padded [T, N, d], or packed [S, d] with offsets
    n_samples   [T] of a padded x, None where every task has N
    offsets     [T+1] of a packed x, None for a padded one
    task_ids    [T], None where the file has none
    """

    x: npt.NDArray[Any]
    n_samples: npt.NDArray[np.int64] | None = None
    offsets: npt.NDArray[np.int64] | None = None
    task_ids: list[str] | None = None

    def __len__(self) -> int:
        return len(self.x) if self.offsets is None else max(len(self.offsets) - 1, 0)


def read_embeddings(path: str | Path) -> EmbeddingSet:
    """Read a .npy file of padded embeddings [T, N, d], or a .npz file of named arrays.

    Names in the .npz: `embeddings` (or `x`), and as needed `n_samples` [T], `offsets` [T+1], `task_id` (or `task_ids`)
    [T] of strings or integers; others are ignored. Nothing is ever unpickled.

    Raises InputError when the file is not one of these, or an array has the wrong kind, shape or length. What the
    numbers say (say, offsets that go backwards) is checked where they are used.
    """
    arrays = _arrays(path)
    x, offsets = arrays["embeddings"], arrays.get("offsets")
    if x.dtype.char not in "efd":
        raise InputError(f"{path}: embeddings: expected float16, float32 or float64, got {x.dtype}")
    if x.ndim != (3 if offsets is None else 2):
        raise InputError(f"{path}: embeddings: expected [T, N, d] or packed [S, d] with offsets, got shape {x.shape}")
    embeddings = EmbeddingSet(
        np.ascontiguousarray(x, x.dtype.newbyteorder("=")),
        _integers(path, "n_samples", arrays.get("n_samples")),
        _integers(path, "offsets", offsets),
        _texts(path, arrays.get("task_id")),
    )
    ids = embeddings.task_ids
    if ids is not None and len(ids) != len(embeddings):
        raise InputError(f"{path}: task_id: expected one for each of {len(embeddings)} tasks, got {len(ids)}")
    return embeddings


def _arrays(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays that the file has, under the names of _NAMES."""
    with open_binary(path) as stream:
        if not stream.peek(4).startswith((b"\x93NUM", b"PK\x03\x04", b"PK\x05\x06")):
            raise InputError(f"{path}: expected .npy or .npz data, got something else")
        arrays: dict[str, npt.NDArray[Any]] = {}
        try:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"embeddings": loaded}
            with loaded:
                names = list(loaded.files)
                for name in names:
                    if name in _NAMES and _NAMES[name] in arrays:
                        raise InputError(f"{path}: {name}: given twice, also as {_NAMES[name]}; keep one")
                    if name in _NAMES:
                        arrays[_NAMES[name]] = loaded[name]
        except InputError:
            raise
        except (ValueError, EOFError, OSError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"{path}: cannot be read as NumPy data: {str(error).splitlines()[0]}") from error
    if "embeddings" not in arrays:
        raise InputError(f"{path}: no array named embeddings (or x); names in the file: {', '.join(names) or 'none'}")
    for name, array in arrays.items():
        # np.load hands out members that are not .npy data as bytes.
        if not isinstance(array, np.ndarray):
            raise InputError(f"{path}: {name}: expected an array, got raw bytes")
    return arrays


def _integers(path: str | Path, name: str, array: npt.NDArray[Any] | None) -> npt.NDArray[np.int64] | None:
    if array is None:
        return None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{path}: {name}: expected integers, one axis, got {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def _texts(path: str | Path, array: npt.NDArray[Any] | None) -> list[str] | None:
    if array is None:
        return None
    if array.ndim != 1 or array.dtype.kind not in "USiu":
        raise InputError(
            f"{path}: task_id: expected strings or integers, one axis, got {array.dtype} of shape {array.shape}"
        )
    values: list[Any] = array.tolist()
    if array.dtype.kind == "S":
        return [value.decode("utf-8", "replace") for value in values]
    return [to_utf8(str(value))[0] for value in values]
