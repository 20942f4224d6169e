"""What callers hand in, checked at the edge and turned into sources of distances."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from fase_gpu.batching import DistanceSource, EmbeddingSource, Indices, Rows
from fase_gpu.errors import InputError

FLOAT_TYPES: Final = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def embedding_source(x: Any, n_samples: Any = None, offsets: Any = None) -> EmbeddingSource:
    """Embeddings in any of the forms that score_embeddings takes. Raises InputError naming what is wrong."""
    name = "embeddings"
    if isinstance(x, (list, tuple)):
        if n_samples is not None or offsets is not None:
            raise InputError(f"{name}: a list of [n, d] says its own sizes; drop n_samples and offsets")
        return _from_list(x, name)
    tensor = as_tensor(x, name)
    if tensor.ndim == 3:
        if offsets is not None:
            raise InputError("offsets: only for packed [S, d], got embeddings of shape " + _shape(tensor))
        tasks, width, d = tensor.shape
        _check_dimension(d, name)
        n = counts(n_samples, tasks, width)
        start = np.arange(tasks, dtype=np.int64) * width
        return EmbeddingSource((Rows(tensor.reshape(tasks * width, d), start, n),), width)
    if tensor.ndim == 2 and offsets is not None:
        if n_samples is not None:
            raise InputError("n_samples: only for padded [T, N, d]; packed [S, d] takes offsets alone")
        bounds = offset_bounds(offsets, tensor.shape[0])
        _check_dimension(tensor.shape[1], name)
        n = np.diff(bounds)
        return EmbeddingSource((Rows(tensor, bounds[:-1], n),), int(n.max(initial=0)))
    raise InputError(f"{name}: expected [T, N, d] or packed [S, d] with offsets, got shape {_shape(tensor)}")


def distance_source(matrices: Any, n_samples: Any = None) -> DistanceSource:
    """Distance matrices [T, N, N] with n_samples, one matrix [N, N] counting as T = 1, or a list of [n, n]."""
    if isinstance(matrices, (list, tuple)):
        if n_samples is not None:
            raise InputError("distances: a list of [n, n] says its own sizes; drop n_samples")
        parts = [as_tensor(m, f"distances[{i}]") for i, m in enumerate(matrices)]
        for i, part in enumerate(parts):
            if part.ndim != 2 or part.shape[0] != part.shape[1]:
                raise InputError(f"distances[{i}]: expected [n, n], got shape {_shape(part)}")
        _check_alike(parts, "distances")
        n = np.array([part.shape[0] for part in parts], dtype=np.int64)
        device = parts[0].device if parts else torch.device("cpu")
        return DistanceSource(parts, n, int(n.max(initial=0)), device)
    tensor = as_tensor(matrices, "distances")
    if tensor.ndim == 2:
        tensor = tensor[None]
    if tensor.ndim != 3 or tensor.shape[1] != tensor.shape[2]:
        raise InputError(f"distances: expected [T, N, N] or [N, N], got shape {_shape(tensor)}")
    n = counts(n_samples, tensor.shape[0], tensor.shape[1])
    return DistanceSource(tensor, n, tensor.shape[1], tensor.device)


def class_ids(classes: Sequence[Sequence[Hashable]], n: Indices, width: int, device: torch.device) -> torch.Tensor:
    """Classes of each task's samples, any hashable values, as int64 [T, N]: numbered by first appearance in the task.

    Padding gets numbers of its own.
    """
    if hasattr(classes, "tolist"):
        classes = classes.tolist()
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        raise InputError(f"classes: expected a sequence for each task, got {type(classes).__name__}")
    if len(classes) != n.size:
        raise InputError(f"classes: expected one sequence for each of {n.size} tasks, got {len(classes)}")
    ids = np.tile(np.arange(width, dtype=np.int64), (n.size, 1))
    for task, (row, count) in enumerate(zip(classes, n.tolist(), strict=True)):
        values = row.tolist() if hasattr(row, "tolist") else row
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise InputError(f"classes[{task}]: expected a sequence, one value a sample, got {type(values).__name__}")
        if len(values) not in (count, width):
            raise InputError(f"classes[{task}]: expected {count} values, one a sample, got {len(values)}")
        values = [value.tolist() if hasattr(value, "tolist") else value for value in values]
        numbers: dict[Hashable, int] = {}
        try:
            if any(value != value for value in values):
                raise InputError(f"classes[{task}]: a class is NaN, which is not equal to itself")
            ids[task, :count] = [numbers.setdefault(value, len(numbers)) for value in values[:count]]
        except TypeError as error:
            raise InputError(f"classes[{task}]: expected hashable values: {error}") from error
    return torch.from_numpy(ids).to(device)


def as_tensor(x: Any, name: str) -> torch.Tensor:
    """A float tensor sharing memory with a tensor, a NumPy array or anything with DLPack; detached."""
    if isinstance(x, torch.Tensor):
        tensor = x.detach()
        if tensor.is_nested:
            raise InputError(f"{name}: expected a dense tensor, got a nested one; give the list of its parts")
    elif isinstance(x, np.ma.MaskedArray):
        raise InputError(f"{name}: expected an array without a mask, got {type(x).__name__}")
    elif isinstance(x, np.ndarray):
        if x.dtype == object or x.dtype.kind not in "fiub":
            raise InputError(f"{name}: expected a float array, got dtype {x.dtype}")
        if x.dtype.byteorder == ">" or any(s < 0 or s % x.itemsize for s in x.strides):
            x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
        with warnings.catch_warnings():
            # torch warns that it cannot keep a read-only array from being written; nothing here writes to inputs.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            try:
                tensor = torch.from_numpy(x)
            except TypeError as error:
                raise InputError(f"{name}: expected {_FLOAT_NAMES}, got dtype {x.dtype}") from error
    elif hasattr(x, "__dlpack__"):
        try:
            tensor = from_dlpack(x)
        except (RuntimeError, BufferError, TypeError, AttributeError) as error:
            raise InputError(f"{name}: cannot be read through DLPack: {error}") from error
    else:
        raise InputError(f"{name}: expected a tensor, a NumPy array or a list of them, got {type(x).__name__}")
    if tensor.layout != torch.strided:
        raise InputError(f"{name}: expected a dense tensor, got layout {tensor.layout}; call .to_dense() first")
    if tensor.is_meta:
        raise InputError(f"{name}: expected a tensor with values, got one on the meta device")
    if tensor.dtype not in FLOAT_TYPES:
        raise InputError(f"{name}: expected {_FLOAT_NAMES}, got {str(tensor.dtype).removeprefix('torch.')}")
    return tensor


_FLOAT_NAMES: Final = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOAT_TYPES)


def _from_list(parts: Sequence[Any], name: str) -> EmbeddingSource:
    tensors = [as_tensor(part, f"{name}[{i}]") for i, part in enumerate(parts)]
    for i, tensor in enumerate(tensors):
        if tensor.ndim != 2:
            raise InputError(f"{name}[{i}]: expected [n, d], got shape {_shape(tensor)}")
        _check_dimension(tensor.shape[1], f"{name}[{i}]")
        if tensor.shape[1] != tensors[0].shape[1]:
            raise InputError(f"{name}[{i}]: expected d = {tensors[0].shape[1]} as in {name}[0], got {tensor.shape[1]}")
    _check_alike(tensors, name)
    n = np.array([tensor.shape[0] for tensor in tensors], dtype=np.int64)
    packed = torch.cat(tensors) if tensors else torch.zeros(0, 1, device="cpu")
    return EmbeddingSource((Rows(packed, np.cumsum(n) - n, n),), int(n.max(initial=0)))


def _check_alike(tensors: Sequence[torch.Tensor], name: str) -> None:
    for i, tensor in enumerate(tensors):
        if (tensor.dtype, tensor.device) != (tensors[0].dtype, tensors[0].device):
            expected, got = (f"{t.dtype} on {t.device}" for t in (tensors[0], tensor))
            raise InputError(f"{name}[{i}]: expected {expected} as in {name}[0], got {got}")


def _check_dimension(d: int, name: str) -> None:
    if d < 1:
        raise InputError(f"{name}: expected at least one dimension, got d = 0")


def _integers(values: Any, name: str) -> Indices:
    if isinstance(values, torch.Tensor):
        if values.layout != torch.strided or values.is_meta:
            raise InputError(f"{name}: expected a dense tensor with values, got {values.layout} on {values.device}")
        if values.numel() and (values.is_floating_point() or values.is_complex()):
            raise InputError(f"{name}: expected integers, got dtype {str(values.dtype).removeprefix('torch.')}")
        array = values.cpu().numpy() if values.numel() else np.zeros(values.shape)
    else:
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise InputError(f"{name}: expected integers in one dimension, got {error}") from error
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"{name}: expected integers, got dtype {array.dtype}")
    if array.ndim != 1:
        raise InputError(f"{name}: expected one dimension, got shape {_shape(array)}")
    return array.astype(np.int64)


def counts(n_samples: Any, tasks: int, width: int) -> Indices:
    """Checked numbers of samples."""
    if n_samples is None:
        return np.full(tasks, width, dtype=np.int64)
    n = _integers(n_samples, "n_samples")
    if n.size != tasks:
        raise InputError(f"n_samples: expected one for each of {tasks} tasks, got {n.size}")
    wrong = np.flatnonzero((n < 0) | (n > width))
    if wrong.size:
        raise InputError(f"n_samples[{wrong[0]}]: expected 0 to N = {width}, got {n[wrong[0]]}")
    return n


def offset_bounds(offsets: Any, rows: int, all_rows: bool = True) -> Indices:
    """Checked offsets into so many rows, of which some behind the last task may be left where all_rows is False."""
    bounds = _integers(offsets, "offsets")
    if bounds.size == 0 or bounds[0] != 0:
        raise InputError(f"offsets: expected to start at 0, got {bounds[0] if bounds.size else 'none'}")
    back = np.flatnonzero(np.diff(bounds) < 0)
    if back.size:
        i = int(back[0]) + 1
        raise InputError(f"offsets[{i}]: expected at least {bounds[i - 1]}, the one before, got {bounds[i]}")
    if bounds[-1] > rows or (all_rows and bounds[-1] < rows):
        raise InputError(f"offsets: expected to end at {'' if all_rows else 'or below '}S = {rows}, got {bounds[-1]}")
    return bounds


def _shape(array: Any) -> str:
    return str(tuple(array.shape))
