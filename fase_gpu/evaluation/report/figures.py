"""The figures of a report: what each shows, with a caption, drawn by matplotlib for the page and for files alike."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fase_gpu.errors import MissingExtraError
from fase_gpu.evaluation.methods import RADII
from fase_gpu.evaluation.metrics import calibration, mean_of, risk_coverage, spearman
from fase_gpu.evaluation.report.geometry import MOST_SAMPLES, geometries
from fase_gpu.evaluation.report.ratios import KINDS, Array, pair_ratios
from fase_gpu.evaluation.report.scoring import Scored
from fase_gpu.evaluation.report.tasks import ReportTasks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1f2429", "#68717a", "#dfe3e8", "#ffffff"
BLUE, RED, GOLD, GREEN, PINK, SKY = "#0072b2", "#c8500a", "#d99100", "#00825f", "#b5588f", "#4d9fd1"
"""Okabe and Ito's colours, some darker: told apart by every kind of colour vision. The page has others for the dark."""
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fase_gpu",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
}
_LINES: Final = {
    "scaled_mst_mode": (RED, "-"),
    "scaled_mst_mean": (GREEN, "-"),
    "mst_mean": (GREEN, "--"),
    "scaled_pdm_mean": (BLUE, "-"),
    "pdm_mean": (BLUE, "--"),
    "fixed_eps": (MUTED, (0, (1, 1.2))),
    "fixed_mcs": (SKY, (0, (1, 1.2))),
    "scaled_mst_mode+structural": (GOLD, "-"),
}
_GROUPS: Final = (("pass@1 = 0", RED), ("0 < pass@1 < 1", GOLD), ("pass@1 = 1", BLUE))


_LEAST_CALIBRATED: Final = 20


@dataclass(frozen=True)
class Drawing:
    """One figure: `name` is that of its files, `caption` says what is shown and how it was counted."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


@dataclass(frozen=True, eq=False)
class _Labelled:
    """The L tasks that have labels and a score, of T in all."""

    tasks: ReportTasks
    scored: Scored
    which: NDArray[np.int64]
    pass_at_1: Array
    multiscale: Array
    fase: Array

    @property
    def groups(self) -> list[NDArray[np.bool_]]:
        """Which of the L have pass@1 of 0, between, and of 1."""
        return [self.pass_at_1 == 0, (self.pass_at_1 > 0) & (self.pass_at_1 < 1), self.pass_at_1 == 1]


def draw(tasks: ReportTasks, scored: Scored, png: bool) -> tuple[list[Drawing], list[str]]:
    """The figures that the tasks allow, and a line on each that they do not. PNG data is made on demand only.

    Raises MissingExtraError without matplotlib, SciPy or scikit-learn.
    """
    pass_at_1 = tasks.pass_at_1
    which = np.flatnonzero(scored.ok & ~np.isnan(pass_at_1))
    if not len(which):
        why = "No task has both labels and a score" if any(tasks.passed) else "The samples have no labels"
        return [], [f"{why}: the figures that hold the score against pass@1 are left out."]
    entropy, multiscale = (x.double().numpy()[which] for x in (scored.result.entropy, scored.result.multiscale))
    labelled = _Labelled(tasks, scored, which, pass_at_1[which], 1 - multiscale, 1 - entropy)
    drawings, missing = [], []
    for name, title, draw_one in _FIGURES:
        with _figure() as figure:
            said = draw_one(figure, labelled)
            if isinstance(said, _Missing):
                missing.append(f"{title}: {said.why}.")
            else:
                drawings.append(Drawing(name, title, said, _svg(figure), _png(figure) if png else b""))
    return drawings, missing


@dataclass(frozen=True)
class _Missing:
    why: str


@contextmanager
def _figure() -> Iterator[Figure]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("a report", "eval") from error
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE}):
        yield Figure(figsize=(4.8, 3.3), layout="constrained")


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return text.getvalue()


def _png(figure: Figure) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=300, metadata={"Software": None})
    return data.getvalue()


def _distribution(figure: Figure, tasks: _Labelled) -> str:
    ax = figure.subplots()
    tenths = np.clip(np.rint(tasks.pass_at_1 * 10), 1, 9).astype(np.int64)
    zero, _, one = tasks.groups
    tenths[zero], tenths[one] = 0, 10
    counts = np.bincount(tenths, minlength=11)
    colours = [RED, *[GOLD] * 9, BLUE]
    bars = ax.bar(np.arange(11) / 10, counts, 0.08, color=colours)
    ax.bar_label(bars, [str(c) if c else "" for c in counts], padding=2, fontsize=7.5, color=INK)
    handles = [bars[i] for i in (0, 5, 10)]
    sums = [f"{name}: {group.sum()}" for (name, _), group in zip(_GROUPS, tasks.groups, strict=True)]
    figure.legend(handles, sums, loc="outside upper center", ncols=3, handlelength=1, columnspacing=1.4)
    ax.set_xticks(np.arange(0, 11, 2) / 10)
    ax.set(xlabel="pass@1 of a task", ylabel="tasks")
    ax.margins(y=0.1)
    return (
        f"How many of {len(tasks.which):,} tasks have which share of samples that pass. Shares are rounded to tenths; "
        "the bars of 0 and 1 hold exactly those."
    )


def _ratios(figure: Figure, tasks: _Labelled) -> str | _Missing:
    mixed = tasks.which[tasks.groups[1]]
    drawn = mixed[tasks.scored.source.n[mixed] <= MOST_SAMPLES]
    if not len(drawn):
        return _Missing("no task has samples that pass and samples that fail")
    rows = []
    for task, geometry in geometries(tasks.scored.source, tasks.scored.result.config.min_distance, drawn):
        passed = tasks.tasks.passed[task]
        assert passed is not None
        rows.append(pair_ratios(geometry, passed))
    axes = figure.subplots(1, 2)
    for ax, values, title in zip(axes, zip(*rows, strict=True), ("distances", "tree edges"), strict=True):
        columns = np.array(values).T
        names = [kind.replace("-", "–\n") for kind in KINDS]
        _boxes(ax, [column[~np.isnan(column)] for column in columns], names, (BLUE, PINK, GOLD))
        ax.axhline(1, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        ax.set_title(title)
        ax.set_ylim(bottom=0)
    axes[0].set_ylabel("mean of the kind / mean of the task")
    left_out = len(mixed) - len(drawn)
    return (
        f"Mean distance, and mean edge of the spanning tree, between samples that pass, that fail, and of either kind, "
        f"over the task's mean, in the {len(drawn)} tasks with 0 < pass@1 < 1. Boxes are quartiles, whiskers 5 to 95 "
        "%, the numbers below them medians."
        + (f" {left_out} tasks of more than {MOST_SAMPLES} samples are left out." if left_out else "")
    )


def _tree_over_mean(figure: Figure, tasks: _Labelled) -> str | _Missing:
    result = tasks.scored.result
    ratio = (result.mst_mean.double() / result.pdm_mean.double()).numpy()[tasks.which]
    groups = [ratio[group] for group in tasks.groups]
    ax = figure.subplots()
    names = [f"{name}\n{len(g)} tasks" for (name, _), g in zip(_GROUPS, groups, strict=True)]
    _boxes(ax, groups, names, tuple(colour for _, colour in _GROUPS))
    ax.set_ylabel("mean tree edge / mean distance")
    ax.set_ylim(bottom=0)
    return (
        "Mean weight of the spanning tree over the mean of all n × n distances, by pass@1. Low means that the samples "
        "form tight groups; where all are alike it is n / (n − 1). Boxes are quartiles, whiskers 5 to 95 %, "
        "the numbers below them medians."
    )


def _boxes(ax: Axes, columns: list[Array], names: list[str], colours: tuple[str, ...]) -> None:
    """Box plots side by side, the medians below their names; a column without values leaves its place empty."""
    for place, (column, colour) in enumerate(zip(columns, colours, strict=True), start=1):
        if not len(column):
            continue
        line: dict[str, Any] = {"color": colour, "linewidth": 1.1}
        ax.boxplot(
            [column],
            positions=[place],
            widths=0.46,
            whis=(5, 95),
            patch_artist=True,
            boxprops={"facecolor": colour, "edgecolor": colour, "alpha": 0.35},
            medianprops={"color": INK, "linewidth": 1.3},
            whiskerprops=line,
            capprops=line,
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": colour, "alpha": 0.6},
        )
    ax.set_xticks(
        range(1, len(columns) + 1),
        [f"{name}\n{np.median(c):.2f}" if len(c) else name for name, c in zip(names, columns, strict=True)],
    )
    ax.set_xlim(0.5, len(columns) + 0.5)


def _rho_over_alpha(figure: Figure, tasks: _Labelled) -> str | _Missing:
    set_of = tasks.tasks.set_of[tasks.which]

    def rho(score: Array) -> float:
        sets = (set_of == s for s in np.unique(set_of))
        return mean_of([spearman(score[s], tasks.pass_at_1[s], resamples=0).value for s in sets])

    level = {"multiscale": rho(tasks.multiscale)}
    level |= {one.name: rho(-one.uncertainty[0, tasks.which]) for one in tasks.scored.levels}
    curves = {
        one.name: (one.values, [rho(-column) for column in one.uncertainty[:, tasks.which]])
        for one in tasks.scored.curves
    }
    known = [*level.values(), *(value for _, values in curves.values() for value in values)]
    if all(math.isnan(value) for value in known):
        return _Missing("pass@1 is the same in all tasks")
    figure.set_size_inches(4.8, 4.0)
    ax = figure.subplots()
    above = ax.twiny()
    above.spines.top.set_visible(True)
    above.grid(False)
    lines: list[Any] = []
    for variant, (scales, values) in curves.items():
        colour, dash = _LINES[variant]
        if variant == "fixed_mcs":
            # Sizes have nothing to do with alphas; spread over the width they need no axis of their own.
            scales = tuple(np.linspace(0.1, 3, len(scales)).tolist())
        lines += (above if variant == "fixed_eps" else ax).plot(
            scales, values, color=colour, linestyle=dash, linewidth=1.5, label=variant
        )
    dashes = {"multiscale": (PINK, "-."), "structural": (INK, (0, (6, 2, 1, 2, 1, 2)))}
    lines += [
        ax.axhline(v, color=dashes[name][0], linestyle=dashes[name][1], linewidth=1.2, label=name)
        for name, v in level.items()
        if not math.isnan(v)
    ]
    config = tasks.scored.result.config
    fixed = config.variant == "fixed_eps"
    (above if fixed else ax).axvline(config.scale_list[0], color=GRID, linewidth=1.2, zorder=0.5)
    largest, widest = 3.05, RADII[-1] * 3.05 / 3
    if fixed:
        widest = max(widest, 1.02 * config.scale_list[0])
    else:
        largest = max(largest, 1.02 * config.scale_list[0])
    ax.set(xlabel="alpha", ylabel="Spearman's ρ of 1 − entropy and pass@1", xlim=(0, largest))
    above.set(xlabel="radius of fixed_eps", xlim=(0, widest))
    figure.legend(handles=lines, loc="outside lower center", ncols=3, handlelength=2.6, columnspacing=1.2)
    several = ", the mean over the sets" if len(tasks.tasks.sets) > 1 else ""
    return (
        f"Rank correlation of each method's score with pass@1{several}, over alpha (below) and over the radius of "
        f"fixed_eps (above). multiscale and structural have neither"
        + ("; fixed_mcs has min_cluster_size from 2 to 9, spread over the width" if "fixed_mcs" in curves else "")
        + ". The upright line is this report's "
        f"{'radius' if fixed else 'alpha'}."
    )


def _risk(figure: Figure, tasks: _Labelled) -> str:
    ax = figure.subplots()
    for score, name, colour, dash in (
        (tasks.multiscale, "multiscale", PINK, "-"),
        (tasks.fase, tasks.scored.result.config.variant, RED, "-"),
        (tasks.pass_at_1, "oracle", INK, (0, (1, 1.2))),
        (np.zeros_like(tasks.pass_at_1), "random", MUTED, "--"),
    ):
        curve = risk_coverage(score, tasks.pass_at_1)
        label = f"{name}, area {curve.area:.3f}"
        ax.plot(1 - curve.coverage, 1 - curve.accuracy, color=colour, linestyle=dash, linewidth=1.5, label=label)
    ax.set(xlabel="share of tasks rejected, the least certain first", ylabel="share of failing samples", xlim=(0, 1))
    ax.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2)
    return (
        "Share of failing samples, 1 − mean pass@1, of the tasks that are kept. The oracle rejects by pass@1 itself; "
        "area is the mean over all shares, lower is better. Tasks of equal score are rejected in random order."
    )


def _reliability(figure: Figure, tasks: _Labelled) -> str | _Missing:
    if len(tasks.which) < _LEAST_CALIBRATED:
        return _Missing(f"fewer than {_LEAST_CALIBRATED} tasks, too few to fit a map and hold some out")
    # A task that several sets have must not be fitted to in one and expected in another.
    ids = [tasks.tasks.task_ids[task] for task in tasks.which.tolist()]
    found = calibration(tasks.multiscale, tasks.pass_at_1, ids)
    if not found.bins:
        return _Missing("all tasks are one, so that none can be held out")
    expected, observed, counts = zip(*found.bins, strict=True)
    ax, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    ax.plot([0, 1], [0, 1], color=MUTED, linewidth=0.9, linestyle="--")
    ax.plot(expected, observed, color=PINK, marker="o", markersize=4.5, linewidth=1.3)
    ax.set(ylabel="observed pass@1", xlim=(-0.02, 1.02), ylim=(-0.03, 1.05))
    below.hist(found.expected, np.linspace(0, 1, 21).tolist(), color=PINK, alpha=0.55, rwidth=0.85)
    below.set(xlabel="expected pass@1", ylabel="tasks")
    each = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return (
        "Pass@1 that a monotone (isotonic) map from multiscale expects, fitted on the tasks of the other folds, "
        f"against what was observed. A point is {each} tasks; the points are off by {found.error:.3f} in the mean. "
        "Below: how many tasks are expected where."
    )


_FIGURES: Final[tuple[tuple[str, str, Callable[[Figure, _Labelled], str | _Missing]], ...]] = (
    ("pass_at_1", "Distribution of pass@1", _distribution),
    ("ratios", "Distances by outcome", _ratios),
    ("tree_over_mean", "Tree over mean distance", _tree_over_mean),
    ("rho_over_alpha", "Rank correlation over alpha", _rho_over_alpha),
    ("risk_coverage", "Risk and coverage", _risk),
    ("reliability", "Reliability", _reliability),
)
FIGURE_NAMES: Final = tuple(name for name, _, _ in _FIGURES)
