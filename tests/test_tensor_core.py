"""What the sums of a tensor core, which are not the interpreter's, leave of the distances' digits (SPEC 2)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from tensor_core import CORES, emulate, matmul, rows
from test_kernels_cosine import measured
from test_kernels_fused import launch
from test_kernels_streaming import matrix_of, scan_of

from fase_gpu.reference import cosine_distances

DIMENSIONS = 1024  # README.md of the kernels gives the errors at 4096
ROWS = rows(DIMENSIONS)
LEAST = 1e-6


def fused(x: torch.Tensor) -> torch.Tensor:
    """[n, n], each pair of rows as a task of two samples, whose tree has one edge."""
    i, j = torch.triu_indices(len(x), len(x), 1)
    scores = launch(x, torch.full_like(i, 2), 16, start=2 * torch.arange(len(i)), index=torch.stack([i, j], 1).ravel())
    matrix = torch.zeros(len(x), len(x))
    matrix[i, j] = matrix[j, i] = scores["mst_mean"]
    return matrix


KERNELS = {
    "fused": fused,
    "staged": lambda x: measured([x], 16, min_distance=LEAST).distance[0],
    "streaming": lambda x: torch.from_numpy(matrix_of(scan_of(x, LEAST), LEAST)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_distances_are_within_a_millionth(kernel: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch, "sm_90", dtype)
    for kind, made in ROWS.items():
        x = made.to(dtype)
        exact = cosine_distances(x.double().numpy(), LEAST)[0]
        assert np.abs(KERNELS[kernel](x).numpy() - exact).max() < 5e-7, kind


def test_one_sum_is_not_within_a_millionth() -> None:
    """So there is something to be found above."""
    x = ROWS["the largest coordinates first"].bfloat16().double().numpy()
    gram = matmul(x, x.T, np.zeros((len(x), len(x))), CORES["sm_90"][0] // 2, CORES["sm_90"][1])
    length = np.sqrt(gram.diagonal())
    distance = np.maximum(1 - gram / length / length[:, None], LEAST) * (1 - np.eye(len(x)))
    assert np.abs(distance - cosine_distances(x, LEAST)[0]).max() > 2e-6


@pytest.mark.parametrize(("at_once", "kept"), [(16, 2), (4, 1)])
def test_sums_are_those_of_whole_numbers(at_once: int, kept: int) -> None:
    """The emulation against the same rule in exact arithmetic, one term after the other."""
    random = np.random.default_rng(0)
    scale = 2.0 ** random.integers(-12, 12, (2, 40))
    a, b = (random.integers(-255, 256, (2, 40)) * scale / 128).astype(np.float64)
    total = Fraction(0)
    for first in range(0, 40, at_once):
        pairs = [(Fraction(x), Fraction(y)) for x, y in zip(a[first:][:at_once], b[first:][:at_once], strict=True)]
        terms = [(x * y, power(x) * power(y)) for x, y in pairs] + [(total, power(total))]
        unit = max(size for _, size in terms) / 2 ** (23 + kept)
        total = sum((int(term / unit) * unit for term, _ in terms), Fraction(0))
        unit = power(total) / 2**23
        total = int(total / unit) * unit
    assert matmul(a[None], b[:, None], np.zeros((1, 1)), at_once, kept) == float(total)
    assert float(total) != a @ b


def power(x: Fraction) -> Fraction:
    """The largest power of two that is not above |x|, or next to nothing for 0."""
    least = Fraction(1, 2**200)
    return least if x == 0 else Fraction(2) ** int(np.frexp(float(abs(x)))[1] - 1)
