"""Distances against float64 on the same rounded inputs, and what a tile promises."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from cases import KINDS, SIZES, embeddings
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from fase_gpu.distance import cosine_distances, given_distances
from fase_gpu.results import Status

KINDS_OF_SPREAD = (
    "near", "mixed", "unrelated", "opposite", "lengths", "spike", "ones", "head", "two spikes", "shifted ones",
)  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def spread_out(kind: str, d: int, dtype: torch.dtype) -> torch.Tensor:
    """[8, 10, d] embeddings of which all pairs are near, mixed, unrelated, opposite, or of wildly different length."""
    g = torch.Generator().manual_seed(d)
    base = torch.randn(8, 1, d, generator=g)
    noise = torch.randn(8, 10, d, generator=g)
    lengths = torch.exp(2 * torch.randn(8, 10, 1, generator=g))
    signs = torch.where(torch.rand(8, 10, 1, generator=g) < 0.5, 1.0, -1.0)
    head = torch.ones(1, d)
    head[:, : d // 100 + 1] = 0.45 * d**0.5
    x = {
        "near": base + 1e-3 * noise,
        "mixed": base + 0.3 * noise,
        "unrelated": noise,
        "opposite": 0.3 * noise + signs * base,
        "lengths": (base + 0.1 * noise) * lengths,
        "spike": base + 0.3 * noise + 50 * torch.eye(1, d),
        # Constant coordinates, on which every rounding goes the same way.
        "ones": signs * lengths * torch.ones(1, d),
        "head": signs * lengths * head,
        "two spikes": 0.1 * noise.abs() + 100 * torch.eye(2, d)[(signs > 0).long().squeeze(-1)],
        "shifted ones": lengths * (1 + 0.4 * (signs > 0) * torch.eye(1, d) * d**0.5),
    }[kind]
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", [1, 7, 384, 768, 1024, 4096])
@pytest.mark.parametrize("kind", KINDS_OF_SPREAD)
def test_error_is_below_1e_6_at_every_dimension_and_dtype(kind: str, d: int, dtype: torch.dtype) -> None:
    x = spread_out(kind, d, dtype)
    unit = x.double() / x.double().norm(dim=-1, keepdim=True)
    exact = (unit[:, :, None] - unit[:, None]).square().sum(-1) / 2
    tile = cosine_distances(x, torch.full((8,), 10), 1e-30)
    assert (tile.distance.double() - exact).abs().max() <= 1e-6
    if kind == "near" and d > 7 and dtype in (torch.float32, torch.float64):
        assert (tile.distance.double() - exact).abs().max() <= 1e-9


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_scipy_and_is_symmetric(kind: str, n: int) -> None:
    x = embeddings(kind, n)
    found = cosine_distances(torch.from_numpy(x)[None], torch.tensor([n]), 1e-6).distance[0].numpy()
    expected = np.maximum(cdist(x.astype(np.float64), x.astype(np.float64), "cosine"), 1e-6)
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)
    assert np.array_equal(found, found.T)
    assert not found.diagonal().any()
    assert n == 1 or found[~np.eye(n, dtype=bool)].min() >= np.float32(1e-6)


@pytest.mark.parametrize("n", [28, 29, 64, 65, 200, 201, 203, 257])
@pytest.mark.parametrize("near", [True, False])
def test_every_way_to_multiply(n: int, near: bool) -> None:
    """By NumPy or torch, whole or in blocks, in float32 or, where rows lie far apart, in float64."""
    x = torch.randn(2, n, 300, generator=torch.Generator().manual_seed(n)) + (3 if near else 0)
    found = cosine_distances(x, torch.tensor([n, n - 1]), 1e-6).distance
    assert torch.equal(found, found.mT)
    for task, samples in enumerate((n, n - 1)):
        rows = x[task, :samples].double().numpy()
        assert np.abs(found[task, :samples, :samples].numpy() - cdist(rows, rows, "cosine")).max() < 1e-6
        assert not found[task, samples:].any()


def test_equal_rows_are_at_the_minimum_distance_exactly() -> None:
    x = torch.randn(4, 12, 700, generator=torch.Generator().manual_seed(0))
    x[:, 6:] = x[:, :6]
    found = cosine_distances(x, torch.full((4,), 12), 1e-6).distance
    assert torch.equal(found[:, range(6), range(6, 12)], torch.full((4, 6), 1e-6))


@given(exponent=st.integers(-37, 37), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_length_does_not_matter(exponent: int, seed: int) -> None:
    x = torch.randn(1, 6, 20, generator=torch.Generator().manual_seed(seed))
    scale = torch.full((1, 6, 1), 10.0**exponent)
    scale[0, ::2] = 1.0
    plain = cosine_distances(x, torch.tensor([6]), 1e-6)
    scaled = cosine_distances(x * scale, torch.tensor([6]), 1e-6)
    assert scaled.status.tolist() == [Status.OK]
    # A denormal keeps a few digits only, so 1e-37 is as near as float32 itself comes.
    torch.testing.assert_close(scaled.distance, plain.distance, atol=1e-6 if exponent > -36 else 1e-3, rtol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_task_is_a_status_and_its_neighbours_are_untouched(bad: float) -> None:
    x = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(1))
    alone = cosine_distances(x, torch.full((5,), 4), 1e-6).distance
    spoilt = x.clone()
    spoilt[1, 2, 3] = bad
    spoilt[3, 1] = 0
    n = torch.tensor([4, 4, 4, 4, 2])
    tile = cosine_distances(spoilt, n, 1e-6)
    assert tile.status.tolist() == [Status.OK, Status.NOT_FINITE, Status.OK, Status.ZERO_VECTOR, Status.OK]
    assert torch.equal(tile.distance[[0, 2]], alone[[0, 2]])
    assert not tile.distance[[1, 3]].any()
    assert not tile.distance[4, 2:].any()
    assert not tile.distance[4, :, 2:].any()


def test_which_row_fills_padding_does_not_matter() -> None:
    x = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(2))
    n = torch.tensor([4, 4])
    clean, other = (cosine_distances(x[:, [0, 1, 2, 3, i, i]], n, 1e-6) for i in (0, 3))
    assert other.status.tolist() == [Status.OK, Status.OK]
    assert not other.distance[:, 4:].any()
    assert torch.equal(clean.distance[:, :4, :4], other.distance[:, :4, :4])


def test_the_largest_finite_distance_is_a_distance() -> None:
    matrices = torch.full((4, 3, 3), 0.5)
    matrices[2] = 3e38
    tile = given_distances(matrices, torch.full((4,), 3), 1e-6)
    assert tile.status.tolist() == [Status.OK] * 4
    assert tile.distance[2, 0, 1] == np.float32(3e38)


@pytest.mark.parametrize("setting", ["medium", "tf32"])
def test_low_precision_products_are_not_used(setting: str) -> None:
    """In a process of its own: torch has no way back from its newer setting to the older one."""
    change = {
        "medium": 'torch.set_float32_matmul_precision("medium")',
        "tf32": 'torch.backends.fp32_precision = "tf32"',
    }[setting]
    script = f"""
import torch
from fase_gpu.distance import cosine_distances
x, n = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(3)), torch.tensor([5, 5])
plain = cosine_distances(x, n, 1e-6).distance
{change}
torch.testing.assert_close(cosine_distances(x, n, 1e-6).distance, plain, atol=1e-6, rtol=0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_given_matrices_are_checked_task_by_task() -> None:
    good = torch.tensor([[9.0, 0.5, 1.0], [0.5, 9.0, 0.25], [1.0, 0.25, 9.0]])
    nan, negative, skew = good.clone(), good.clone(), good.clone()
    nan[0, 1] = float("nan")
    negative[0, 1] = negative[1, 0] = -0.1
    skew[0, 1] = 0.6
    rounding = good + torch.tensor([[0.0, 1e-6, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    tile = given_distances(torch.stack([good, nan, negative, skew, rounding]), torch.full((5,), 3), 0.3)
    statuses = [Status.OK, Status.NOT_FINITE, Status.NOT_A_DISTANCE, Status.NOT_A_DISTANCE, Status.OK]
    assert tile.status.tolist() == statuses
    torch.testing.assert_close(tile.distance[0], torch.tensor([[0, 0.5, 1], [0.5, 0, 0.3], [1, 0.3, 0]]))
