"""kernels/cosine.py: distances against float64 on the same rounded rows, statuses, and what a matrix promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
import triton
import triton.language as tl
from cases import KINDS, embeddings
from fase_gpu.kernels import cosine
from fase_gpu.kernels.cosine import launch_cosine
from trees import DEVICE

from fase_gpu.distance import rounded
from fase_gpu.reference import cosine_distances
from fase_gpu.results import Status

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NUMBER = 1e-30
"""A min_distance below every distance that is none by rounding."""
POISON = -77
Floats = npt.NDArray[np.float32]


class Found(NamedTuple):
    distance: list[torch.Tensor]
    """Of each slot, [n, n]."""
    status: list[int]
    matrices: torch.Tensor
    """As they were written, [W, size, size]."""


def measured(
    tasks: Sequence[torch.Tensor],
    size: int,
    *,
    slots: Sequence[int] | None = None,
    min_distance: float = NUMBER,
    round_them: bool = False,
    index: bool = False,
    room: int = 0,
    shift: int = 0,
) -> Found:
    """What the kernels make of rows [n, d] per task, one slot each unless `slots` says otherwise.

    room   elements between a row and the next
    shift  elements before the first row
    index  whether rows are read through an index of shuffled rows
    """
    d, dtype = tasks[0].shape[1], tasks[0].dtype
    packed = torch.cat(list(tasks))
    order = torch.randperm(len(packed), generator=torch.Generator().manual_seed(1)) if index else None
    if order is not None:
        packed = packed[order.argsort()]
    memory = torch.full((shift + len(packed) * (d + room),), torch.nan, dtype=dtype, device=DEVICE)
    x = memory[shift:].view(len(packed), d + room)[:, :d]
    x.copy_(packed)
    count = torch.tensor([len(task) for task in tasks])
    task = torch.tensor(range(len(tasks)) if slots is None else slots)
    dist = torch.full((len(task), size, size), torch.nan, device=DEVICE)
    status = torch.full((len(task),), POISON, dtype=torch.int8, device=DEVICE)
    launch_cosine(
        x,
        x.stride(0),
        (count.cumsum(0) - count).to(DEVICE),
        count.to(DEVICE),
        task.to(DEVICE),
        None if order is None else order.to(DEVICE),
        torch.full((len(task), 5, size), torch.nan, device=DEVICE),
        dist,
        status,
        min_distance,
        round_them,
    )
    dist = dist.cpu()
    rows = [len(tasks[t]) if t >= 0 else 0 for t in task.tolist()]
    return Found([matrix[:n, :n] for matrix, n in zip(dist, rows, strict=True)], status.tolist(), dist)


def oracle(x: torch.Tensor, min_distance: float = NUMBER) -> npt.NDArray[np.float64]:
    return cosine_distances(x.to(torch.float64).numpy(), min_distance)[0]


def error(found: torch.Tensor, x: torch.Tensor, min_distance: float = NUMBER) -> float:
    """The largest, of a matrix that has what every matrix has to have."""
    assert torch.equal(found, found.T)
    assert (found.diagonal() == 0).all()
    return float(np.abs(found.numpy().astype(np.float64) - oracle(x, min_distance)).max())


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hard(d: int, n: int = 7) -> dict[str, torch.Tensor]:
    """Rows on which roundings add up: opposite, constant, of few large coordinates, of any length."""
    base, noise = normal(d, 1, d), normal(d + 1, n, d)
    lengths = torch.exp(normal(d + 2, n, 1))
    signs = torch.where(normal(d + 3, n, 1) < 0, -1.0, 1.0)
    head = torch.ones(1, d)
    head[:, : d // 100 + 1] = 0.45 * d**0.5
    return {
        "unrelated": noise,
        "positive": noise.abs(),
        "opposite": signs * base + 0.3 * noise,
        "constant": signs * lengths * torch.ones(1, d),
        "head": signs * lengths * head,
        "spike": base + 0.3 * noise + 50 * torch.eye(1, d),
        "two spikes": 0.1 * noise.abs() + 100 * torch.eye(2, d)[(signs > 0).long().squeeze(1)],
        "two clusters": torch.where(signs > 0, base, normal(d + 4, 1, d)) + 1e-2 * noise,
        "lengths": (base + 0.1 * noise) * lengths,
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [384, 4096])
def test_distances_of_hard_rows_are_within_a_millionth(d: int, dtype: torch.dtype) -> None:
    x = torch.cat([rows.expand(7, d) for rows in hard(d).values()]).to(dtype)
    assert error(measured([x], 64).distance[0], x) < (7e-7 if dtype == torch.float32 else 3e-7)


@pytest.mark.parametrize("kind", hard(8))
def test_distances_of_hard_rows_from_a_first_row_of_their_kind(kind: str) -> None:
    x = hard(384)[kind]
    assert error(measured([x], 16).distance[0], x) < 6e-7


@pytest.mark.parametrize("dtype", DTYPES)
def test_distances_of_the_corpus(dtype: torch.dtype) -> None:
    for n, size in ((2, 16), (10, 16), (64, 64)):
        tasks = [torch.from_numpy(embeddings(kind, n)).to(dtype) for kind in KINDS]
        for width in {task.shape[1] for task in tasks}:
            group = [task for task in tasks if task.shape[1] == width]
            for task, distance in zip(group, measured(group, size, min_distance=1e-6).distance, strict=True):
                assert error(distance, task, 1e-6) < 1e-6


@pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-6, 1e-8])
def test_near_duplicates_keep_their_digits(spread: float) -> None:
    """Distances of about `spread`."""
    x = normal(1, 1, 768) + spread**0.5 * normal(2, 20, 768)
    assert error(measured([x], 32).distance[0], x) < 2e-6 * spread + 1e-13
    for dtype in (torch.bfloat16, torch.float16):
        rows = x.to(dtype)
        assert error(measured([rows], 32).distance[0], rows) < 1.2e-7


def test_every_size_around_the_tiles() -> None:
    for size, counts in {16: (1, 2, 15, 16), 32: (17, 32), 64: (33, 63, 64), 128: (65, 127, 128)}.items():
        tasks = [normal(n, 1, 40) + normal(n + 1, n, 40) for n in counts]
        for dtype in (torch.float32, torch.bfloat16):
            given = [task.to(dtype) for task in tasks]
            found = measured(given, size)
            assert found.status == [Status.SINGLE if n == 1 else Status.OK for n in counts]
            for task, distance in zip(given, found.distance, strict=True):
                assert error(distance, task) < 5e-7


def test_many_tiles_of_a_ragged_batch() -> None:
    tasks = [normal(n, n, 24) for n in (66, 0, 70, 1, 260)]
    found = measured(tasks, 512, slots=[4, -1, 1, 0, 3])
    assert found.status == [Status.OK, POISON, Status.EMPTY, Status.OK, Status.SINGLE]
    assert found.matrices[1].isnan().all()
    assert found.matrices[2].isnan().all()
    for slot, t in ((0, 4), (3, 0)):
        unit = torch.nn.functional.normalize(tasks[t].to(torch.float64), dim=1)
        expected = (1 - unit @ unit.T).fill_diagonal_(0)
        assert torch.equal(found.distance[slot], found.distance[slot].T)
        assert (found.distance[slot] - expected).abs().max() < 5e-7
    assert found.distance[4].tolist() == [[0.0]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 7, 36, 65, 384])
def test_dimensions_and_strides_that_are_no_whole_vectors(d: int, dtype: torch.dtype) -> None:
    x = (1 + normal(d, 16, d)).to(dtype)
    for room, shift in ((0, 0), (1, 0), (0, 1), (16, 16)):
        assert error(measured([x], 16, room=room, shift=shift).distance[0], x) < 5e-7


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_through_an_index(dtype: torch.dtype) -> None:
    tasks = [normal(n, n, 64).to(dtype) for n in (70, 9, 128)]
    plain, through = measured(tasks, 128), measured(tasks, 128, index=True)
    for a, b in zip(plain.distance, through.distance, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_rows_are_at_the_minimum_in_any_two_tiles(dtype: torch.dtype) -> None:
    x = normal(5, 8, 96).to(dtype)[torch.randint(8, (150,), generator=torch.Generator().manual_seed(2))]
    equal = (x[:, None] == x[None, :]).all(2).fill_diagonal_(False)
    found = measured([x], 256)
    assert (found.distance[0][equal] <= 1e-13).all()
    assert (measured([x], 256, min_distance=1e-6).distance[0][equal] == np.float32(1e-6)).all()
    beside_first = equal.clone()
    beside_first[(x == x[0]).all(1)] = False
    assert (found.distance[0][beside_first] == np.float32(NUMBER)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rows_of_any_length(dtype: torch.dtype) -> None:
    x = (normal(6, 1, 48) + 0.3 * normal(7, 100, 48)).to(dtype)
    # The interpreter converts bfloat16 below the normal numbers wrongly.
    lengths = torch.tensor([1.0, 1e-30, 1e30, 1e-37 if dtype == torch.float32 else 1e-33, 1e37, 3.0])
    for scale in (lengths[torch.arange(100) % 6], torch.where(torch.arange(100) == 80, 1e-30, 1.0), torch.ones(100)):
        rows = (x.to(torch.float64) * scale[:, None]).to(dtype)
        assert error(measured([rows], 128).distance[0], rows) < 5e-7
    smallest = torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 5.0]]) * 2.0**-149
    if dtype == torch.float32:
        assert error(measured([smallest], 16).distance[0], smallest) < 2e-7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bad_rows_in_any_tile_refuse_the_task(dtype: torch.dtype) -> None:
    good = normal(8, 70, 32).to(dtype)
    bad: dict[Status, Callable[[torch.Tensor], None]] = {
        Status.NOT_FINITE: lambda x: x[-1:, 3:4].fill_(torch.nan),
        Status.ZERO_VECTOR: lambda x: x[-1].zero_(),
    }
    for n, size in ((1, 16), (10, 16), (70, 128)):
        for status, spoil in bad.items():
            x = good[:n].clone()
            spoil(x)
            found = measured([good[:n], x, good[:n]], size)
            assert found.status == [
                Status.SINGLE if n == 1 else Status.OK,
                status,
                Status.SINGLE if n == 1 else Status.OK,
            ]
            assert torch.equal(found.distance[1], torch.zeros(n, n))
            assert torch.equal(found.distance[0], found.distance[2])
    both = good[:70].clone()
    both[0, 0], both[69, 1], both[3] = torch.inf, -torch.inf, 0
    found = measured([both], 128)
    assert found.status == [Status.NOT_FINITE]
    assert torch.equal(found.distance[0], torch.zeros(70, 70))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_the_torch_paths(dtype: torch.dtype) -> None:
    x = (normal(9, 1, 24) + 10 ** normal(10, 64, 1) * normal(11, 64, 24)).to(dtype)
    for min_distance in (1e-6, 5e9):
        plain = measured([x], 64, min_distance=min_distance).distance[0]
        assert torch.equal(measured([x], 64, min_distance=min_distance, round_them=True).distance[0], rounded(plain))


def test_halves_of_a_millionth_go_to_even() -> None:
    for millionths in (0.5, 1.5, 2.5, 1234.5):
        least = np.float32(millionths * 1e-6)
        found = measured([torch.ones(2, 8)], 16, min_distance=float(least), round_them=True).distance[0]
        assert found[0, 1] == rounded(torch.tensor([least]))[0]


def test_a_task_is_scored_alike_alone_and_in_any_slot() -> None:
    tasks = [normal(n, n, 64) for n in (40, 64, 3, 50)]
    slots = [3, 0, -1, 2, 1, 0]
    for dtype in (torch.float32, torch.bfloat16):
        given = [task.to(dtype) for task in tasks]
        alone = [measured([task], 64).distance[0] for task in given]
        for size in (64, 128):
            together = measured(given, size, slots=slots)
            for slot, t in enumerate(slots):
                assert t < 0 or torch.equal(together.distance[slot], alone[t])


@triton.jit
def _addresses_kernel(x_ptr, out_ptr, first, stride, slot, size):
    row = cosine.rows_of(x_ptr, x_ptr, 0, first.to(tl.int64), tl.arange(0, 2), tl.arange(0, 2) < 2, stride)
    tl.store(out_ptr + tl.arange(0, 2), row.to(tl.int64) - x_ptr.to(tl.int64))
    tl.store(out_ptr + 2, cosine._matrix(x_ptr, slot.to(tl.int64), size).to(tl.int64) - x_ptr.to(tl.int64))


def test_rows_and_matrices_beyond_two_to_the_31_elements_are_reached() -> None:
    x, out = torch.zeros(2, device=DEVICE), torch.zeros(3, dtype=torch.int64, device=DEVICE)
    for first, stride, slot in (((1 << 31) + 5, 4096, 5000), (1 << 20, 4096, 1 << 33)):
        _addresses_kernel[(1,)](x, out, first, stride, slot, 1024)
        assert out.tolist() == [4 * first * stride, 4 * (first + 1) * stride, 4 * slot * 1024 * 1024]


def test_what_is_shipped_is_what_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[dict[str, Any]] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Kernel:
            return self

        def __call__(self, *arguments: object, **options: object) -> None:
            launched.append({"kernel": self.name} | options)

    records = cosine.shipped()
    names = {getattr(cosine, name): name for name in ("_rows_kernel", "_diagonal_kernel", "_pairs_kernel")}
    expected = [
        {"kernel": names[record.kernel], "num_warps": record.warps, "num_stages": record.stages}
        | {"enable_fp_fusion": record.fp_fusion}
        | record.constants
        for record in records
    ]
    for name in names.values():
        monkeypatch.setattr(cosine, name, Kernel(name))
    monkeypatch.setattr(cosine, "_INTERPRETED", False)
    for dtype in DTYPES:
        for d in (64, 65):
            for size in (16, 32, 64, 128, 256, 512, 1024):
                for round_them in (False, True):
                    x, dist = torch.zeros(2, d, dtype=dtype), torch.zeros(3, size, size)
                    launch_cosine(x, d, *(None,) * 5, dist, None, 1e-6, round_them)
    assert all(options in launched for options in expected)
    assert len({record.name for record in records}) == len(records)


_ACCUMULATORS = """
import re
from fase_gpu.kernels import cosine
from benchmarks.aot import compile_kernel
for record in cosine.shipped():
    if record.name in ("cosine pairs n<=1024 fp32", "cosine pairs n<=1024 bf16"):
        code = compile_kernel(record, 90)[1].asm["ttgir"]
        found = re.findall(r"(%\\S+) = ttng.warp_group_dot [^,]+, [^,]+, (%[\\w]+)", code)
        print(record.name.split()[-1], *(f"{name}={start}" for name, start in found))
"""


@pytest.mark.slow
def test_no_slice_is_summed_in_the_tensor_core() -> None:
    """The compiler adds a sum to the accumulator of a product wherever it is allowed to."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run([sys.executable, "-c", _ACCUMULATORS], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    lines = {words[0]: [word.split("=") for word in words[1:]] for words in map(str.split, ran.stdout.splitlines())}
    assert [name for name, _ in lines["bf16"]]
    assert all(start.startswith("%cst") for _, start in lines["bf16"])
    starts = [start for _, start in lines["fp32"]]
    assert len(starts) == 3
    assert [start.startswith("%cst") for start in starts] == [True, False, False]
    assert all(start.startswith("%part") for start in starts[1:])
