"""Tasks that stream: the scores of the dense path, in memory that grows with n."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from cases import KINDS, embeddings, refused

from fase_gpu import FaseConfig, executor, score_embeddings
from fase_gpu.config import RADIUS_VARIANTS

# Prim's algorithm over the rows, in float64 and O(n) memory: the weights of the tree, and nothing else in common.
SCRIPT = """
import json, resource, sys, time
import numpy as np, torch
import fase_gpu as fg

n, d = 20_000, 16
rng = np.random.default_rng(0)
centres = rng.standard_normal((200, d))
x = centres[rng.integers(200, size=n)] + 10.0 ** rng.uniform(-2, 0, (n, 1)) * rng.standard_normal((n, d))
x = x.astype("float32")
fg.score_embeddings(torch.from_numpy(x[None, :50]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
result = fg.score_embeddings([x])
seconds = time.perf_counter() - start
extra = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

unit = x.astype("float64")
unit /= np.linalg.norm(unit, axis=1, keepdims=True)
nearest, outside, last = np.full(n, np.inf), np.ones(n, bool), 0
outside[0], weights = False, []
for _ in range(n - 1):
    np.minimum(nearest, np.maximum(1 - unit @ unit[last], 1e-6), out=nearest)
    last = int(np.where(outside, nearest, np.inf).argmin())
    outside[last] = False
    weights.append(nearest[last])
total = n * n - float((unit.sum(0) ** 2).sum())
eps = float(result.eps[0])
print(json.dumps({
    "extra": extra * 1024, "seconds": seconds, "mst_mean": [float(result.mst_mean[0]), float(np.mean(weights))],
    "pdm_mean": [float(result.pdm_mean[0]), total / n**2],
    "classes": [int(result.n_clusters[0]), 1 + sum(int(w > eps) for w in weights)],
    "near": sum(int(abs(w - eps) < 4e-7) for w in weights), "status": int(result.status[0]),
}))
"""


@pytest.mark.slow
def test_twenty_thousand_samples_take_less_than_a_gigabyte() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=600)
    found = json.loads(done.stdout)
    assert found["status"] == 0
    assert found["extra"] < 1e9, found
    for name in ("mst_mean", "pdm_mean"):
        ours, theirs = found[name]
        assert abs(ours - theirs) < 1e-6, found
    ours, theirs = found["classes"]
    assert abs(ours - theirs) <= found["near"], found


@pytest.mark.parametrize("kind", list(KINDS))
def test_streaming_scores_as_the_dense_path(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.from_numpy(embeddings(kind, 200))[None]
    config = FaseConfig(alpha=(0.4, 1.6))
    dense = score_embeddings(x, config=config)
    monkeypatch.setattr(executor, "MOST_DENSE", 100)
    streamed = score_embeddings(x, config=config)
    for name in ("mst_mean", "pdm_mean", "multiscale"):
        torch.testing.assert_close(getattr(streamed, name), getattr(dense, name), rtol=1e-5, atol=1e-6)
    for a in range(2):
        slack = abs(float(streamed.eps[0, a] - dense.eps[0, a])) + 4e-7
        if float(dense.margin[0, a] * dense.eps[0, a]) > slack:
            assert torch.equal(streamed.labels[0, a], dense.labels[0, a])  # type: ignore[index]


@pytest.mark.parametrize("variant", [*RADIUS_VARIANTS, "union"])
def test_variants_of_streamed_tasks(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.from_numpy(embeddings("clustered", 200))[None]
    config = FaseConfig(variant=variant, **({"eps": 0.02} if variant == "fixed_eps" else {}))  # type: ignore[arg-type]
    classes = [[i % 30 for i in range(200)]] if variant == "union" else None
    dense = score_embeddings(x, config=config, classes=classes)
    monkeypatch.setattr(executor, "MOST_DENSE", 100)
    streamed = score_embeddings(x, config=config, classes=classes)
    assert torch.equal(streamed.labels, dense.labels)  # type: ignore[arg-type]


def test_the_kernels_stream_as_torch_does() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, 24))
    x = centres[rng.integers(40, size=1100)] + 10.0 ** rng.uniform(-2, 0, (1100, 1)) * rng.standard_normal((1100, 24))
    ours, theirs = (score_embeddings([torch.from_numpy(x).float()], backend=b) for b in ("triton", "torch"))
    assert torch.equal(ours.labels, theirs.labels)  # type: ignore[arg-type]
    for name in ("eps", "mode", "mst_mean", "pdm_mean", "multiscale"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=2e-5, atol=1e-6)


def test_more_samples_than_can_be_are_refused() -> None:
    x = torch.zeros(1, 100_001, 1)
    assert "at most 100000 in one task, got 100001" in refused(lambda: score_embeddings(x))
