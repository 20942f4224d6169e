"""`fase-gpu evaluate`: labelled sets in, a table of every method out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fase_gpu.cli.printing import numbers, printable, stage, table
from fase_gpu.config import SEMANTICS
from fase_gpu.errors import InputError

if TYPE_CHECKING:
    from fase_gpu.evaluation.comparison import SetFacts
    from fase_gpu.evaluation.labelled import LabelledSet
    from fase_gpu.evaluation.methods import Method


def evaluate(
    paths: Annotated[list[Path], typer.Argument(metavar="INPUT...", help="Samples with labels (passed), a set each.")],
    output: Annotated[
        list[Path] | None, typer.Option("--output", "-o", help="Tables: .md, .tex, .csv or .json; may be repeated.")
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option("--encoder", "-e", help="As of fase-gpu score, ast by default; repeated, a table each."),
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(help="Labels that fase-gpu execute wrote; repeated, one for each INPUT in its order."),
    ] = None,
    alpha: Annotated[float, typer.Option(help="The alpha that is reported as given.")] = 1.6,
    eps: Annotated[float, typer.Option(help="The radius of fixed_eps that is reported as given.")] = 0.1,
    alphas: Annotated[
        str | None, typer.Option(help="Alphas of the sweep, with commas between; 0.1 to 3 by default.")
    ] = None,
    semantics: Annotated[str, typer.Option(help=f"One of {', '.join(SEMANTICS)}.")] = "paper",
    normalize_code: Annotated[
        bool, typer.Option("--normalize-code/--no-normalize-code", help="Encode without comments and docstrings.")
    ] = True,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens in a batch of the encoder.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that parse code.")] = None,
    resamples: Annotated[int, typer.Option(min=0, help="Of the bootstrap; 0 for no intervals.")] = 1000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Hold every method that needs no LLM against the labels: rank correlation with pass@1, ROC AUC and more."""
    seconds: dict[str, float] = {}
    with stage("load", "loading torch", seconds, quiet):
        from fase_gpu.evaluation.comparison import compare, facts
        from fase_gpu.evaluation.labelled import read_sets
        from fase_gpu.evaluation.methods import ALPHAS, RADII, all_methods, read_inputs
        from fase_gpu.evaluation.tables import render, summary, undefined, writer
        from fase_gpu.files.scores import check_target, moved_into_place

    outputs = output or []
    if quiet and not outputs:
        raise InputError("quiet: without --output the tables would go nowhere")
    for target in outputs:
        writer(target)
        check_target(target, overwrite)
    sweep = None if alphas is None else numbers("alphas", alphas)
    sweep = sweep if sweep is None or isinstance(sweep, tuple) else (sweep,)
    with stage("read", "reading", seconds, quiet):
        sets = read_sets(paths, results or [])
    given = {"alpha": alpha, "eps": eps}
    swept = tuple(sorted({*(sweep or ALPHAS), alpha}))
    radii = tuple(sorted({*RADII, eps}))
    comparisons = []
    for name in encoder or ["ast"]:

        def methods_of(labelled: LabelledSet, name: str = name) -> tuple[list[Method], SetFacts]:
            with stage(name, f"{labelled.name} with {name}", {}, quiet):
                inputs = read_inputs(
                    labelled.samples,
                    name,
                    normalize_code=normalize_code,
                    device=device,
                    batch_tokens=batch_tokens,
                    workers=workers,
                )
                methods = all_methods(inputs, swept, radii, semantics)
                return methods, facts(labelled, methods[0].scored, inputs.truncated, inputs.unparsable)

        with stage(name, f"scoring with {name}", seconds, quiet):
            comparisons.append(compare(name, sets, methods_of, given, resamples))
    with stage("write", "writing", seconds, quiet):
        for target in outputs:
            with moved_into_place(target.resolve(), overwrite) as stream:
                stream.write(render(comparisons, target))
    if quiet:
        return
    for comparison in comparisons:
        rows = summary(comparison)
        print(f"encoder  {comparison.encoder}\n")
        print(table("<" + ">" * (len(rows[0]) - 1), rows), end="\n\n")
        for reason in undefined(comparison):
            print(printable(f"undefined: {reason}"), end="\n\n")
    total = sum(seconds.values())
    print(table("<>", [[name, f"{took:.1f} s"] for name, took in [*seconds.items(), ("total", total)]]), flush=True)
