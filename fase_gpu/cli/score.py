"""`fase-gpu score`: arguments in, a table and a file out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fase_gpu.backends import BACKENDS
from fase_gpu.cli.options import BatchTokens, Debug, Device, NormalizeCode, Overwrite, Quiet, Workers
from fase_gpu.cli.printing import numbers, stage, table
from fase_gpu.config import CLASS_VARIANTS, PEAKS, SEMANTICS, VARIANTS, FaseConfig
from fase_gpu.errors import InputError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from fase_gpu.evaluation.calibration import Calibration
    from fase_gpu.results import FaseResult


def score(
    context: typer.Context,
    path: Annotated[
        Path, typer.Argument(metavar="INPUT", help="Samples: JSONL, .gz or Parquet. With --embeddings: .npy or .npz.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Scores: .parquet, .jsonl, .jsonl.gz or .csv.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", "-e", help="ast (the default), all-MiniLM-L6-v2, ast+NAME, owner/model, a folder."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="What fase-gpu calibrate wrote: encoder, alpha and expected pass@1 come from it."),
    ] = None,
    embeddings: Annotated[bool, typer.Option("--embeddings", help="INPUT has embeddings, not samples.")] = False,
    alpha: Annotated[
        str, typer.Option(help="Scale of the radius: a number, or several with commas between.")
    ] = f"{FaseConfig.alpha}",
    variant: Annotated[str, typer.Option(help=f"One of {', '.join(VARIANTS)}.")] = FaseConfig.variant,
    semantics: Annotated[str, typer.Option(help=f"One of {', '.join(SEMANTICS)}.")] = FaseConfig.semantics,
    min_samples: Annotated[int, typer.Option(help="DBSCAN's; a sample counts itself.")] = FaseConfig.min_samples,
    eps: Annotated[str | None, typer.Option(help="Radius, or several, of variant fixed_eps.")] = None,
    min_cluster_size: Annotated[int, typer.Option(help="Of variant fixed_mcs.")] = FaseConfig.min_cluster_size,
    multiscale_range: Annotated[
        str | None,
        typer.Option(metavar="LO,HI", help="Radii of the multiscale entropy; by default 1e-3,0.5; ast 1e-2,1."),
    ] = None,
    peak: Annotated[str, typer.Option(help=f"One of {', '.join(PEAKS)}, with --semantics released.")] = FaseConfig.peak,
    grid: Annotated[int, typer.Option(help="Points on which the mode is searched.")] = FaseConfig.grid,
    normalize_code: NormalizeCode = None,
    batch_tokens: BatchTokens = None,
    device: Device = None,
    backend: Annotated[str, typer.Option(help=f"One of {', '.join(BACKENDS)}.")] = "auto",
    workers: Workers = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail when a task has no score.")] = False,
    overwrite: Overwrite = False,
    top: Annotated[int, typer.Option(min=0, help="Tasks to list as least and as most certain.")] = 5,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score every task of a file and show the least and most certain ones."""
    from fase_gpu.files import check_output, read_embeddings, read_samples, write_scores

    calibrated = None
    if calibration is not None:
        from fase_gpu.evaluation.calibration import read_calibration

        if embeddings:
            raise InputError("calibration: is of an encoder's distances, which --embeddings does not name")
        calibrated = read_calibration(calibration)
        _only_calibrated(context, calibrated)
        encoder, normalize_code = calibrated.encoder, calibrated.normalize_code
    config = FaseConfig(
        alpha=numbers("alpha", alpha),
        variant=variant,
        semantics=semantics,
        min_samples=min_samples,
        grid=grid,
        multiscale_range=None if multiscale_range is None else numbers("multiscale_range", multiscale_range),
        eps=None if eps is None else numbers("eps", eps),
        min_cluster_size=min_cluster_size,
        peak=peak,
    )
    if calibrated is not None:
        config = calibrated.config
    for_texts: dict[str, Any] = {
        "encoder": encoder,
        "normalize_code": normalize_code,
        "batch_tokens": batch_tokens,
        "workers": workers,
    }
    given = {name: value for name, value in for_texts.items() if value is not None}
    if embeddings and given:
        raise InputError(f"{', '.join(given)}: no effect on embeddings, which are there already")
    if embeddings and variant in CLASS_VARIANTS:
        raise InputError(f"variant: {variant!r} compares texts, which embeddings do not have")
    if quiet and output is None:
        raise InputError("quiet: without --output the scores would go nowhere")
    if output is not None:
        check_output(output, overwrite, [path] if calibration is None else [path, calibration])

    seconds: dict[str, float] = {}
    facts: dict[str, Any] = {"input": str(path)}
    with stage("read", f"reading {path.name}", seconds, quiet):
        if embeddings:
            vectors = read_embeddings(path)
            task_ids = vectors.task_ids or [str(i) for i in range(len(vectors))]
        else:
            texts = read_samples(path)
            task_ids = texts.task_ids
            facts["replaced_bytes"] = texts.replaced_bytes
    with stage("load", "loading torch", seconds, quiet):
        from fase_gpu.pipeline import score_embeddings, score_samples

        x = _on_device(vectors.x, device) if embeddings else None
    with stage("score", f"scoring {path.name}", {}, quiet):
        if embeddings:
            result = score_embeddings(x, vectors.n_samples, vectors.offsets, config, backend)
        else:
            result = score_samples(texts.samples, config=config, device=device, backend=backend, **given)
    expected = None
    if calibrated is not None:
        scores = result.multiscale if calibrated.by == "multiscale" else result.entropy
        expected = calibrated.expected_pass_at_1(scores.cpu().numpy())
        facts["calibration"] = str(calibration)
    more = None if expected is None else {"expected_pass_at_1": expected}
    for name, took in result.info.seconds.items():
        seconds[name] = seconds.get(name, 0.0) + took
    if strict:
        result.raise_for_status(task_ids)
    if output is not None:
        with stage("write", f"writing {output.name}", seconds, quiet):
            write_scores(output, result, task_ids, facts, overwrite, more)
    if not quiet:
        # Flushed here, where a full disk is still told as such.
        files = {"input": path.name} | ({} if output is None else {"output": str(output)})
        if calibrated is not None:
            files["calibration"] = str(calibration)
        by = "multiscale" if calibrated is None else calibrated.by
        blocks = [
            _settings(files, result, by),
            _counts(result, facts.get("replaced_bytes", 0), expected),
            _times(result, seconds),
            _extremes(result, task_ids, top, expected, by) if top else "",
        ]
        print("\n\n".join(block for block in blocks if block), flush=True)


_OF_CALIBRATION: Final = (
    *("encoder", "normalize_code", "variant", "semantics", "peak", "alpha", "eps", "min_cluster_size", "min_samples"),
    *("multiscale_range", "grid"),
)


def _only_calibrated(context: typer.Context, calibrated: Calibration) -> None:
    """A calibration holds for its own settings alone; to name those again is no harm."""
    for name in _OF_CALIBRATION:
        source = context.get_parameter_source(name)
        same = str(getattr(calibrated, name, None)) == str(context.params[name])
        if source is not None and source.name == "COMMANDLINE" and not same:
            raise InputError(f"{name}: comes from --calibration; leave it out, or run fase-gpu calibrate with it")


def _on_device(x: NDArray[Any], device: str | None) -> torch.Tensor:
    import torch

    from fase_gpu.backends import torch_device

    return torch.from_numpy(x).to(torch_device(device))


def _settings(files: Mapping[str, str], result: FaseResult, by: str) -> str:
    config, info = result.config, result.info
    variant = config.variant
    if variant == "fixed_mcs":
        variant += f", min_cluster_size {config.min_cluster_size}"
    elif config.has_radius:
        name = "eps" if variant == "fixed_eps" else "alpha"
        variant += f", {name} {', '.join(f'{value:g}' for value in config.scale_list)}"
    semantics = config.semantics if config.semantics != "paper" else None
    rows = [*files.items(), ("encoder", info.encoder), ("variant", variant), ("semantics", semantics)]
    rows += [("backend", info.backend), ("ranked by", by)]
    return table("<<", [[name, value] for name, value in rows if value is not None])


def _counts(result: FaseResult, replaced_bytes: int, expected: NDArray[Any] | None) -> str:
    from fase_gpu.results import Status

    info = result.info
    rows = [["tasks", f"{len(result):,}", ""], ["samples", f"{info.samples:,}", ""]]
    for name in ("distinct_texts", "truncated_samples", "unparsable_samples"):
        count = getattr(info, name)
        if count is not None:
            rows.append([name.replace("_", " "), f"{count:,}", f"{count / info.samples:.1%}" if count else ""])
    if info.unparsable_samples and info.unparsable_samples > info.samples / 2:
        rows[-1][2] += "  continuations? give completion and prompt"
    if replaced_bytes:
        rows.append(["replaced bytes", f"{replaced_bytes:,}", "not UTF-8"])
    without = Counter(Status(status).name for status in result.status.tolist() if status != Status.OK)
    if without:
        reasons = ", ".join(f"{name} {count:,}" for name, count in without.items())
        rows.append(["tasks without a score", f"{without.total():,}", reasons])
    if result.config.has_radius and not result.config.swept:
        # Every distance is at least min_distance, so that such a radius joins nothing, identical samples neither.
        nothing_joins = int((result.eps < result.config.min_distance).sum())
        if nothing_joins:
            rows.append(["identical samples split", f"{nothing_joins:,}", "tasks whose radius is below min_distance"])
    some = [] if expected is None else [value for value in expected.tolist() if not math.isnan(value)]
    if some:
        rows.append(["expected pass@1", f"{sum(some) / len(some):.3f}", "mean over tasks"])
    return table("<><", rows)


def _times(result: FaseResult, seconds: Mapping[str, float]) -> str:
    rows = []
    for name, took in [*seconds.items(), ("total", sum(seconds.values()))]:
        count, unit = (result.info.samples, "samples") if name in ("read", "encode") else (len(result), "tasks")
        rate = count / max(took, 1e-9)
        # Loading a model has no rate: it takes as long for one task as for all.
        shown = "" if name == "load" else f"{rate:,.{0 if rate >= 10 else 1}f} {unit}/s"
        rows.append([name, f"{took:.2f} s", shown])
    return table("<>>", rows)


def _extremes(result: FaseResult, task_ids: Sequence[str], top: int, expected: NDArray[Any] | None, by: str) -> str:
    """The least and the most certain tasks, by `by` first of multiscale and entropy (where it is one number)."""
    from fase_gpu.results import Status

    columns = {"n": result.n_samples.tolist(), "multiscale": result.multiscale.tolist()}
    if not result.config.swept:
        columns["entropy"] = result.entropy.tolist()
        columns["classes"] = result.n_clusters.tolist()
    if expected is not None:
        columns["expected pass@1"] = expected.tolist()

    def uncertainty(task: int) -> list[float]:
        order = sorted(("multiscale", "entropy"), key=lambda name: name != by)
        values = [columns[name][task] for name in order if name in columns]
        return [-math.inf if math.isnan(value) else value for value in values]

    scored = [task for task, status in enumerate(result.status.tolist()) if status == Status.OK]
    least = sorted(scored, key=uncertainty, reverse=True)[: min(top, (len(scored) + 1) // 2)]
    rest = sorted(set(scored).difference(least))
    most = sorted(rest, key=uncertainty)[:top]
    rows: list[list[str]] = []
    for title, tasks in (("least certain", least), ("most certain", most)):
        if tasks:
            rows += [[""] * (1 + len(columns))] if rows else []
            rows.append([title, *columns])
        for task in tasks:
            values = [column[task] for column in columns.values()]
            rows.append([task_ids[task], *(f"{v:.3f}" if isinstance(v, float) else f"{v:,}" for v in values)])
    return table("<" + ">" * len(columns), rows)
