"""`python -m benchmarks`, from the root of the repository."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def _benchmarks() -> None:
    """How fast fase_gpu is, and what its kernels are compiled to."""


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
