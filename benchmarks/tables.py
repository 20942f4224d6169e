"""The compile report as tables, for a terminal or in Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from benchmarks.aot import DETAILED, Detail, Entry
from benchmarks.model import DEVICES

_LATENCY = "latency: ns/task that so few programs at once cannot go below"


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    """A cell for each column."""
    texts: frozenset[str] = frozenset({"kernel", "matrix instruction", "limit", "then"})
    """Columns of words, which are aligned to the left."""

    def markdown(self) -> str:
        rules = [":--" if name in self.texts else "--:" for name in self.columns]
        lines = (f"| {' | '.join(row)} |" for row in (list(self.columns), rules, *self.rows))
        return "\n".join([f"{self.title}:", "", *lines])

    def plain(self) -> str:
        widths = [max(map(len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]
        lines = [self.title]
        for row in (self.columns, *self.rows):
            cells = zip(self.columns, row, widths, strict=True)
            padded = (cell.ljust(width) if name in self.texts else cell.rjust(width) for name, cell, width in cells)
            lines.append("  ".join(padded).rstrip())
        return "\n".join(lines)


def compiled(entries: Iterable[Entry]) -> Table:
    """For each configuration what the compiler says, and the prediction at its first shape on the first device."""
    rows = []
    for entry in entries:
        main = entry.compiled.get(DETAILED)
        row = [entry.name]
        if main is None or main.failure is not None or entry.detail is None:
            rows.append([*row, "see below" if main else "not compiled", *[""] * 12])
            continue
        detail = entry.detail
        row += [f"{main.registers}", f"{main.stack}", f"{detail.spills}", f"{main.shared:,}"]
        row += [f"{detail.occupancy.programs} x {entry.warps}", _counted(detail.matrix), f"{sum(detail.wide.values())}"]
        row.append(f"{len(detail.loops)}")
        if detail.predictions:
            first = detail.predictions[0]
            row += [f"{first.n}, {first.d}", number(first.nanoseconds), first.limit, f"{first.bandwidth:.0%}"]
            row.append(number(first.latency))
        else:
            row += [""] * 5
        rows.append(row)
    compiler = ("registers", "stack", "spills", "shared bytes", "programs x warps / SM", "matrix instruction")
    model = ("n, d", "predicted ns/task", "limit", "of bandwidth", "latency")
    title = f"Compiled for sm_{DETAILED}; predicted for {DEVICES[0].name}; {_LATENCY}"
    return Table(title, ("kernel", *compiler, "128-bit loads", "loops", *model), rows)


def predicted(entries: Iterable[Entry]) -> Table:
    """A row for each configuration and shape."""
    rows = []
    for entry in entries:
        predictions = entry.detail.predictions if entry.detail else ()
        for index in range(0, len(predictions), len(DEVICES)):
            group = predictions[index : index + len(DEVICES)]
            first = group[0]
            row = [entry.name, f"{first.n}", f"{first.d}", f"{first.bytes:,.0f}", f"{first.instructions:,.0f}"]
            for prediction in group:
                row += [number(prediction.nanoseconds), prediction.limit, f"{prediction.bandwidth:.0%}"]
            row.append(number(first.latency))
            units = sorted(first.units.items(), key=lambda unit: -unit[1])
            row.append(", ".join(f"{name} {number(value)}" for name, value in units[1:4]))
            rows.append(row)
    columns: tuple[str, ...] = ("kernel", "n", "d", "bytes/task", "warp instructions/task")
    words = {"kernel", "then"}
    for device in DEVICES:
        limit = f"{device.name} limit"
        columns += (f"{device.name} ns/task", limit, f"{device.name} bandwidth")
        words.add(limit)
    columns += ("latency", "then")
    title = f"Predicted least time per task; {_LATENCY}; then: ns/task of the next units on {DEVICES[0].name}"
    return Table(title, columns, rows, frozenset(words))


def loops(entry: Entry) -> str:
    """The loops of a configuration's code, so that its author can say how many trips each makes."""
    lines = [f"{entry.name} ({entry.module}): {_loop_count(entry.detail)}"]
    if entry.detail is None:
        return lines[0]
    first = entry.detail.trips[0] if entry.detail.trips else ()
    for index, loop in enumerate(entry.detail.loops):
        where = f"{loop.first:#06x}-{loop.last:#06x}" + (f", in {loop.parent}" if loop.parent is not None else "")
        trips = f", trips given {first[index]:g}" if len(first) == len(entry.detail.loops) else ""
        lines.append(
            f"  {'  ' * loop.depth}{index}: {where}, {loop.instructions} instructions "
            f"of {loop.lines or 'unknown lines'}{trips}: {_counted(dict(list(loop.opcodes.items())[:6]))}"
        )
    return "\n".join(lines)


def problems(entries: Sequence[Entry]) -> str:
    """A line for each problem; after trips that do not fit, the loops that there are."""
    lines = []
    for entry in entries:
        lines += [f"{entry.name}: {problem}" for problem in entry.problems]
        if entry.detail and any("trips" in fault for fault in entry.detail.faults):
            lines.append(loops(entry))
    return "\n".join(lines)


def record(entries: Sequence[Entry]) -> dict[str, Any]:
    """Everything, as JSON can hold it."""
    kernels = []
    for entry in entries:
        values = asdict(entry)
        values["compiled"] = {f"sm_{target}": result for target, result in values["compiled"].items()}
        for loop in (values["detail"] or {}).get("loops", ()):
            del loop["blocks"]
        kernels.append(values)
    return {"triton": version("triton"), "devices": [asdict(device) for device in DEVICES], "kernels": kernels}


def _loop_count(detail: Detail | None) -> str:
    if detail is None:
        return "no code"
    return f"{len(detail.loops)} loop{'' if len(detail.loops) == 1 else 's'}"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} x {count}" for name, count in counts.items())


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
