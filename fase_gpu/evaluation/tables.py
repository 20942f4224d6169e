"""A comparison as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from fase_gpu import __version__
from fase_gpu.errors import InputError
from fase_gpu.evaluation.comparison import CHOICES, Comparison, Row, Setting
from fase_gpu.evaluation.metrics import COVERAGES, Statistic, mean_of
from fase_gpu.files.paths import printable
from fase_gpu.files.scores import json_value

Cells = list[str]
_HEAD: Final = {"given": "as given", "best": "best of the set", "held out": "chosen on the other sets"}
_FIELDS: Final = (
    "encoder", "method", "choice", "set", "value", "rho", "rho_low", "rho_high", "auc", "auc_low", "auc_high",
    "average_precision", "risk_coverage_area", *(f"accuracy_at_{coverage:g}" for coverage in COVERAGES),
    "calibration_error", "undefined",
)  # fmt: skip


def render(comparisons: Sequence[Comparison], path: str | Path) -> bytes:
    """The file's content, of the kind that its suffix names. Raises InputError for another suffix."""
    return writer(path)(comparisons).encode()


def writer(path: str | Path) -> Callable[[Sequence[Comparison]], str]:
    """The function for a suffix of `WRITERS`."""
    for suffix, write in WRITERS.items():
        if str(path).lower().endswith(suffix):
            return write
    raise InputError(f"{path}: expected a name that ends in {', '.join(WRITERS)}")


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Sets, means over sets, and rho / AUC by set, each a table."""
    parts = []
    for comparison in comparisons:
        parts.append(f"## {_markdown(comparison.encoder)}")
        parts.append(_markdown_table(*_sets(comparison)))
        parts.append(f"Means over {_sets_in_words(comparison)}, best first. {_explanation(comparison)}")
        parts.append(_markdown_table(*_means(comparison)))
        parts.append(f"Spearman's rho / ROC AUC by set, {_HEAD[_deciding(comparison)]}, with 95 % intervals.")
        parts.append(_markdown_table(*_by_set(comparison)))
        parts += [f"Undefined: {_markdown(reason)}." for reason in undefined(comparison)]
    return "\n\n".join(parts) + "\n"


def latex(comparisons: Sequence[Comparison]) -> str:
    """A table of means and one by set for each encoder, in booktabs' rules."""
    parts = ["% Needs \\usepackage{booktabs}."]
    for comparison in comparisons:
        for caption, (header, rows) in (
            (f"means over {_sets_in_words(comparison)}", _means(comparison)),
            (
                f"Spearman's $\\rho$ / AUC, {_HEAD[_deciding(comparison)]}",
                _by_set(comparison, False),
            ),
        ):
            lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(comparison.encoder)}: {caption}}}"]
            lines.append(rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}")
            lines += [r"\toprule", " & ".join(map(_tex, header)) + r" \\", r"\midrule"]
            lines += [" & ".join(map(_tex, row)) + r" \\" for row in rows]
            lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def comma_separated(comparisons: Sequence[Comparison]) -> str:
    """A line for each encoder, method, choice and set; empty where undefined."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_FIELDS)
    for comparison in comparisons:
        for row in comparison.rows:
            for choice, name, setting in _settings(row):
                rho, auc = setting.rho, setting.auc
                numbers = [setting.value, *rho[:3], *auc[:3], setting.average_precision, setting.risk]
                numbers += [*setting.accuracy, setting.calibration_error]
                shown = ["" if math.isnan(number) else repr(number) for number in numbers]
                reason = "; ".join(dict.fromkeys(filter(None, (rho.undefined, auc.undefined))))
                lines.writerow([comparison.encoder, row.method, choice, name, *shown, reason])
    return text.getvalue()


def json_text(comparisons: Sequence[Comparison]) -> str:
    """All of it, the sweeps included; null where undefined."""
    record = {
        "fase_gpu": __version__,
        "coverages": list(COVERAGES),
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }
    return json.dumps(json_value(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


WRITERS: Final[dict[str, Callable[[Sequence[Comparison]], str]]] = {
    ".md": markdown,
    ".tex": latex,
    ".csv": comma_separated,
    ".json": json_text,
}


class Summary(NamedTuple):
    """Means over sets in few columns."""

    ranked_by: str
    header: Cells
    rows: list[Cells]


def summary(comparison: Comparison) -> Summary:
    """What a terminal shows: rho and AUC at the given value, and at the one chosen on other sets, or the best one."""
    second = "held out" if len(comparison.sets) > 1 else "best"
    title = {"held out": "chosen on others", "best": "best, in hindsight"}[second]
    rows = []
    for row in comparison.ranked():
        cells = [row.method, _value(row, "given"), *map(number, row.mean("given"))]
        choice = second if second in row.settings else "given"
        rows.append([*cells, _value(row, choice), *map(number, row.mean(choice))])
    over = f"mean rho over {len(comparison.sets)} sets, {title}" if len(comparison.sets) > 1 else "rho as given"
    return Summary(over, ["method", "given", "rho", "AUC", title, "rho", "AUC"], rows)


def _value(row: Row, choice: str) -> str:
    """The value of a choice, or from which to which it goes over the sets."""
    values = {setting.value for setting in row.settings[choice].values()}
    if any(map(math.isnan, values)):
        return ""
    return f"{min(values):g}" + (f"-{max(values):g}" if len(values) > 1 else "")


def number(value: float, digits: int = 3) -> str:
    """A number for a table; "-" where there is none."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def interval(statistic: Statistic) -> str:
    """A statistic with its interval where it has one."""
    if statistic.undefined:
        return "undefined"
    bounds = "" if math.isnan(statistic.low) else f" [{number(statistic.low, 2)}, {number(statistic.high, 2)}]"
    return number(statistic.value) + bounds


def _settings(row: Row) -> Iterator[tuple[str, str, Setting]]:
    for choice, by_set in row.settings.items():
        for name, setting in by_set.items():
            yield choice, name, setting


def _deciding(comparison: Comparison) -> str:
    return "held out" if len(comparison.sets) > 1 else "given"


def _of(row: Row, comparison: Comparison) -> dict[str, Setting]:
    """The settings that rows are ranked by."""
    return row.settings.get(_deciding(comparison), row.settings["given"])


def _sets_in_words(comparison: Comparison) -> str:
    return f"{len(comparison.sets)} sets" if len(comparison.sets) > 1 else "the one set"


def _explanation(comparison: Comparison) -> str:
    text = '"As given" is what the command was told, "best of the set" is chosen in hindsight'
    if len(comparison.sets) > 1:
        text += ', "chosen on the other sets" is the value with the best mean rho there'
    text += (
        ". The last columns are of " + _HEAD[_deciding(comparison)] + ": AP is the average precision for tasks that "
    )
    text += "are entirely correct, risk the area under the risk-coverage curve, kept the mean pass@1 of so many most "
    return text + "certain tasks, calibration the error of a monotone map to pass@1 on tasks that it was not fitted to."


def _sets(comparison: Comparison) -> tuple[Cells, list[Cells]]:
    header = ["set", "tasks", "samples", "left out", "cut", "unparsable", "pass@1", "pass@5", "pass@10"]
    rows = []
    for one in comparison.sets:
        counts = ["-" if count is None else f"{count:,}" for count in (one.truncated, one.unparsable)]
        shares = [number(one.pass_at_1), *(number(one.pass_at_k.get(k, math.nan)) for k in (5, 10))]
        rows.append([one.name, f"{one.tasks:,}", f"{one.samples:,}", f"{one.left_out:,}", *counts, *shares])
    return header, rows


def _means(comparison: Comparison) -> tuple[Cells, list[Cells]]:
    choices = [choice for choice in CHOICES if any(choice in row.settings for row in comparison.rows)]
    header = ["method"]
    for choice in choices:
        header += [choice, "rho", "AUC"]
    header += ["AP", "risk", *(f"kept {coverage:.0%}" for coverage in COVERAGES), "calibration"]
    rows = []
    for row in comparison.ranked():
        cells = [row.method]
        for choice in choices:
            found = choice in row.settings
            cells += [_value(row, choice), *map(number, row.mean(choice))] if found else ["", "", ""]
        settings = list(_of(row, comparison).values())
        columns = [[s.average_precision for s in settings], [s.risk for s in settings]]
        columns += [list(column) for column in zip(*(s.accuracy for s in settings), strict=True)]
        columns.append([s.calibration_error for s in settings])
        rows.append(cells + [number(mean_of(column)) for column in columns])
    return header, rows


def _by_set(comparison: Comparison, intervals: bool = True) -> tuple[Cells, list[Cells]]:
    header = ["method", *(one.name for one in comparison.sets)]
    rows = []
    for row in comparison.ranked():
        found = _of(row, comparison)
        show = interval if intervals else (lambda statistic: number(statistic.value))
        rows.append([row.method, *(f"{show(found[s.name].rho)} / {show(found[s.name].auc)}" for s in comparison.sets)])
    return header, rows


def undefined(comparison: Comparison) -> list[str]:
    """Why numbers are undefined, each once, with where."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in comparison.rows:
        for name, setting in _of(row, comparison).items():
            for label, statistic in (("rho", setting.rho), ("AUC", setting.auc)):
                if statistic.undefined:
                    found.setdefault((f"{label} on {name}", statistic.undefined), []).append(row.method)
    return [
        f"{where} ({reason}; {'every method' if len(methods) == len(comparison.rows) else ', '.join(methods)})"
        for (where, reason), methods in found.items()
    ]


def _markdown_table(header: Cells, rows: list[Cells]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(_markdown, line))} |" for line in lines)


def _markdown(text: str) -> str:
    """As text: names of files can hold anything."""
    return html.escape(printable(text), quote=False).replace("|", "\\|")


def _tex(text: str) -> str:
    plain = printable(text).replace("\\", r"\textbackslash ").replace("~", r"\textasciitilde ")
    plain = plain.replace("^", r"\textasciicircum ")
    return "".join("\\" + letter if letter in "&%$#_{}" else letter for letter in plain)
