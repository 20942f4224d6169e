"""What every command shares: tables that fit the terminal, stages that are timed, numbers of options."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console

from fase_gpu.errors import InputError
from fase_gpu.files.paths import printable

FEW_TASKS: Final = 20
"""Fewer than that say little of a rank correlation: its 95 % interval is wider than 0.8."""


def numbers(name: str, text: str) -> Any:
    """A number, or a tuple where the text has commas; whether it can be is for FaseConfig to say."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{name}: expected a number, or several with commas between, got {text!r}") from None
    return values if "," in text else values[0]


def several(name: str, text: str) -> tuple[float, ...]:
    """Numbers of a text with commas between, or one."""
    values = numbers(name, text)
    return values if isinstance(values, tuple) else (values,)


@contextmanager
def stage(name: str, doing: str, seconds: dict[str, float], quiet: bool) -> Iterator[None]:
    """Note the wall time, and say on a terminal what takes it."""
    console = Console(stderr=True)
    started = time.perf_counter()
    with console.status(printable(doing)) if console.is_terminal and not quiet else nullcontext():
        yield
    seconds[name] = time.perf_counter() - started


def table(alignment: str, rows: list[list[str]]) -> str:
    """Rows as aligned lines that fit the terminal: the first column gives way, then the ends of lines."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else 10_000
    if widths:
        widths[0] = min(widths[0], max(room - sum(widths[1:]) - 2 * len(widths[1:]), len("least certain")))
    lines = []
    for row in rows:
        cells = []
        for align, width, cell in zip(alignment, widths, row, strict=True):
            shown = _cut(cell, width)
            space = " " * (width - cell_len(shown))
            cells.append(space + shown if align == ">" else shown + space)
        lines.append(_cut("  ".join(cells).rstrip(), room))
    return "\n".join(lines)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
