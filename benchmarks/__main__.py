"""`python -m benchmarks`, from the root of the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from benchmarks.cases import Case

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _benchmarks(
    context: typer.Context,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where the embeddings are.")] = "cpu",
    words: Annotated[str, typer.Option("--filter", metavar="WORDS", help="Only cases named with all of these.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A few cases, under a minute.")] = False,
    output: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything to a file.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of cases for all cores; as many as cores.")] = None,
    floors: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, help="Least ratios; exit status 1 below one.")
    ] = None,
) -> None:
    """How fast fase_gpu is beside other ways to do the same, and what its kernels are compiled to.

    Without a command the cases of benchmarks/cases.py are checked, then timed. Exit status 1 where a check fails.
    """
    if context.invoked_subcommand is not None:
        return
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise typer.BadParameter("TRITON_INTERPRET is set, with which nothing that Triton does is worth timing")
    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"expected --device cpu or cuda, got {device!r}")
    from benchmarks import cases, report

    every = cases.cases(device)
    least: dict[str, dict[str, float]] = json.loads(floors.read_text()) if floors else {}
    stale = least.keys() - {case.name for case in every}
    if stale:
        raise typer.BadParameter(f"{floors}: no case is named {', '.join(sorted(stale))}")
    chosen = [case for case in cases.matching(every, words) if case.quick or not quick]
    if not chosen:
        raise typer.BadParameter(f"no case has {words!r} in its name; there are: {', '.join(c.name for c in every)}")
    record = run(chosen, device, threads, quick, output)
    print(report.table(record).markdown())
    lines, hold = report.against_floors(record, least)
    if floors:
        print("\n" + ("\n".join(lines) or "no case that ran has a floor"))
    failed = [entry["name"] for entry in record["cases"] if not entry["contenders"]]
    if failed:
        print(f"\nchecks failed, not timed: {', '.join(failed)}")
    if failed or not hold:
        raise typer.Exit(1)


def run(
    chosen: list[Case],
    device: str = "cpu",
    threads: int | None = None,
    quick: bool = False,
    output: Path | None = None,
) -> dict[str, Any]:
    """The record of a run of some cases; in a file after each of them, so that an interrupted run is not lost."""
    from benchmarks import measure, report

    threads = threads or measure.cores()
    record: dict[str, Any] = {
        "date": measure.date(),
        **measure.commit(),
        "device": device,
        "threads": threads,
        "quick": quick,
        "machine": measure.machine(),
        "environment": measure.environment(),
        "versions": measure.versions(),
        "load_before": measure.load(),
        "cases": [],
    }
    console = Console(stderr=True)
    started = time.perf_counter()
    for case in chosen:
        with console.status(case.name):
            record["cases"].append(_case(case, device, threads if case.cores else 1, quick))
        record["load_after"] = measure.load()
        record["seconds"] = time.perf_counter() - started
        record["fits"] = report.fits(record)
        record["complete"] = len(record["cases"]) == len(chosen)
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(record, indent=1) + "\n")
    return record


def _case(case: Case, device: str, threads: int, quick: bool) -> dict[str, Any]:
    """A case's entry: checked, and timed if the check found nothing wrong."""
    from benchmarks import measure

    names = ("name", "group", "n", "d", "dtype", "tasks", "alphas")
    entry = {name: getattr(case, name) for name in names} | {"threads": threads, "contenders": [], "memory": None}
    started = time.perf_counter()
    try:
        with measure.threads(threads):
            work = case.make(case, device)
            entry["missing"], entry["failed"] = list(work.missing), work.check()
            if not entry["failed"]:
                entry["contenders"] = measure.rounds(work.contenders, case.seconds / (3 if quick else 1), device)
        if case.memory and entry["contenders"] and not quick:
            entry["memory"] = _memory(case.name, device, threads)
    except Exception as error:
        # What is measured may fail in any way, and ends its own case only.
        entry |= {"missing": [], "failed": f"{type(error).__name__}: {error}", "contenders": []}
    return entry | {"seconds": time.perf_counter() - started}


def _memory(name: str, device: str, threads: int) -> dict[str, float]:
    """Peak memory of one call of fase_gpu, in a process that does nothing else."""
    from benchmarks import measure

    command = [sys.executable, "-m", "benchmarks", "memory", name, "--device", device, "--threads", f"{threads}"]
    done = subprocess.run(command, cwd=measure.ROOT, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring memory: {done.stderr.strip().rpartition(chr(10))[2]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


@app.command("memory", hidden=True)
def peak_memory(
    name: str,
    device: Annotated[str, typer.Option()] = "cpu",
    threads: Annotated[int, typer.Option()] = 1,
) -> None:
    """Peak memory of one call of fase_gpu in the case of that name, as JSON. The runner calls it in a new process."""
    from benchmarks import cases, measure

    (case,) = (case for case in cases.cases(device) if case.name == name)
    with measure.threads(threads):
        first = case.make(case, device).contenders[0]
        found = measure.peak_memory(lambda: first.run(case.tasks), device)
    print(json.dumps(found))


@app.command("report")
def write_report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", exists=True, help="What --json wrote.")],
    docs: Annotated[Path, typer.Option(metavar="FOLDER", help="Where performance.md is.")] = Path("docs"),
) -> None:
    """Write the tables of docs/performance.md and its plots; of a case in several files the last one counts."""
    from benchmarks import report

    record = report.merged([report.load(path) for path in files])
    for path in report.write(record, docs):
        print(path)


def _targets(text: str) -> list[int]:
    try:
        return [int(part.strip().removeprefix("sm_")) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"expected targets such as sm_90,sm_80, got {text!r}") from None


def _shapes(text: str) -> list[tuple[int, int]]:
    shapes = []
    for part in filter(None, text.split(",")):
        n, _, d = part.partition("x")
        if not (n.strip().isdecimal() and d.strip().isdecimal()):
            raise typer.BadParameter(f"expected samples x dimensions such as 10x384,50x768, got {text!r}")
        shapes.append((int(n), int(d)))
    return shapes


@app.command("compile")
def compile_kernels(
    words: Annotated[str, typer.Option("--filter", metavar="WORDS", help="Only kernels named with all of these.")] = "",
    targets: Annotated[str, typer.Option(help="What to compile for.")] = "sm_90,sm_80,sm_100",
    shapes: Annotated[str, typer.Option(metavar="NxD,...", help="Predict at these, not at each kernel's own.")] = "",
    loops: Annotated[bool, typer.Option("--loops", help="List the loops of the sm_90 code, and nothing else.")] = False,
    output: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything to a file.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables in Markdown.")] = False,
    everything: Annotated[
        bool,
        typer.Option("--everything", help="All for every target, not for sm_90 alone."),
    ] = False,
    processes: Annotated[int | None, typer.Option(min=1, help="Compile so many side by side; all cores.")] = None,
    source: Annotated[str, typer.Option(metavar="MODULE", help="Where the kernels are.")] = "fase_gpu.kernels",
) -> None:
    """Compile the kernels ahead of time, which needs no GPU, and predict their time per task.

    Exit status 1 where a kernel does not compile, spills, or is not what it promises.
    """
    from benchmarks import aot, tables

    wanted, at = _targets(targets), _shapes(shapes)
    try:
        found = aot.shipped(source)
    except ModuleNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    kernels = aot.matching(found, words)
    if not kernels:
        there = f"there are: {', '.join(found)}" if found else "there are none"
        raise typer.BadParameter(f"no kernel of {source} has {words!r} in its name; {there}")
    started = time.perf_counter()
    console = Console(stderr=True)
    with console.status("compiling") as status:
        entries = aot.report(
            kernels,
            source,
            [aot.DETAILED] if loops else wanted,
            at,
            processes,
            lambda done, of: status.update(f"compiled {done} of {of}"),
            everything,
        )
    if output is not None:
        output.write_text(json.dumps(tables.record(entries), indent=1) + "\n")
    if loops:
        print("\n".join(tables.loops(entry) for entry in entries))
        return
    for table in (tables.compiled(entries), tables.predicted(entries)):
        print(table.markdown() if markdown else table.plain(), end="\n\n")
    count = sum(len(entry.problems) for entry in entries)
    many = "s" if len(entries) > 1 else ""
    took = f"{', '.join(f'sm_{target}' for target in wanted)} in {time.perf_counter() - started:.0f} s"
    print(f"{len(entries)} configuration{many} compiled for {took}; problems: {count or 'none'}")
    if count:
        print(tables.problems(entries))
        raise typer.Exit(1)


@app.command("plans")
def predict_plans(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")] = False,
) -> None:
    """Predict the time of whole tasks of 10 to 1000 samples on H100 and H200, from what is compiled."""
    from benchmarks import plans

    table = plans.table()
    print(table.markdown() if markdown else table.plain())


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
