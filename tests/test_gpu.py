"""On an NVIDIA GPU: the compiled kernels against the reference, without waiting for the device, on any stream."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from test_kernels_fused import agree, corpus
from test_triton_executor import columns, packed, same, tasks

from fase_gpu import FaseConfig, InputError, Scorer, ops, score_embeddings

pytestmark = pytest.mark.gpu


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Whatever waits for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_kind_and_size_scores_as_the_reference(dtype: torch.dtype) -> None:
    x, count = corpus((1, 2, 3, 10, 16, 17, 32, 33, 64, 65, 128, 200), dtype)
    config = FaseConfig(alpha=(0.4, 1.6, 3.0))
    result = score_embeddings(torch.nan_to_num(x).cuda(), count, config=config)
    assert result.info.backend == "triton"
    scores = {name: column.cpu() for name, column in columns(result).items()}
    assert agree(scores, x, count, config) > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("d", [1, 7, 100, 384, 768, 1024, 2560, 4096])
@pytest.mark.parametrize("n", [10, 32, 64, 100])
def test_dimensions(n: int, d: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(d)
    centres = rng.standard_normal((20, 3, d))[np.arange(20)[:, None], rng.integers(3, size=(20, n))]
    x = torch.from_numpy(centres + 10.0 ** rng.uniform(-1, 0, (20, n, 1)) * rng.standard_normal((20, n, d))).to(dtype)
    count = torch.full((20,), n)
    config = FaseConfig(alpha=(1.6,))
    result = score_embeddings(x.cuda(), config=config)
    agree({name: column.cpu() for name, column in columns(result).items()}, x, count, config)


def test_a_task_scores_the_same_anywhere() -> None:
    parts = [part.cuda() for part in tasks((2, 9, 16, 17, 33, 64, 65, 100))]
    together = score_embeddings(parts)
    for i, part in enumerate(parts):
        alone = columns(score_embeddings([part]))
        beside = {name: column[i : i + 1] for name, column in columns(together).items()}
        beside["labels"] = beside["labels"][:, : len(part)]
        same(beside, alone)


def test_nothing_waits_for_the_device(no_waiting: None) -> None:
    x, start, count = (t.cuda(non_blocking=True) for t in packed(tasks((2, 9, 16, 17, 100))))
    torch.cuda.set_sync_debug_mode("default")
    ops.score(x, start, count, 100)  # compiles, and copies its constants to the device
    torch.cuda.set_sync_debug_mode("error")
    ops.score(x, start, count, 100)


def test_a_captured_graph_is_replayed_with_new_numbers() -> None:
    parts = tasks((10, 9, 4), ("clustered",))
    x = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).cuda()
    scorer = Scorer(3, 10, 72, device="cuda")
    for n in ([10, 9, 4], [10, 10, 10], [2, 1, 0]):
        same(scorer(x, n), score_embeddings(x, n))
    same(scorer(x.flip(0)), score_embeddings(x.flip(0)))
    rows, _, count = packed(parts)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), count.cumsum(0)])
    ragged = Scorer(3, 100, 72, device="cuda", rows=23)
    assert ragged(rows, offsets=offsets).status.tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="1024"):
        Scorer(1, 2000, 8, device="cuda")


def test_on_another_stream() -> None:
    x = torch.nn.utils.rnn.pad_sequence(tasks((10, 9), ("clustered",)), batch_first=True).cuda()
    expected = score_embeddings(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        other = score_embeddings(x)
    stream.synchronize()
    same(other, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one NVIDIA GPU on this machine")
def test_on_another_device() -> None:
    x = torch.nn.utils.rnn.pad_sequence(tasks((10, 70), ("clustered",)), batch_first=True)
    other = score_embeddings(x.to("cuda:1"))
    assert other.entropy.device == torch.device("cuda:1")
    assert torch.equal(other.entropy.cpu(), score_embeddings(x.to("cuda:0")).entropy.cpu())


def test_compiled_whole() -> None:
    x, start, count = (t.cuda() for t in packed(tasks((3, 10, 5), ("clustered",))))

    def certainty(x: torch.Tensor) -> torch.Tensor:
        return 1 - ops.score(x * 2, start, count, 10)["multiscale"]

    assert torch.equal(torch.compile(certainty, fullgraph=True)(x), certainty(x))


def test_mixed_devices_are_refused() -> None:
    x, start, count = packed(tasks((3, 10), ("clustered",)))
    with pytest.raises(InputError, match="move it there"):
        ops.score(x.cuda(), start, count, 10)


def test_a_large_task() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((3000, 32), dtype=np.float32))
    ours, theirs = score_embeddings([x.cuda()]), score_embeddings([x])
    torch.testing.assert_close(ours.mst_mean.cpu(), theirs.mst_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.multiscale.cpu(), theirs.multiscale, rtol=1e-5, atol=1e-5)
