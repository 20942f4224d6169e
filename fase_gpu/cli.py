"""The fase-gpu command: arguments in, a table and a file out."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from fase_gpu import __version__
from fase_gpu.backends import BACKENDS
from fase_gpu.config import CLASS_VARIANTS, PEAKS, SEMANTICS, VARIANTS, FaseConfig
from fase_gpu.errors import FaseError, InputError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from fase_gpu.results import FaseResult

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fase-gpu {__version__}")
        raise typer.Exit


@app.callback()
def _fase_gpu(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Uncertainty of LLM-written code: FASE entropy and multiscale entropy of the samples of each task."""


@app.command()
def score(
    path: Annotated[
        Path, typer.Argument(metavar="INPUT", help="Samples: JSONL, .gz or Parquet. With --embeddings: .npy or .npz.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Scores: .parquet, .jsonl, .jsonl.gz or .csv.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", "-e", help="all-MiniLM-L6-v2 (the default), ast, ast+NAME, owner/model, a folder."),
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
        typer.Option(metavar="LO,HI", help="Radii of the multiscale entropy; by default 1e-3,0.5; ast 1e-3,1."),
    ] = None,
    peak: Annotated[str, typer.Option(help=f"One of {', '.join(PEAKS)}, with --semantics released.")] = FaseConfig.peak,
    grid: Annotated[int, typer.Option(help="Points on which the mode is searched.")] = FaseConfig.grid,
    normalize_code: Annotated[
        bool | None,
        typer.Option(
            "--normalize-code/--no-normalize-code", help="Encode without comments and docstrings.", show_default="auto"
        ),
    ] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens in a batch of the encoder.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")] = None,
    backend: Annotated[str, typer.Option(help=f"One of {', '.join(BACKENDS)}.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that parse code.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail when a task has no score.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists.")] = False,
    top: Annotated[int, typer.Option(min=0, help="Tasks to list as least and as most certain.")] = 5,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Score every task of a file and show the least and most certain ones."""
    from fase_gpu.files import check_output, read_embeddings, read_samples, write_scores

    config = FaseConfig(
        alpha=_numbers("alpha", alpha),
        variant=variant,
        semantics=semantics,
        min_samples=min_samples,
        grid=grid,
        multiscale_range=None if multiscale_range is None else _numbers("multiscale_range", multiscale_range),
        eps=None if eps is None else _numbers("eps", eps),
        min_cluster_size=min_cluster_size,
        peak=peak,
    )
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
        check_output(output, overwrite)
        if output.exists() and path.exists() and output.samefile(path):
            raise InputError(f"{output}: is the input, expected another file")

    seconds: dict[str, float] = {}
    facts: dict[str, Any] = {"input": str(path)}
    with _stage("read", f"reading {path.name}", seconds, quiet):
        if embeddings:
            vectors = read_embeddings(path)
            task_ids = vectors.task_ids or [str(i) for i in range(len(vectors))]
        else:
            texts = read_samples(path)
            task_ids = texts.task_ids
            facts["replaced_bytes"] = texts.replaced_bytes
    with _stage("load", "loading torch", seconds, quiet):
        from fase_gpu.pipeline import score_embeddings, score_samples

        x = _on_device(vectors.x, device) if embeddings else None
    with _stage("score", f"scoring {path.name}", {}, quiet):
        if embeddings:
            result = score_embeddings(x, vectors.n_samples, vectors.offsets, config, backend)
        else:
            result = score_samples(texts.samples, config=config, device=device, backend=backend, **given)
    for stage, took in result.info.seconds.items():
        seconds[stage] = seconds.get(stage, 0.0) + took
    if strict:
        result.raise_for_status(task_ids)
    if output is not None:
        with _stage("write", f"writing {output.name}", seconds, quiet):
            write_scores(output, result, task_ids, facts, overwrite)
    if not quiet:
        # Flushed here, where a full disk is still told as such.
        files = {"input": path.name} | ({} if output is None else {"output": str(output)})
        print(_report(files, result, task_ids, seconds, facts.get("replaced_bytes", 0), top), flush=True)


def _numbers(name: str, text: str) -> Any:
    """A number, or a tuple where the text has commas; whether it can be is for FaseConfig to say."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{name}: expected a number, or several with commas between, got {text!r}") from None
    return values if "," in text else values[0]


def _on_device(x: NDArray[Any], device: str | None) -> torch.Tensor:
    import torch

    from fase_gpu.backends import torch_device

    return torch.from_numpy(x).to(torch_device(device))


@contextmanager
def _stage(name: str, doing: str, seconds: dict[str, float], quiet: bool) -> Iterator[None]:
    """Note the wall time, and say on a terminal what takes it."""
    console = Console(stderr=True)
    started = time.perf_counter()
    with console.status(_printable(doing)) if console.is_terminal and not quiet else nullcontext():
        yield
    seconds[name] = time.perf_counter() - started


def _report(
    files: Mapping[str, str],
    result: FaseResult,
    task_ids: Sequence[str],
    seconds: Mapping[str, float],
    replaced_bytes: int,
    top: int,
) -> str:
    """What the command prints: settings, counts, times, and the least and most certain tasks."""
    blocks = [_settings(files, result), _counts(result, replaced_bytes), _times(result, seconds)]
    if top:
        blocks.append(_extremes(result, task_ids, top))
    return "\n\n".join(block for block in blocks if block)


def _settings(files: Mapping[str, str], result: FaseResult) -> str:
    config, info = result.config, result.info
    variant = config.variant
    if variant == "fixed_mcs":
        variant += f", min_cluster_size {config.min_cluster_size}"
    elif config.has_radius:
        name = "eps" if variant == "fixed_eps" else "alpha"
        variant += f", {name} {', '.join(f'{value:g}' for value in config.scale_list)}"
    semantics = config.semantics if config.semantics != "paper" else None
    rows = [*files.items(), ("encoder", info.encoder), ("variant", variant), ("semantics", semantics)]
    rows += [("backend", info.backend), ("ranked by", "multiscale" if config.swept else None)]
    return _table("<<", [[name, value] for name, value in rows if value is not None])


def _counts(result: FaseResult, replaced_bytes: int) -> str:
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
    return _table("<><", rows)


def _times(result: FaseResult, seconds: Mapping[str, float]) -> str:
    rows = []
    for name, took in [*seconds.items(), ("total", sum(seconds.values()))]:
        count, unit = (result.info.samples, "samples") if name in ("read", "encode") else (len(result), "tasks")
        rate = count / max(took, 1e-9)
        # Loading a model has no rate: it takes as long for one task as for all.
        shown = "" if name == "load" else f"{rate:,.{0 if rate >= 10 else 1}f} {unit}/s"
        rows.append([name, f"{took:.2f} s", shown])
    return _table("<>>", rows)


def _extremes(result: FaseResult, task_ids: Sequence[str], top: int) -> str:
    """The least and the most certain tasks, by entropy (where it is one number), then by multiscale, then in order."""
    from fase_gpu.results import Status

    columns = {"n": result.n_samples.tolist(), "multiscale": result.multiscale.tolist()}
    if not result.config.swept:
        columns = {"n": columns["n"], "entropy": result.entropy.tolist(), "multiscale": columns["multiscale"]}
        columns["classes"] = result.n_clusters.tolist()

    def uncertainty(task: int) -> list[float]:
        values = [columns[name][task] for name in ("entropy", "multiscale") if name in columns]
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
    return _table("<" + ">" * len(columns), rows)


def _table(alignment: str, rows: list[list[str]]) -> str:
    """Rows as aligned lines that fit the terminal: the first column gives way, then the ends of lines."""
    rows = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else 10_000
    if widths:
        widths[0] = min(widths[0], max(room - sum(widths[1:]) - 2 * len(widths[1:]), len("least certain")))
    lines = []
    for row in rows:
        cells = []
        for align, width, cell in zip(alignment, widths, row, strict=True):
            cut = _cut(cell, width)
            space = " " * (width - cell_len(cut))
            cells.append(space + cut if align == ">" else cut + space)
        lines.append(_cut("  ".join(cells).rstrip(), room))
    return "\n".join(lines)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _printable(text: str) -> str:
    """The text on one line, with nothing in it that a terminal acts on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _reason(error: Exception) -> str:
    if isinstance(error, typer.TyperException):
        return error.format_message()
    if isinstance(error, OSError) and not isinstance(error, FaseError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"not enough memory: {error}" if type(error) in (MemoryError, RuntimeError) else str(error)


def _run(arguments: list[str]) -> int:
    try:
        status = app(arguments or ["--help"], prog_name="fase-gpu", standalone_mode=False)
    except (FaseError, OSError, MemoryError, RuntimeError, typer.TyperException) as error:
        # torch says in a plain RuntimeError that there is not enough memory.
        if type(error) is RuntimeError and "allocate" not in str(error):
            raise
        if "--debug" in arguments:
            traceback.print_exc()
        print(f"fase-gpu: error: {_printable(_reason(error))}", file=sys.stderr)
        return 2
    return status or 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit: 0 when done, 2 after an error on stderr, 130 when interrupted, 1 when stdout closes."""
    # Read when torch is imported. Threads that spin while they wait for one without a core make operations of a busy
    # machine take a scheduler's time slice: 4 to 90 times slower was seen beside three or more processes on two cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A task id that the terminal's encoding lacks must not end a run whose scores are written.
            stream.reconfigure(errors="replace")
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))
