"""The fase-gpu command: a module for each of its commands."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from fase_gpu import __version__
from fase_gpu.cli.calibrate import calibrate
from fase_gpu.cli.evaluate import evaluate
from fase_gpu.cli.execute import execute
from fase_gpu.cli.report import report
from fase_gpu.cli.score import score
from fase_gpu.errors import FaseError
from fase_gpu.files.paths import printable

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


app.command()(score)
app.command()(execute)
app.command()(evaluate)
app.command()(calibrate)
app.command()(report)


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
        print(f"fase-gpu: error: {printable(_reason(error))}", file=sys.stderr)
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
