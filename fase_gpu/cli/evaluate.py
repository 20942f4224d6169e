"""`fase-gpu evaluate`: labelled sets in, a table of every method out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fase_gpu.cli.options import (
    BatchTokens,
    Debug,
    Device,
    LabelledInputs,
    NormalizeCode,
    Overwrite,
    Quiet,
    Resamples,
    Results,
    Workers,
)
from fase_gpu.cli.printing import FEW_TASKS, several, stage, table
from fase_gpu.config import SEMANTICS, FaseConfig
from fase_gpu.errors import InputError

if TYPE_CHECKING:
    from fase_gpu.evaluation.comparison import Comparison, SetFacts
    from fase_gpu.evaluation.labelled import LabelledSet
    from fase_gpu.evaluation.methods import Method


def evaluate(
    paths: LabelledInputs,
    output: Annotated[
        list[Path] | None, typer.Option("--output", "-o", help="Tables: .md, .tex, .csv or .json; may be repeated.")
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option("--encoder", "-e", help="As of fase-gpu score, ast by default; repeated, a table each."),
    ] = None,
    results: Results = None,
    methods: Annotated[
        str | None, typer.Option(help="Names with commas between, as in the table; all by default.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="The alpha that is reported as given; 1.6.")] = None,
    eps: Annotated[float | None, typer.Option(help="The radius of fixed_eps that is reported as given; 0.03.")] = None,
    alphas: Annotated[
        str | None, typer.Option(help="Alphas of the sweep, with commas between; 0.1 to 3 by default.")
    ] = None,
    semantics: Annotated[str, typer.Option(help=f"One of {', '.join(SEMANTICS)}.")] = FaseConfig.semantics,
    normalize_code: NormalizeCode = None,
    batch_tokens: BatchTokens = None,
    device: Device = None,
    workers: Workers = None,
    resamples: Resamples = 1000,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare every method that needs no LLM with who passed."""
    seconds: dict[str, float] = {}
    with stage("load", "loading torch", seconds, quiet):
        from fase_gpu.evaluation.comparison import compare, facts
        from fase_gpu.evaluation.labelled import read_sets
        from fase_gpu.evaluation.methods import ALPHAS, GIVEN, RADII, all_methods, method_names, read_inputs
        from fase_gpu.evaluation.tables import render, writer
        from fase_gpu.files.scores import check_target, moved_into_place

    outputs = output or []
    if quiet and not outputs:
        raise InputError("quiet: without --output the tables would go nowhere")
    for target in outputs:
        writer(target)
        check_target(target, overwrite, [*paths, *(results or [])])
    only = method_names(None if methods is None else [name.strip() for name in methods.split(",")])
    given = GIVEN | {name: value for name, value in (("alpha", alpha), ("eps", eps)) if value is not None}
    swept = tuple(sorted({*(ALPHAS if alphas is None else several("alphas", alphas)), given["alpha"]}))
    radii = tuple(sorted({*RADII, given["eps"]}))
    normalize = semantics == "paper" if normalize_code is None else normalize_code
    with stage("read", "reading", seconds, quiet):
        sets = read_sets(paths, results or [])
    comparisons = []
    for name in encoder or ["ast"]:

        def methods_of(labelled: LabelledSet, name: str = name) -> tuple[list[Method], SetFacts]:
            with stage(name, f"{labelled.name} with {name}", {}, quiet):
                inputs = read_inputs(
                    labelled.samples,
                    name,
                    normalize_code=normalize,
                    device=device,
                    batch_tokens=batch_tokens,
                    workers=workers,
                )
                found = all_methods(inputs, swept, radii, semantics, only)
                return found, facts(labelled, found[0].scored, inputs.truncated, inputs.unparsable)

        with stage(name, f"scoring with {name}", seconds, quiet):
            comparisons.append(compare(name, sets, methods_of, given, resamples))
    with stage("write", "writing", seconds, quiet):
        for target in outputs:
            with moved_into_place(target.resolve(), overwrite) as stream:
                stream.write(render(comparisons, target))
    if quiet:
        return
    blocks = [block for comparison in comparisons for block in _report(comparison)]
    times = [[name, f"{took:.1f} s"] for name, took in [*seconds.items(), ("total", sum(seconds.values()))]]
    blocks += [table("<<", [["output", str(target)] for target in outputs])] if outputs else []
    print("\n\n".join([*blocks, table("<>", times)]), flush=True)


def _report(comparison: Comparison) -> list[str]:
    """What fits a terminal; the files have the rest."""
    from fase_gpu.evaluation.tables import number, summary, undefined

    sets = [["set", "tasks", "left out", "samples", "pass@1"]]
    sets += [
        [s.name, f"{s.tasks:,}", f"{s.left_out:,}", f"{s.samples:,}", number(s.pass_at_1)] for s in comparison.sets
    ]
    means = summary(comparison)
    notes = [["note", f"undefined: {reason}"] for reason in undefined(comparison)]
    few = [s.name for s in comparison.sets if s.tasks - s.left_out < FEW_TASKS]
    if few:
        notes.append(["note", f"fewer than {FEW_TASKS} tasks in {', '.join(few)}: nothing is certain"])
    blocks = [table("<<", [["encoder", comparison.encoder], ["ranked by", means.ranked_by]]), table("<>>>>", sets)]
    blocks.append(table("<" + ">" * (len(means.header) - 1), [means.header, *means.rows]))
    return [*blocks, table("<<", notes)] if notes else blocks
