"""kernels/streaming.py: the tree of the kernel's own distances edge for edge, and those distances against float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
import triton
import triton.language as tl
from cases import KINDS, embeddings
from fase_gpu.kernels import streaming as kernels
from fase_gpu.kernels.streaming import launch_scan, launch_squares
from test_distance import KINDS_OF_SPREAD, spread_out
from trees import DEVICE, NO_EDGE

from fase_gpu import FaseConfig, executor, streaming
from fase_gpu.batching import EmbeddingSource, Rows
from fase_gpu.config import NEURAL_RANGE
from fase_gpu.distance import rounded
from fase_gpu.reference import kruskal
from fase_gpu.results import SCORES, Status

POISON = -77
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (*HALVES, torch.float32)
Matrix = npt.NDArray[np.float32]


@triton.jit
def _matrix_kernel(
    rows_ptr, base_ptr, scale_ptr, matrix_ptr, n, d, min_distance,
    TWO: tl.constexpr, UPCAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    other_at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row, other = tl.minimum(at, n - 1), tl.minimum(other_at, n - 1)
    gram = kernels._gram(rows_ptr, row, other, d, TWO, UPCAST, BLOCK)
    distance = kernels._distances(gram, row, at, other, other_at, base_ptr, scale_ptr, n, min_distance, False)
    mask = (at < n)[:, None] & (other_at < n)[None, :]
    tl.store(matrix_ptr + at[:, None] * n + other_at[None, :], distance, mask=mask)


def scan_of(x: torch.Tensor, min_distance: float = 1e-6, released: bool = False) -> streaming.KernelScan:
    return streaming.KernelScan(streaming._planes(source_of(x).rows[0], 0)[0], min_distance, released)


def source_of(x: torch.Tensor) -> EmbeddingSource:
    n = x.shape[0]
    return EmbeddingSource((Rows(x.to(DEVICE), np.zeros(1, dtype=np.int64), np.array([n])),), n)


def matrix_of(scan: streaming.KernelScan, min_distance: float = 1e-6) -> Matrix:
    """The distances [n, n] that a scan sees, every one from two tiles, with a diagonal of zeros."""
    rows = scan._rows
    n, d, two = rows.shape[0], rows.shape[-1], rows.ndim == 3
    constants = kernels._constants(two, kernels._INTERPRETED)
    matrix = torch.full((n, n), torch.nan, device=DEVICE)
    grid = (triton.cdiv(n, constants["ROWS"]), triton.cdiv(n, constants["COLUMNS"]))
    arguments = (rows, scan._base, scan._scale, matrix, n, d, min_distance)
    _matrix_kernel[grid](*arguments, **constants, **kernels._options(two))
    assert torch.equal(matrix, matrix.T), "a distance depends on which sample is the row"
    found: Matrix = matrix.fill_diagonal_(0).cpu().numpy()
    return found


def tree_of(scan: streaming.KernelScan, n: int) -> list[tuple[float, int, int]]:
    edges = streaming.spanning_edges(scan, n, DEVICE)
    return list(zip(*(part.tolist() for part in edges), strict=True))


def tensor_of(kind: str, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(embeddings(kind, n)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_tree_is_the_oracles(kind: str, dtype: torch.dtype) -> None:
    scan = scan_of(tensor_of(kind, 90, dtype))
    matrix = matrix_of(scan)
    assert tree_of(scan, 90) == kruskal(matrix.astype(np.float64))
    assert float(scan.total) == pytest.approx(matrix.sum(dtype=np.float64), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("n", [2, 3, 63, 64, 65, 127, 128, 129])
def test_sizes_about_a_tile(n: int, dtype: torch.dtype) -> None:
    x = tensor_of("duplicates", n, dtype)
    scan = scan_of(x)
    matrix = matrix_of(scan)
    assert tree_of(scan, n) == kruskal(matrix.astype(np.float64))
    assert float(scan.total) == pytest.approx(matrix.sum(dtype=np.float64), rel=1e-6)


@pytest.mark.parametrize("kind", ["clustered", "lattice"])
def test_several_groups_of_blocks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_GROUP", 128)
    scan = scan_of(tensor_of(kind, 300, torch.bfloat16))
    assert tree_of(scan, 300) == kruskal(matrix_of(scan).astype(np.float64))


@pytest.mark.parametrize("d", [1, 24, 63, 65, 130])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dimension(d: int, dtype: torch.dtype) -> None:
    x = torch.randn(20, d, generator=torch.Generator().manual_seed(d)).to(dtype)
    unit = x.double() / x.double().norm(dim=1, keepdim=True)
    exact = (unit[:, None] - unit).square().sum(-1).div(2).clamp_min(1e-6).fill_diagonal_(0)
    np.testing.assert_allclose(matrix_of(scan_of(x)), exact.numpy(), atol=5e-7, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS_OF_SPREAD)
def test_error_is_below_1e_6(kind: str, dtype: torch.dtype) -> None:
    """What a tensor core truncates is not in it; see kernels/README.md."""
    (x,) = spread_out(kind, 384, dtype)[:1]
    unit = x.double() / x.double().norm(dim=1, keepdim=True)
    exact = (unit[:, None] - unit).square().sum(-1).numpy() / 2
    error = np.abs(matrix_of(scan_of(x, 1e-30), 1e-30) - exact).max()
    assert error <= 5e-7
    if kind == "near" and dtype == torch.float32:
        assert error <= 1e-9


@pytest.mark.parametrize("exponent", [-33, -30, 30, 37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_length_does_not_matter(exponent: int, dtype: torch.dtype) -> None:
    x = tensor_of("clustered", 20).to(dtype)
    far = x.clone()
    far[::2] = (far[::2].double() * 2.0 ** round(exponent * 3.3)).to(dtype)
    np.testing.assert_allclose(matrix_of(scan_of(far)), matrix_of(scan_of(x)), atol=2e-7, rtol=0)


def test_equal_rows_are_at_the_minimum_distance_exactly() -> None:
    for dtype in DTYPES:
        x = torch.randn(6, 200, generator=torch.Generator().manual_seed(0)).to(dtype)
        matrix = matrix_of(scan_of(torch.cat([x, x]), 1e-12), 1e-12)
        assert np.array_equal(matrix[range(6), range(6, 12)], np.full(6, 1e-12, dtype=np.float32))


def scanned(
    scan: streaming.KernelScan,
    wanted: npt.NDArray[np.bool_],
    component: npt.NDArray[np.int64],
    best_before: int = int(NO_EDGE),
    first: bool = False,
    rounded: bool = False,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """best [n] and total after one launch."""
    n = wanted.size
    order = np.argsort(np.where(wanted, component, component + n), kind="stable")
    best = torch.full((n,), best_before, device=DEVICE)
    total = torch.full((3,), float(POISON), dtype=torch.float64, device=DEVICE)
    launch_scan(
        scan._rows,
        scan._base,
        scan._scale,
        torch.from_numpy(order.astype(np.int32)).to(DEVICE),
        torch.from_numpy(component[order].astype(np.int32)).to(DEVICE),
        torch.tensor([int(wanted.sum())], device=DEVICE),
        best,
        total,
        first,
        1e-6,
        rounded,
    )
    return best.cpu().numpy(), total.cpu().numpy()


def least_keys(matrix: Matrix, component: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    keys = matrix.view(np.int32).astype(np.int64) << 32 | np.arange(len(matrix))
    keys[component[:, None] == component] = NO_EDGE
    least: npt.NDArray[np.int64] = keys.min(1)
    return least


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["clustered", "duplicates", "orthogonal"])
def test_the_wanted_samples_get_their_least_edges(kind: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    scan = scan_of(tensor_of(kind, 150, dtype))
    expected_of = matrix_of(scan)
    for components, share in ((2, 0.9), (2, 0.02), (40, 0.3), (1, 1.0)):
        component = rng.integers(components, size=150)
        wanted = rng.random(150) < share
        best, total = scanned(scan, wanted, component)
        expected = least_keys(expected_of, component)
        assert np.array_equal(best[wanted], expected[wanted])
        assert (best >= expected).all()
        assert (total == POISON).all()


def test_nothing_is_done_where_nothing_is_wanted() -> None:
    scan = scan_of(tensor_of("random", 80, torch.bfloat16))
    best, total = scanned(scan, np.zeros(80, dtype=bool), np.arange(80), POISON)
    assert (best == POISON).all()
    assert (total == POISON).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_released_distances_are_rounded(dtype: torch.dtype) -> None:
    scan = scan_of(tensor_of("near", 70, dtype))
    matrix = rounded(torch.from_numpy(matrix_of(scan))).numpy()
    best, total = scanned(scan, np.ones(70, dtype=bool), np.arange(70), first=True, rounded=True)
    assert np.array_equal(best, least_keys(matrix, np.arange(70)))
    assert total.sum() == pytest.approx(matrix.sum(dtype=np.float64), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_scores_and_statuses_are_those_of_the_torch_scan(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "MOST_DENSE", 1)
    x = tensor_of("clustered", 100).to(dtype)
    bad = torch.cat([x, x, x, x])
    bad[120, 3] = torch.nan
    bad[250] = 0
    start, n = np.array([0, 100, 200, 300]), np.array([100, 100, 100, 95])
    index = np.arange(400)
    index[300:] = index[300:][::-1]
    source = EmbeddingSource((Rows(bad.to(DEVICE), start, n, index),), 100)
    config = FaseConfig(alpha=(0.8, 1.6), multiscale_range=NEURAL_RANGE)
    by_kernel, by_torch = (executor.score(source, config, None, kernels=kernels) for kernels in (True, False))
    assert by_kernel["status"].tolist() == [Status.OK, Status.NOT_FINITE, Status.ZERO_VECTOR, Status.OK]
    for name in (*SCORES, "n_clusters", "labels", "status"):
        torch.testing.assert_close(by_kernel[name], by_torch[name], rtol=1e-4, atol=2e-6, equal_nan=True)


def test_two_encoders_are_left_to_torch() -> None:
    a, b = (source_of(tensor_of(kind, 20)).rows[0] for kind in ("clustered", "near"))
    source = EmbeddingSource((a, b), 20)
    found, expected = (streaming.stream_tree(source, 0, 20, 1e-6, False, kernels=kernels) for kernels in (True, False))
    assert torch.equal(found.tree.weight, expected.tree.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_beyond_two_to_the_31_elements(dtype: torch.dtype) -> None:
    """By address: only the rows at the end are ever touched, and a system gives memory where it is."""
    n = 70
    scan = scan_of(tensor_of("clustered", n, dtype))
    width = scan._rows[0].numel()
    many = (1 << 31) // width + n
    far = torch.empty((many, *scan._rows.shape[1:]), dtype=scan._rows.dtype, device=DEVICE)
    base, scale = (torch.empty(many, device=DEVICE) for _ in range(2))
    best = torch.empty(many, dtype=torch.int64, device=DEVICE)
    far[-n:], base[-n:], scale[-n:], best[-n:] = scan._rows, scan._base, scan._scale, int(NO_EDGE)
    place = torch.arange(n, dtype=torch.int32, device=DEVICE)
    total = torch.empty(3, dtype=torch.float64, device=DEVICE)
    two = far.ndim == 3
    kernels._scan_kernel[(3,)](
        far, base, scale, place + (many - n), place, torch.tensor([n], device=DEVICE), best, total,
        n, far.shape[-1], 1e-6,
        **kernels._scan_constants(two, kernels._INTERPRETED, True, False), **kernels._options(two),
    )  # fmt: skip
    found = best[-n:].cpu().numpy()
    assert np.array_equal(found - (many - n), least_keys(matrix_of(scan), np.arange(n)))


def test_what_is_shipped_is_what_is_launched() -> None:
    found = {kernel.name: kernel for kernel in kernels.shipped()}
    assert len(found) == len(kernels.shipped())
    for two in (False, True):
        for first in (False, True):
            constants = kernels._scan_constants(two, False, first, False)
            options = kernels._options(two)
            assert any(
                kernel.constants == constants
                and (kernel.warps, kernel.stages) == (options["num_warps"], options["num_stages"])
                and kernel.fp_fusion == options["enable_fp_fusion"]
                for kernel in found.values()
            )
    assert launch_squares.__module__ == launch_scan.__module__ == kernels.__name__
