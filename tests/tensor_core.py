"""tl.dot in the interpreter with the roundings of a tensor core, and rows on which they show."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
import torch

Floats = npt.NDArray[np.float64]

CORES: Final = {"sm_90": (32, 2), "sm_80": (16, 1)}
"""Bytes of a row that are multiplied and added at once, and bits kept below the last of the largest term's 24: those of
the H100 and the A100 that Khattak and Mikaitis measured (arXiv:2512.07004)."""


def _exponent(x: Floats) -> npt.NDArray[np.int64]:
    """Of the leading bit; of 0, far below all others."""
    mantissa, exponent = np.frexp(x)
    return np.where(mantissa == 0, -9999, exponent - 1).astype(np.int64)


def _cut(x: Floats, last: npt.NDArray[np.int64]) -> Floats:
    """Without the bits below 2^last."""
    last = np.maximum(last, -1000)
    return np.ldexp(np.trunc(np.ldexp(x, -last)), last)


def matmul(a: Floats, b: Floats, acc: Floats, at_once: int, kept: int) -> Floats:
    """a [..., M, K] @ b [..., K, N] + acc [..., M, N] as a tensor core adds, for finite numbers.

    Some terms at a time are cut to the bits of the largest of them and of what was added before, and their sum to 24
    bits. A product counts as large as the exponents of its factors say, which may be one less than its own.
    """
    b = np.swapaxes(b, -1, -2)
    for first in range(0, a.shape[-1], at_once):
        x, y = (factor[..., first : first + at_once] for factor in (a, b))
        term = x[..., :, None, :] * y[..., None, :, :]
        largest = (_exponent(x)[..., :, None, :] + _exponent(y)[..., None, :, :]).max(axis=-1)
        last = np.maximum(largest, _exponent(acc)) - 23 - kept
        total = _cut(term, last[..., None]).sum(axis=-1) + _cut(acc, last)
        acc = _cut(total, _exponent(total) - 23)
    return acc


def tf32(x: Floats) -> Floats:
    """Without the bits that TF32 does not hold."""
    return (x.astype(np.float32).view(np.int32) & -8192).view(np.float32).astype(np.float64)


def _distinct(a: Floats, b: Floats, acc: Floats) -> tuple[Floats, Floats, Floats, tuple[npt.NDArray[np.int64], ...]]:
    """The operands without repeated rows of a and columns of b that have the same acc, and where each entry went."""
    _, row, to_row = np.unique(np.concatenate([a, acc], axis=1), axis=0, return_index=True, return_inverse=True)
    both = np.concatenate([b, acc], axis=0)
    _, column, to_column = np.unique(both, axis=1, return_index=True, return_inverse=True)
    return a[row], b[:, column], acc[np.ix_(row, column)], np.ix_(to_row, to_column)


def emulate(monkeypatch: pytest.MonkeyPatch, core: str, dtype: torch.dtype) -> None:
    """Let tl.dot in the interpreter round as that tensor core does on operands of this type, float32 cut to TF32."""
    from triton.runtime import interpreter

    at_once = CORES[core][0] // dtype.itemsize

    def create_dot(self: Any, a: Any, b: Any, d: Any, *precision: object) -> Any:
        a_data, b_data, acc = (x.data.astype(np.float64) for x in (a, b, d))
        if dtype == torch.float32:
            a_data, b_data = tf32(a_data), tf32(b_data)
        if acc.ndim == 2:
            # Most rows of a tile are padding, all alike.
            a_data, b_data, acc, back = _distinct(a_data, b_data, acc)
            found = matmul(a_data, b_data, acc, at_once, CORES[core][1])[back]
        else:
            found = matmul(a_data, b_data, acc, at_once, CORES[core][1])
        return interpreter.TensorHandle(found.astype(d.data.dtype), d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


def rows(d: int, n: int = 4) -> dict[str, torch.Tensor]:
    """[n, d] float32 on which a sum of truncated products goes wrong."""

    def normal(seed: int, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    base, noise, lengths = normal(1, 1, d), normal(2, n, d), torch.exp(normal(3, n, 1))
    signs = torch.tensor([1.0, -1.0]).repeat(n)[:n, None]
    falling = torch.arange(1, d + 1) ** -0.75
    head = torch.ones(d)
    head[: d // 100 + 1] = 0.45 * math.sqrt(d)
    first = torch.arange(d) < d // 64
    level = 0.3 + normal(4, n, 1).abs()
    return {
        "two levels": lengths * torch.where(first, 0.09 * math.sqrt(d), level),
        "one coordinate far above the rest": base + 0.3 * noise + 50 * torch.eye(1, d),
        "opposite": signs * base + 0.3 * noise,
        "the largest coordinates first": lengths * falling * (1 + 0.05 * noise),
        "opposite, few large coordinates first": signs * lengths * head * (1 + 0.05 * noise),
    }
