"""`fase-gpu calibrate`: labelled sets of one coder in, a calibration file for its further samples out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fase_gpu.cli.printing import numbers, stage, table
from fase_gpu.config import SEMANTICS, FaseConfig
from fase_gpu.errors import InputError, nearest

if TYPE_CHECKING:
    from fase_gpu.evaluation.calibration import Calibration
    from fase_gpu.evaluation.comparison import Setting

_BY = ("multiscale", "entropy")


def calibrate(
    paths: Annotated[list[Path], typer.Argument(metavar="INPUT...", help="Samples with labels (passed), a set each.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The calibration, JSON.")],
    encoder: Annotated[str, typer.Option("--encoder", "-e", help="As of fase-gpu score.")] = "ast",
    results: Annotated[
        list[Path] | None,
        typer.Option(help="Labels that fase-gpu execute wrote; repeated, one for each INPUT in its order."),
    ] = None,
    variant: Annotated[str, typer.Option(help="A variant with an alpha.")] = FaseConfig.variant,
    semantics: Annotated[str, typer.Option(help=f"One of {', '.join(SEMANTICS)}.")] = FaseConfig.semantics,
    alphas: Annotated[
        str | None, typer.Option(help="Alphas to choose from, with commas between; 0.1 to 3 by default.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="What expected pass@1 is read off: multiscale or entropy; the better one.")
    ] = None,
    normalize_code: Annotated[
        bool, typer.Option("--normalize-code/--no-normalize-code", help="Encode without comments and docstrings.")
    ] = True,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens in a batch of the encoder.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that parse code.")] = None,
    resamples: Annotated[int, typer.Option(min=0, help="Of the bootstrap; 0 for no intervals.")] = 1000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Choose alpha on labelled samples, fit expected pass@1, and show both on tasks that were held out."""
    from fase_gpu.evaluation import calibration as calibrating
    from fase_gpu.evaluation.labelled import read_sets
    from fase_gpu.files.scores import check_target

    if by is not None and by not in _BY:
        raise InputError(f"by: unknown {by!r}; {nearest(by, _BY)}")
    check_target(output, overwrite)
    choices = None if alphas is None else numbers("alphas", alphas)
    choices = choices if choices is None or isinstance(choices, tuple) else (choices,)
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
                normalize_code=normalize_code,
                device=device,
                batch_tokens=batch_tokens,
                workers=workers,
            )
            for one in sets
        ]
    with stage("calibrate", "choosing alpha", seconds, quiet):
        found, statistics = calibrating.calibrate(
            sets,
            inputs,
            encoder,
            normalize_code=normalize_code,
            variant=variant,
            semantics=semantics,
            alphas=choices,
            by=by,
            resamples=resamples,
        )
    calibrating.write_calibration(output, found, overwrite)
    if not quiet:
        print(_report(found, statistics, output), flush=True)


def _report(found: Calibration, statistics: dict[str, dict[str, Setting]], output: Path) -> str:
    from fase_gpu.evaluation.metrics import mean_of
    from fase_gpu.evaluation.tables import interval, number

    facts = [
        ["output", str(output)],
        ["encoder", found.encoder],
        ["variant", found.variant],
        ["alpha", f"{found.alpha:g}"],
        ["expected pass@1 from", found.by],
        ["tasks", f"{sum(found.sets.values()):,} in {len(found.sets)} sets"],
    ]
    rows = [["on tasks held out", "rho", "AUC", "calibration error"]]
    for name, by_set in statistics.items():
        for key, setting in by_set.items():
            shown = name if len(by_set) == 1 else f"{name}, {key}"
            rows.append([shown, interval(setting.rho), interval(setting.auc), number(setting.calibration_error)])
        if len(by_set) > 1:
            settings = list(by_set.values())
            columns = ([s.rho.value for s in settings], [s.auc.value for s in settings])
            error = number(mean_of([s.calibration_error for s in settings]))
            rows.append([f"{name}, mean", *(number(mean_of(column)) for column in columns), error])
    return f"{table('<<', facts)}\n\n{table('<<<>', rows)}"
