"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

BatchTokens: TypeAlias = Annotated[int | None, typer.Option(help="Tokens in a batch of the encoder.")]
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Device: TypeAlias = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")]
LabelledInputs: TypeAlias = Annotated[
    list[Path], typer.Argument(metavar="INPUT...", help="Samples with labels (passed), a set each.")
]
NormalizeCode: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--normalize-code/--no-normalize-code", help="Encode without comments and docstrings.", show_default="auto"
    ),
]
Overwrite: TypeAlias = Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists.")]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Resamples: TypeAlias = Annotated[int, typer.Option(min=0, help="Of the bootstrap; 0 for no intervals.")]
Results: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(help="Labels that fase-gpu execute wrote; repeated, one for each INPUT in its order."),
]
Workers: TypeAlias = Annotated[int | None, typer.Option(help="Processes that parse code.")]
