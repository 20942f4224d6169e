"""`fase-gpu report`: sample files in, one HTML file out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fase_gpu.cli.options import BatchTokens, Debug, Device, NormalizeCode, Overwrite, Quiet, Results, Workers
from fase_gpu.cli.printing import numbers, stage, table
from fase_gpu.config import RADIUS_VARIANTS, FaseConfig


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="SAMPLES...", help="Samples, with labels (passed) or without.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page: a name that ends in .html.")],
    results: Results = None,
    encoder: Annotated[str, typer.Option("--encoder", "-e", help="As of fase-gpu score.")] = "ast",
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the figures as SVG and PNG files.")
    ] = None,
    details: Annotated[
        int, typer.Option(min=0, help="Tasks with samples and drawings, the least and the most certain ones.")
    ] = 500,
    alpha: Annotated[str, typer.Option(help="Scale of the radius.")] = f"{FaseConfig.alpha}",
    variant: Annotated[str, typer.Option(help=f"One of {', '.join(RADIUS_VARIANTS)}.")] = FaseConfig.variant,
    eps: Annotated[str | None, typer.Option(help="Radius of variant fixed_eps.")] = None,
    multiscale_range: Annotated[
        str | None,
        typer.Option(metavar="LO,HI", help="Radii of the multiscale entropy; by default 1e-3,0.5; ast 1e-2,1."),
    ] = None,
    normalize_code: NormalizeCode = None,
    batch_tokens: BatchTokens = None,
    device: Device = None,
    workers: Workers = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show scores, figures and every task's samples, distances and tree in one HTML file that needs no network."""
    config = FaseConfig(
        alpha=numbers("alpha", alpha),
        variant=variant,
        eps=None if eps is None else numbers("eps", eps),
        multiscale_range=None if multiscale_range is None else numbers("multiscale_range", multiscale_range),
    )
    seconds: dict[str, float] = {}
    with stage("load", "loading torch", seconds, quiet):
        from fase_gpu.evaluation.report import check_report, read_tasks, score_tasks, write_report

    check_report(output, figures, overwrite, [*paths, *(results or [])])
    with stage("read", "reading samples", seconds, quiet):
        tasks = read_tasks(paths, results or ())
    with stage("score", f"scoring {len(tasks):,} tasks", seconds, quiet):
        scored = score_tasks(
            tasks,
            encoder,
            config,
            normalize_code=normalize_code is not False,
            batch_tokens=batch_tokens,
            device=device,
            workers=workers,
        )
    with stage("draw", "drawing", seconds, quiet):
        written = write_report(output, tasks, scored, details=details, figures=figures, overwrite=overwrite)
    if quiet:
        return
    rows = [["sets", ", ".join(tasks.sets)], ["tasks", f"{len(tasks):,}"], ["page", str(output)]]
    rows += [["size", f"{written.size / 1e6:,.2f} MB"]]
    if figures is not None:
        rows.append(["figures", f"{len(written.figures)} files in {figures}"])
    rows += [["left out", line] for line in written.missing]
    rows += [[name, f"{took:.2f} s"] for name, took in [*seconds.items(), ("total", sum(seconds.values()))]]
    print(table("<<", rows), flush=True)
