"""Each stage alone. The only place here that calls what is inside fase_gpu, and so the only one that moves with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks import baselines
from benchmarks.baselines import Scores, scipy_task
from benchmarks.measure import Contender, Work
from benchmarks.workloads import TOLERANCE, cut_entropy, done, embeddings, some_of
from fase_gpu.batching import buckets
from fase_gpu.cluster import labels_of_runs, tree_runs
from fase_gpu.density import weight_mode, weight_stats
from fase_gpu.distance import cosine_distances
from fase_gpu.entropy import class_entropy, multiscale_entropy
from fase_gpu.mst import edge_keys, minimum_spanning_trees

if TYPE_CHECKING:
    from benchmarks.cases import Case


def stage(case: Case, device: str) -> Work:
    """One stage on as many tasks as the executor gives it, whose inputs the stages before it made."""
    what, n = case.name.split()[1], case.n
    tasks = next(buckets(np.full(4096, n), 1, torch.device(device), 1))[1].size
    x = embeddings(tasks, n, case.d, case.dtype, device)
    sizes = torch.full((tasks,), n, device=device)
    distance = cosine_distances(x, sizes, 1e-6).distance
    tree = minimum_spanning_trees(edge_keys(distance), sizes)
    weight = tree.weight.sort(0).values
    plain = x.float().cpu().numpy()
    truths = {t: scipy_task(rows.astype(np.float64)) for t, rows in some_of(x).items()}
    found = [scipy_task(rows) for rows in plain]
    eps = torch.tensor(np.array([scores.eps for scores in found]).T, dtype=torch.float32, device=device)

    def trees() -> torch.Tensor:
        return minimum_spanning_trees(edge_keys(distance), sizes).weight.sum(0)

    def mode() -> torch.Tensor:
        return weight_mode(weight, weight_stats(weight, sizes - 1), baselines.GRID)

    def labels() -> torch.Tensor:
        runs = tree_runs(tree.weight, eps)
        labels_of_runs(runs, tree)
        return class_entropy(runs, sizes).normalised[0]

    links = [scores.links for scores in found]
    given = distance.cpu().numpy()
    ours: dict[str, tuple[Callable[[], torch.Tensor], Callable[[int], object], Callable[[Scores], float], float]] = {
        "distances": (
            lambda: cosine_distances(x, sizes, 1e-6).distance.double().mean((1, 2)),
            lambda t: baselines.distances(plain[t]),
            lambda truth: truth.pdm_mean,
            TOLERANCE,
        ),
        "tree": (
            trees,
            lambda t: baselines.links(given[t]),
            lambda truth: float(truth.links[:, 2].sum()),
            TOLERANCE * n,
        ),
        "mode": (mode, lambda t: baselines.density_mode(links[t][:, 2]), lambda truth: truth.mode, 1e-3),
        "multiscale": (
            lambda: multiscale_entropy(tree, sizes, *baselines.RANGE),
            lambda t: baselines.multiscale(links[t], n),
            lambda truth: truth.multiscale,
            2e-4,
        ),
        "labels": (
            labels,
            lambda t: cut_entropy(links[t], float(eps[0, t])),
            lambda truth: float(truth.entropy[0]),
            1e-5,
        ),
    }
    run, one, expected, within = ours[what]

    def check() -> str:
        got = run()
        for t, truth in truths.items():
            if not abs(float(got[t]) - expected(truth)) <= within:
                return f"task {t}: expected {expected(truth):.8g}, got {float(got[t]):.8g}"
        return ""

    loop = Contender("scipy", lambda k: [one(t) for t in range(k)].clear(), tasks, True)
    return Work([Contender("fase_gpu", lambda k: done(run()), tasks), loop], check)
