"""The page: one HTML file with everything inside, which its own security policy keeps from the network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from typing import Any, Final

import numpy as np

from fase_gpu import __version__
from fase_gpu.evaluation.metrics import Statistic, mean_of, roc_auc, spearman
from fase_gpu.evaluation.report import figures as fig
from fase_gpu.evaluation.report.details import MOST_DRAWN, chosen_tasks, details, table_columns
from fase_gpu.evaluation.report.scoring import Scored
from fase_gpu.evaluation.report.tasks import ReportTasks
from fase_gpu.results import Status

MOST_BYTES: Final = 32_000_000
"""Of all tasks' details together, so that a browser opens the page quickly whatever the samples are."""
_SCRIPTS: Final = ("page.js", "table.js", "drawings.js", "samples.js", "task.js")
# What matplotlib wrote into the figures, as names that the page gives a value for light and for dark.
_COLOURS: Final = {
    getattr(fig, name): f"var(--{name.lower()})"
    for name in ("INK", "MUTED", "GRID", "PAPER", "BLUE", "RED", "GOLD", "GREEN", "PINK", "SKY")
}


def page(
    tasks: ReportTasks, scored: Scored, drawings: Sequence[fig.Drawing], missing: Sequence[str], most_details: int
) -> str:
    """The whole page as HTML text.

    drawings, missing   what figures.draw gave
    most_details        tasks whose samples, distances and trees are in the page
    """
    chosen = chosen_tasks(scored, most_details)
    texts = {task: script_json(detail) for task, detail in details(tasks, scored, chosen)}
    embedded, size = [], 0
    for task in chosen.tolist():
        if size + len(texts[task]) <= MOST_BYTES:
            size += len(texts[task])
            embedded.append(task)
    config = scored.result.config
    assert config.multiscale_range is not None
    data = {
        "sets": tasks.sets,
        "columns": table_columns(tasks, scored),
        "details": embedded,
        "range": list(config.multiscale_range),
        "labelled": any(labels is not None for labels in tasks.passed),
        "most_drawn": MOST_DRAWN,
    }
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    names = ", ".join(tasks.sets)
    return _filled(
        _asset("page.html"),
        {
            "script_hash": f"sha256-{digest}",
            "title": escaped(f"FASE report: {names}"),
            "style": _asset("page.css"),
            "names": escaped(names),
            "sets": _sets_table(tasks, scored),
            "settings": _settings(tasks, scored),
            "figures": "".join(map(_figure, drawings)),
            "missing": "".join(f"<p class=note>{escaped(line)}</p>" for line in missing),
            "left_out": _left_out(len(tasks), len(embedded), len(chosen) - len(embedded)),
            "data": script_json(data),
            "details": "\n".join(
                f'<script type="application/json" id="detail-{task}">{texts[task]}</script>' for task in embedded
            ),
            "script": script,
        },
    )


def script_json(value: Any) -> str:
    """JSON that may stand in a script element, whatever the texts in it are: ASCII, and nothing that starts a tag."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def escaped(text: str) -> str:
    """Text as HTML, with control characters and those that turn the direction of writing shown, not obeyed."""
    shown = "".join(c if c.isprintable() or c == "\u00a0" else c.encode("unicode_escape").decode() for c in text)
    return html.escape(shown)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _filled(template: str, values: dict[str, str]) -> str:
    """The template with each {{name}} replaced, once: what is put in is never looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def _figure(drawing: fig.Drawing) -> str:
    svg = drawing.svg[drawing.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[\w.]+"', "<g", svg)  # the same in every figure, and ids are to be unique in a page
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda found: _COLOURS.get(found[0], found[0]), svg)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escaped(drawing.title)}"', 1)
    caption = f"<figcaption><b>{escaped(drawing.title)}.</b> {escaped(drawing.caption)}</figcaption>"
    return f'<figure id="figure-{drawing.name}">{svg}{caption}</figure>\n'


def _sets_table(tasks: ReportTasks, scored: Scored) -> str:
    """A row for each set: counts, and how well FASE and multiscale tell its tasks apart."""
    pass_at_1 = tasks.pass_at_1
    scores = [1 - getattr(scored.result, name).double().numpy() for name in ("entropy", "multiscale")]
    n = scored.result.n_samples.numpy()
    rows: list[str] = []
    columns: list[list[float]] = []
    for s, name in enumerate(tasks.sets):
        inside = tasks.set_of == s
        counts = (inside.sum(), n[inside].sum(), (inside & ~scored.ok).sum())
        cells = [f"<th scope=row>{escaped(name)}</th>", *(_cell(f"{count:,}") for count in counts)]
        labelled = inside & ~np.isnan(pass_at_1)
        if labelled.any():
            usable = labelled & scored.ok
            mean = float(pass_at_1[labelled].mean())
            found = [f(score[usable], pass_at_1[usable]) for score in scores for f in (spearman, roc_auc)]
            columns.append([mean, *(statistic.value for statistic in found)])
            cells += [_cell(_number(mean)), *map(_statistic, found)]
        else:
            cells.append("<td colspan=5>no labels</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    if len(columns) > 1:
        means = "".join(_cell(_number(mean_of(values))) for values in zip(*columns, strict=True))
        rows.append(f"<tr class=mean><th scope=row>mean of the sets</th><td></td><td></td><td></td>{means}</tr>")
    return "".join(rows)


def _number(x: float) -> str:
    return "undefined" if math.isnan(x) else f"{x:.3f}"


def _statistic(found: Statistic) -> str:
    # Hard spaces: an interval stays on one line, a reason need not.
    return _cell(_number(found.value), found.undefined or f"{found.low:.2f}\u00a0to\u00a0{found.high:.2f}")


def _cell(text: str, below: str = "") -> str:
    return f"<td>{text}<span class=why>{escaped(below)}</span></td>" if below else f"<td>{text}</td>"


def _settings(tasks: ReportTasks, scored: Scored) -> str:
    result = scored.result
    config, info = result.config, result.info
    assert config.multiscale_range is not None
    scale = f"eps {config.eps:g}" if config.variant == "fixed_eps" else f"alpha {config.alpha:g}"
    low, high = config.multiscale_range
    rows = [
        ("encoder", str(info.encoder)),
        ("FASE", f"{config.variant}, {scale}"),
        ("multiscale", f"radii from {low:g} to {high:g}"),
    ]
    if info.normalize_code is not None:
        rows.append(("comments and docstrings", "stripped" if info.normalize_code else "kept"))
    rows.append(("distinct texts", _share(info.distinct_texts, info.samples)))
    rows.append(("do not parse", _share(info.unparsable_samples, info.samples)))
    rows.append(("cut by the encoder", _share(info.truncated_samples, info.samples)))
    without = Counter(Status(status).name for status in result.status.tolist() if status != Status.OK)
    if without:
        rows.append(("tasks without a score", ", ".join(f"{count:,} {name}" for name, count in without.items())))
    rows.append(("fase-gpu", __version__))
    return "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in rows if value)


def _share(count: int | None, total: int) -> str:
    return "" if count is None or not total else f"{count:,} of {total:,} samples"


def _left_out(tasks: int, embedded: int, too_large: int) -> str:
    if embedded == tasks:
        return ""
    why = f"; {too_large:,} did not fit into {MOST_BYTES // 1_000_000} MB" if too_large else ""
    return (
        f"<p class=note>Samples and drawings are in this file for {embedded:,} of {tasks:,} tasks, the least and the "
        f"most certain ones{why} (<code>--details</code>). The others are in the table and in the figures only.</p>"
    )
