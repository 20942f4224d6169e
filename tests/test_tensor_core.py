"""What the sums of a tensor core, which are not the interpreter's, leave of the distances' digits (SPEC 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from fase_gpu.kernels import fused, gram, streaming
from tensor_core import CORES, emulate, matmul, rows, tf32
from test_kernels_cosine import measured
from test_kernels_fused import launch
from test_kernels_streaming import matrix_of, scan_of

from fase_gpu.reference import cosine_distances

LEAST = 1e-6
MOST = 5e-7
"""Half of what SPEC 2 allows. The README of the kernels has what was seen."""


def by_fused_kernel(tasks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """[n, n] of each task, every pair of rows as a task of two samples, whose tree has one edge."""
    x, n = torch.cat(list(tasks)), len(tasks[0])
    i, j = torch.triu_indices(n, n, 1)
    pairs = torch.cat([torch.stack([i, j], 1) + n * t for t in range(len(tasks))])
    start = 2 * torch.arange(len(pairs))
    weight = launch(x, torch.full_like(start, 2), 16, start=start, index=pairs.ravel())["mst_mean"]
    matrices = torch.zeros(len(tasks), n, n)
    matrices[:, i, j] = matrices[:, j, i] = weight.view(len(tasks), -1)
    return list(matrices)


def by_staged_kernels(tasks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return measured(tasks, 16, min_distance=LEAST).distance


def by_scan(tasks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.from_numpy(matrix_of(scan_of(x, LEAST), LEAST)) for x in tasks]


KERNELS = {"fused": by_fused_kernel, "staged": by_staged_kernels, "streaming": by_scan}


def errors(measure: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]], dtype: torch.dtype, d: int) -> list[float]:
    """The largest of each kind of rows."""
    tasks = [x.to(dtype) for x in rows(d).values()]
    exact = [cosine_distances(x.double().numpy(), LEAST)[0] for x in tasks]
    return [float(np.abs(a.numpy() - b).max()) for a, b in zip(measure(tasks), exact, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("core", CORES)
def test_distances_are_within_a_millionth(
    core: str, kernel: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The scan takes float32 rows as two of float16.
    emulate(monkeypatch, core, torch.float16 if kernel == "streaming" else dtype)
    found = errors(KERNELS[kernel], dtype, 4096)
    assert max(found) < MOST, found


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_the_compensated_sum_they_are_not(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(total: Any, lost: Any, part: Any) -> tuple[Any, Any]:
        return total + part, lost

    emulate(monkeypatch, "sm_90", torch.float16)
    for module in (fused, gram, streaming):
        monkeypatch.setattr(module, "compensated", plain)
    assert max(errors(KERNELS[kernel], torch.float16, 4096)) > 1e-6


def test_one_sum_is_not_within_a_millionth() -> None:
    x = rows(4096)["the largest coordinates first"].bfloat16().double().numpy()
    gram = matmul(x, x.T, np.zeros((len(x), len(x))), CORES["sm_90"][0] // 2, CORES["sm_90"][1])
    length = np.sqrt(gram.diagonal())
    distance = np.maximum(1 - gram / length / length[:, None], LEAST) * (1 - np.eye(len(x)))
    assert np.abs(distance - cosine_distances(x, LEAST)[0]).max() > 5e-6


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


def test_tf32_has_eleven_bits() -> None:
    x = np.array([1 + 2.0**-10, 1 + 2.0**-11, -(1 + 2.0**-10 + 2.0**-23)])
    assert tf32(x).tolist() == [1 + 2.0**-10, 1, -(1 + 2.0**-10)]
