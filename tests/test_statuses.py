"""The edge cases of SPEC 6, a row each."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fase_gpu.kernels import status

import fase_gpu as fg
from fase_gpu.results import SCORES, Status

ROW = [0.6, 0.8, 0.0]
CASES = {
    "n = 0": ([], math.nan, [], Status.EMPTY, 0),
    "n = 1": ([ROW], math.nan, [0], Status.SINGLE, 1),
    "NaN": ([ROW, [math.nan, 1.0, 0.0]], math.nan, [-1, -1], Status.NOT_FINITE, 0),
    "Inf": ([ROW, [math.inf, 1.0, 0.0]], math.nan, [-1, -1], Status.NOT_FINITE, 0),
    "a NaN alone": ([[math.nan, 1.0, 0.0]], math.nan, [-1], Status.NOT_FINITE, 0),
    "a zero vector": ([ROW, [0.0, 0.0, 0.0]], math.nan, [-1, -1], Status.ZERO_VECTOR, 0),
    "all identical": ([ROW] * 5, 0.0, [0] * 5, Status.OK, 1),
    "n = 2, identical": ([ROW] * 2, 0.0, [0, 0], Status.OK, 1),
    # d_bar counts the diagonal, so it is half the weight, the scaling is negative and the floor applies.
    "n = 2, near": ([ROW, [0.61, 0.79, 0.0]], 0.0, [0, 0], Status.OK, 1),
    "n = 2, apart": ([ROW, [0.0, 0.0, 1.0]], 1.0, [0, 1], Status.OK, 2),
}


@pytest.mark.parametrize("backend", ["torch", "reference", "triton"])
@pytest.mark.parametrize("case", CASES)
def test_edge_case(case: str, backend: str) -> None:
    rows, entropy, labels, status, n_clusters = CASES[case]
    x = torch.tensor(rows).reshape(1, len(rows), 3)
    dense = fg.FaseConfig(semantics="released") if backend == "triton" else fg.FaseConfig(min_samples=1)
    for config in (fg.FaseConfig(), fg.FaseConfig(alpha=(1.6, 3.0)), dense):
        with np.errstate(all="ignore"):  # the interpreter's, of what a kernel deals with
            result = fg.score_embeddings(x, config=config, backend=backend)
        assert result.labels is not None
        assert result.status.tolist() == [status]
        assert result.labels.reshape(result.eps.numel(), len(rows))[0].tolist() == labels
        assert result.n_clusters.flatten()[0] == n_clusters
        assert result.n_samples.tolist() == [len(rows)]
        assert result.entropy.flatten()[0].item() == pytest.approx(entropy, nan_ok=True, abs=0)
        for name in SCORES:
            assert getattr(result, name).isnan().all() == (status != Status.OK), name


def test_two_samples_take_the_floor() -> None:
    result = fg.score_embeddings(torch.tensor([[ROW, [0.0, 0.0, 1.0]]]), config=fg.FaseConfig(alpha=3.0))
    assert result.eps.item() == pytest.approx(3.0 * 0.0005)
    assert result.margin.item() == pytest.approx((1 - 0.0015) / 0.0015, rel=1e-6)


def test_the_kernels_number_them_alike() -> None:
    # What given matrices alone have is told by torch.
    known = {name: value.value for name, value in vars(status).items() if name.isupper()}
    assert known == {s.name: s for s in Status if s != Status.NOT_A_DISTANCE}
