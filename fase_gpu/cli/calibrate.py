"""`fase-gpu calibrate`: labelled sets of one coder in, a calibration file for its further samples out."""

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
from fase_gpu.errors import InputError, nearest

if TYPE_CHECKING:
    from fase_gpu.evaluation.calibration import Calibration


def calibrate(
    paths: LabelledInputs,
    output: Annotated[Path, typer.Option("--output", "-o", help="The calibration, JSON.")],
    encoder: Annotated[str, typer.Option("--encoder", "-e", help="As of fase-gpu score.")] = "ast",
    results: Results = None,
    variant: Annotated[str, typer.Option(help="A variant with an alpha.")] = FaseConfig.variant,
    semantics: Annotated[str, typer.Option(help=f"One of {', '.join(SEMANTICS)}.")] = FaseConfig.semantics,
    alphas: Annotated[
        str | None, typer.Option(help="Alphas to choose from, with commas between; 0.1 to 3 by default.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="What expected pass@1 is read off: multiscale or entropy; the better one.")
    ] = None,
    normalize_code: NormalizeCode = None,
    batch_tokens: BatchTokens = None,
    device: Device = None,
    workers: Workers = None,
    resamples: Resamples = 1000,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Choose alpha on labelled samples, fit expected pass@1, and show both on tasks that were held out."""
    from fase_gpu.evaluation import calibration as calibrating
    from fase_gpu.evaluation.labelled import read_sets
    from fase_gpu.files.scores import check_target

    if by is not None and by not in calibrating.SCORES:
        raise InputError(f"by: unknown {by!r}; {nearest(by, calibrating.SCORES)}")
    if output.suffix.lower() != ".json":
        raise InputError(f"{output}: expected a name that ends in .json")
    check_target(output, overwrite, [*paths, *(results or [])])
    choices = None if alphas is None else several("alphas", alphas)
    normalize = semantics == "paper" if normalize_code is None else normalize_code
    seconds: dict[str, float] = {}
    with stage("read", "reading", seconds, quiet):
        sets = read_sets(paths, results or [])
    with stage("load", "loading torch", seconds, quiet):
        from fase_gpu.evaluation.methods import ADAPTIVE, read_inputs

        if variant not in ADAPTIVE:
            raise InputError(f"variant: {variant!r} has no alpha to choose; {nearest(variant, ADAPTIVE)}")
    with stage("encode", f"encoding with {encoder}", seconds, quiet):
        inputs = [
            read_inputs(
                one.samples,
                encoder,
                normalize_code=normalize,
                device=device,
                batch_tokens=batch_tokens,
                workers=workers,
            )
            for one in sets
        ]
    with stage("calibrate", "choosing alpha", seconds, quiet):
        found = calibrating.calibrate(
            sets,
            inputs,
            encoder,
            normalize_code=normalize,
            variant=variant,
            semantics=semantics,
            alphas=choices,
            by=by,
            resamples=resamples,
        )
    calibrating.write_calibration(output, found, overwrite)
    if not quiet:
        print(_report(found, output), flush=True)


def _report(found: Calibration, output: Path) -> str:
    from fase_gpu.evaluation.metrics import Statistic, mean_of
    from fase_gpu.evaluation.tables import interval, number

    facts = [
        ["output", str(output)],
        ["encoder", found.encoder],
        ["variant", found.variant],
        ["alpha", f"{found.alpha:g}"],
        ["expected pass@1 from", found.by],
        ["tasks", f"{sum(found.sets.values()):,} in {len(found.sets)} set{'s' if len(found.sets) > 1 else ''}"],
    ]
    if sum(found.sets.values()) < FEW_TASKS:
        facts.append(["note", f"fewer than {FEW_TASKS} tasks: nothing below is certain"])
    rows = [["on tasks held out", "rho", "AUC", "calibration error"]]
    for name, by_set in found.held_out.items():
        errors = [s["calibration_error"] for s in by_set.values()]
        shown = [number(error) if name.startswith("expected") else "" for error in errors]
        for (key, setting), error in zip(by_set.items(), shown, strict=True):
            one = name if len(by_set) == 1 else f"{name}, {key}"
            rows.append([one, *(interval(Statistic(*setting[key])) for key in ("rho", "auc")), error])
        if len(by_set) > 1:
            means = [mean_of([s[key][0] for s in by_set.values()]) for key in ("rho", "auc")]
            rows.append([f"{name}, mean", *map(number, means), number(mean_of(errors)) if shown[0] else ""])
    return f"{table('<<', facts)}\n\n{table('<<<>', rows)}"
