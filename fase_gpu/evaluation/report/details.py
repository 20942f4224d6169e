"""What the page shows of single tasks, as plain values for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from fase_gpu.batching import Indices
from fase_gpu.evaluation.report.geometry import Geometry, geometries, leaf_order, merges, tree_layout
from fase_gpu.evaluation.report.scoring import Scored
from fase_gpu.evaluation.report.tasks import ReportTasks
from fase_gpu.results import Status

MOST_DRAWN: Final = 100
"""Samples of a task whose distances are drawn; of larger tasks the page has one sample for each of so many classes."""
MOST_CHARACTERS: Final = 20_000
MOST_LINES: Final = 400
"""Of a text; the rest is cut, and the page says so."""


def table_columns(tasks: ReportTasks, scored: Scored) -> dict[str, list[Any]]:
    """Columns [T] of the page's table of tasks; numbers that are NaN are None."""
    result = scored.result
    columns: dict[str, list[Any]] = {
        "task": tasks.task_ids,
        "set": tasks.set_of.tolist(),
        "n": result.n_samples.tolist(),
        "pass_at_1": [rounded(x) for x in tasks.pass_at_1.tolist()],
    }
    for name in ("entropy", "multiscale"):
        columns[name] = [rounded(x) for x in getattr(result, name).tolist()]
    columns["classes"] = [k if ok else None for k, ok in zip(result.n_clusters.tolist(), scored.ok, strict=True)]
    for name in ("mst_mean", "pdm_mean"):
        columns[name] = [rounded(x) for x in getattr(result, name).tolist()]
    columns["status"] = [Status(status).name for status in result.status.tolist()]
    return columns


def chosen_tasks(scored: Scored, most: int) -> Indices:
    """The tasks that get details: the least and the most certain ones by multiscale, by turns, then those without."""
    order = np.argsort(-scored.result.multiscale.double().numpy(), kind="stable")
    scored_tasks, others = order[scored.ok[order]], order[~scored.ok[order]]
    turns = np.empty_like(scored_tasks)
    half = -(-len(turns) // 2)
    turns[::2], turns[1::2] = scored_tasks[:half], scored_tasks[half:][::-1]
    return np.concatenate([turns, np.sort(others)])[:most]


def details(tasks: ReportTasks, scored: Scored, chosen: Indices) -> Iterator[tuple[int, dict[str, Any]]]:
    """Details of the chosen tasks, in an order of its own."""
    drawn = scored.ok[chosen] & (scored.result.n_samples.numpy()[chosen] <= MOST_DRAWN)
    for task, geometry in geometries(scored.source, scored.result.config.min_distance, chosen[drawn]):
        yield task, _samples(tasks, scored, task, geometry) | _drawings(scored, task, geometry)
    for task in chosen[~drawn].tolist():
        yield task, _samples(tasks, scored, task, None)


def rounded(x: float) -> float | None:
    """To six digits, which is what float32 holds; None for what JSON cannot."""
    return float(f"{x:.6g}") if math.isfinite(x) else None


def cut(text: str) -> tuple[str, int]:
    """The beginning of a text, and how many characters were cut off."""
    short = "".join(text[:MOST_CHARACTERS].splitlines(keepends=True)[:MOST_LINES])
    return short, len(text) - len(short)


def _samples(tasks: ReportTasks, scored: Scored, task: int, geometry: Geometry | None) -> dict[str, Any]:
    """Texts, classes and labels of a task's samples.

    classes   by size, each the positions of its samples, the representative first: the one nearest to the others
    texts     distinct ones; sample i is texts[text[i]], or is left out where that is -1
    cut       characters that each text lacks
    """
    samples, passed = tasks.samples[task], tasks.passed[task]
    assert scored.result.labels is not None
    classes = _classes(scored.result.labels[task, : len(samples)].tolist(), geometry)
    kept = range(len(samples)) if len(samples) <= MOST_DRAWN else [c[0] for c in classes[:MOST_DRAWN]]
    places: dict[str, int] = {}
    text = [-1] * len(samples)
    for i in kept:
        text[i] = places.setdefault(samples[i], len(places))
    short = [cut(sample) for sample in places]
    prompt = cut(tasks.prompts[task])
    return {
        "prompt": prompt[0],
        "prompt_cut": prompt[1],
        "texts": [s for s, _ in short],
        "cut": [missing for _, missing in short],
        "text": text,
        "passed": None if passed is None else [int(label) for label in passed],
        "classes": classes,
    }


def _classes(labels: Sequence[int], geometry: Geometry | None) -> list[list[int]]:
    """Positions of each class's samples. Without a geometry the first sample represents its class; a label of -1 is a
    class of its own."""
    found: dict[tuple[int, int], list[int]] = {}
    for i, label in enumerate(labels):
        found.setdefault((label, i if label < 0 else -1), []).append(i)
    classes = sorted(found.values(), key=len, reverse=True)
    if geometry is not None:
        for members in classes:
            total = geometry.distance[np.ix_(members, members)].astype(np.float64).sum(1)
            members.insert(0, members.pop(int(total.argmin())))
    return classes


def _drawings(scored: Scored, task: int, geometry: Geometry) -> dict[str, Any]:
    """Distances of the pairs (0, 1), (0, 2), ... row after row; the tree, its layout in node diameters, its merges."""
    eps = scored.result.eps[task].item()
    found = merges(geometry.edges)
    pairs = geometry.distance[np.triu_indices(len(geometry.distance), 1)]
    return {
        "distance": [float(f"{d:.4g}") for d in pairs.tolist()],
        "eps": rounded(eps),
        "edges": [[rounded(w), i, j, int(w <= eps)] for w, i, j in geometry.edges],
        "at": [[round(x, 2), round(y, 2)] for x, y in tree_layout(geometry.edges)],
        "merges": [[a, b, rounded(w)] for a, b, w, _ in found],
        "order": leaf_order(found),
    }
