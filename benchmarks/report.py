"""A run's record: its tables, plots, fits and floors, all from the JSON alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import Table, number

Record = dict[str, Any]
Entry = dict[str, Any]
_BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def ours(entry: Entry) -> dict[str, Any]:
    """fase_gpu's numbers in a case that was timed."""
    found: dict[str, Any] = entry["contenders"][0]
    return found


def timed(record: Record, group: str = "") -> list[Entry]:
    return [case for case in record["cases"] if case["contenders"] and group in ("", case["group"])]


def ratios(entry: Entry) -> dict[str, float]:
    """How many times as fast fase_gpu is as each of the others."""
    return {other["name"]: other["ratio"]["median"] for other in entry["contenders"][1:]}


def table(record: Record, group: str = "") -> Table:
    """A row for each case."""
    rows = []
    for entry in record["cases"]:
        if group not in ("", entry["group"]):
            continue
        if not entry["contenders"]:
            rows.append([entry["name"], "", "", "", "", "", f"FAILED: {entry['failed']}"])
            continue
        mine = ours(entry)
        us = mine["us_per_task"]
        memory = entry["memory"]
        words = [f"{name} {number(ratio)}" for name, ratio in ratios(entry).items()]
        words += [f"{name} not installed" for name in entry["missing"]]
        rows.append(
            [
                entry["name"],
                f"{entry['threads']}",
                f"{mine['tasks']:,}",
                f"{number(us['median'])} ({number(us['p20'])} to {number(us['p80'])})",
                number(mine["tasks_per_s"]),
                number(memory["peak_mb"] - memory["before_mb"]) if memory else "",
                ", ".join(words),
            ]
        )
    columns = ("case", "threads", "tasks", "us/task (20 to 80 %)", "tasks/s", "MB more at the peak", "times as fast as")
    head = title(record) if group == "" else "Medians over the rounds"
    return Table(head, columns, rows, frozenset({"case", "times as fast as"}))


def title(record: Record) -> str:
    machine = record["machine"]
    runs = [*record.get("earlier", ()), record]
    made = [f"commit {run['commit'][:10]}{' with changes' * run['changed']}, {run['date']}" for run in runs]
    return (
        f"{machine.get('gpu', machine['cpu'])}, {machine['cores']} cores, up to {record['threads']} threads, "
        f"torch {record['versions']['torch']}, {'; then '.join(made)}"
    )


def grid(record: Record, other: str) -> Table:
    """n down, d across: us/task of the pipeline on one thread, and how many times as fast as another."""
    found = {(e["n"], e["d"]): e for e in timed(record, "pipeline") if e["dtype"] == "fp32"}
    sizes, dimensions = (sorted({key[axis] for key in found}) for axis in (0, 1))
    rows = []
    for n in sizes:
        row = [f"{n:,}"]
        for d in dimensions:
            entry = found.get((n, d))
            ratio = ratios(entry).get(other) if entry else None
            row.append("" if entry is None else number(ours(entry)["us_per_task"]["median"]))
            row[-1] += f" ({number(ratio)})" if ratio is not None else ""
        rows.append(row)
    return Table(f"us/task (times as fast as {other})", ("n", *(f"d = {d}" for d in dimensions)), rows, frozenset())


def limits(record: Record) -> dict[tuple[str, bool], float]:
    """Units per second that the machine reached, by what and whether on all cores."""
    return {
        (entry["name"].split()[1], entry["name"].endswith("all cores")): ours(entry)["tasks_per_s"]
        for entry in timed(record, "limit")
    }


def shares(record: Record) -> Table:
    """How much of a case's time the machine's limits account for: reading the input once, multiplying it once, and one
    exponential for each weight at each of 1000 grid points, which the search for the mode avoids where it can."""
    most = limits(record)
    rows = []
    for entry in [*timed(record, "pipeline"), *timed(record, "cores")]:
        every = entry["threads"] > 1
        if any((what, every) not in most for what in ("read", "multiply", "exp")):
            continue
        n, d, seconds = entry["n"], entry["d"], ours(entry)["us_per_task"]["median"] / 1e6
        size = 2 if entry["dtype"] == "bf16" else 4
        parts = {"read": n * d * size, "multiply": 2 * n * n * d, "exp": 1000 * (n - 1)}
        row = [f"{work / most[what, every] / seconds:.0%}" for what, work in parts.items()]
        rows.append([entry["name"], number(1e6 * seconds), *row, number(ratios(entry)["bmm"])])
    reached = ", ".join(f"{what} {'all' if every else 'one'}: {rate:.3g}/s" for (what, every), rate in most.items())
    columns = ("case", "us/task", "reading", "multiplying", "exponentials", "times as fast as torch.bmm")
    return Table(f"Share of the time that a limit accounts for ({reached})", columns, rows, frozenset({"case"}))


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The power of x that y grows with, by least squares on the logarithms."""
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def fits(record: Record) -> list[dict[str, Any]]:
    """Growth of the pipeline's time per task in n at each d and in d at each n, and with the batch from 1000 tasks."""
    found = []
    entries = [e for e in timed(record, "pipeline") if e["dtype"] == "fp32" and e["threads"] == 1]
    for along, at in (("n", "d"), ("d", "n")):
        for value in sorted({entry[at] for entry in entries}):
            points = [(e[along], ours(e)["us_per_task"]["median"]) for e in entries if e[at] == value]
            if len(points) > 2:
                found.append({"along": along, "at": f"{at} = {value}", "exponent": exponent(points)})
    batches = [e for e in timed(record, "batch") if ours(e)["tasks"] >= 1000]
    for d in sorted({entry["d"] for entry in batches}):
        points = [(ours(e)["tasks"], ours(e)["us_per_task"]["median"]) for e in batches if e["d"] == d]
        if len(points) > 1:
            found.append({"along": "tasks", "at": f"n = 10, d = {d}", "exponent": exponent(points)})
    return found


def fit_table(record: Record) -> Table:
    rows = [[fit["along"], fit["at"], f"{fit['exponent']:.2f}"] for fit in fits(record)]
    return Table("Time per task grows with this power", ("of", "at", "power"), rows, frozenset({"of", "at"}))


def against_floors(record: Record, floors: Mapping[str, Mapping[str, float]]) -> tuple[list[str], bool]:
    """A line for each ratio that has a floor, and whether all hold. What was not run or not installed has no line."""
    lines, hold = [], True
    for entry in timed(record):
        found = ratios(entry)
        for name, floor in floors.get(entry["name"], {}).items():
            if name not in found:
                continue
            good = found[name] >= floor
            hold &= good
            word = "ok" if good else "BELOW THE FLOOR"
            lines.append(f"{entry['name']} against {name}: {number(found[name])}, floor {number(floor)}: {word}")
    return lines, hold


def write(record: Record, folder: Path) -> list[Path]:
    """The blocks of performance.md, between its markers, and the plots beside it."""
    page = folder / "performance.md"
    blocks = _blocks(record)
    text = page.read_text()
    unknown = {name for _, name, _ in _BLOCK.findall(text)} - blocks.keys()
    if unknown:
        raise ValueError(f"{page}: unknown blocks {', '.join(sorted(unknown))}; there are {', '.join(sorted(blocks))}")
    page.write_text(_BLOCK.sub(lambda match: f"{match[1]}{blocks[match[2]]}\n{match[3]}", text))
    return [page, *plots(record, folder)]


def _blocks(record: Record) -> dict[str, str]:
    from benchmarks.cases import cases

    measured = {entry["group"] for entry in record["cases"]}
    blocks = {case.group: "Not measured." for case in cases(record["device"])}
    blocks |= {group: table(record, group).markdown() for group in measured}
    blocks |= {f"grid_{other}": grid(record, other).markdown() for other in ("released", "scipy")}
    return blocks | {
        "machine": title(record) + ".",
        "versions": ", ".join(f"{name} {version}" for name, version in record["versions"].items()) + ".",
        "shares": shares(record).markdown(),
        "fits": fit_table(record).markdown(),
        "all": table(record).markdown(),
    }


def plots(record: Record, folder: Path) -> list[Path]:
    """Time per task against n, d and batch, as SVG; none without the numbers for it."""
    import matplotlib

    matplotlib.use("svg")
    # The same numbers make the same file.
    matplotlib.rcParams["svg.hashsalt"] = "fase_gpu"
    matplotlib.rcParams["svg.fonttype"] = "none"
    pipeline = [e for e in timed(record, "pipeline") if e["dtype"] == "fp32"]
    at_d = [e for e in pipeline if e["d"] == 768]
    at_n = [e for e in pipeline if e["n"] == 10]
    batches = [e for e in timed(record, "batch") if e["d"] == 384]
    drawn = []
    for name, entries, axis, label in (
        ("samples", at_d, "n", "samples of a task, d = 768"),
        ("dimensions", at_n, "d", "dimensions, n = 10"),
        ("batch", batches, "tasks", "tasks of a call, n = 10, d = 384, all threads"),
    ):
        if len(entries) > 1:
            drawn.append(_plot(folder / f"performance_{name}.svg", entries, axis, label))
    return drawn


def _plot(path: Path, entries: Iterable[Entry], axis: str, label: str) -> Path:
    from matplotlib.figure import Figure

    lines: dict[str, list[tuple[float, float, float, float]]] = {}
    for entry in entries:
        for contender in entry["contenders"]:
            us = contender["us_per_task"]
            point = (entry[axis], us["median"], us["p20"], us["p80"])
            lines.setdefault("torch.bmm alone" if contender["name"] == "bmm" else contender["name"], []).append(point)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, points in lines.items():
        x, middle, low, high = zip(*sorted(points), strict=True)
        axes.plot(x, middle, marker="o", markersize=4, label=name)
        axes.fill_between(x, low, high, alpha=0.2)
    axes.set(xscale="log", yscale="log", xlabel=label, ylabel="us per task")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    return path


def load(path: Path) -> Record:
    record: Record = json.loads(path.read_text())
    return record


def merged(records: Sequence[Record]) -> Record:
    """The last record with the cases of all: of a case that is in several, the last. The others stay in `earlier`."""
    found = {entry["name"]: entry for record in records for entry in record["cases"]}
    earlier = [*records[-1].get("earlier", ())]
    for record in records[:-1]:
        earlier += [*record.get("earlier", ()), {name: record[name] for name in ("date", "commit", "changed")}]
    return records[-1] | {"cases": list(found.values()), "earlier": sorted(earlier, key=lambda run: str(run["date"]))}
