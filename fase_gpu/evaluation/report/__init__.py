"""A report on sample sets: one HTML file that needs nothing else, and its figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fase_gpu.errors import InputError
from fase_gpu.evaluation.report.figures import FIGURE_NAMES, draw
from fase_gpu.evaluation.report.page import page
from fase_gpu.evaluation.report.scoring import Scored, score_tasks
from fase_gpu.evaluation.report.tasks import ReportTasks, read_tasks
from fase_gpu.files.scores import check_target, moved_into_place

__all__ = ["ReportTasks", "Scored", "Written", "check_report", "read_tasks", "score_tasks", "write_report"]


@dataclass(frozen=True)
class Written:
    """What write_report wrote."""

    size: int
    """bytes of the page"""
    figures: list[Path]
    missing: list[str]
    """a line on each figure that the tasks do not allow"""


def check_report(
    path: str | Path, figures: str | Path | None = None, overwrite: bool = False, inputs: Sequence[str | Path] = ()
) -> None:
    """Raise InputError unless write_report can write there: to be called before the work, not after it."""
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{path}: expected a name that ends in .html")
    check_target(target, overwrite, inputs)
    if figures is None:
        return
    folder = Path(figures)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{figures}: is a file, expected a folder for the figures")
    if folder.is_dir():
        for file in _figure_files(folder, FIGURE_NAMES):
            check_target(file, overwrite)


def write_report(
    path: str | Path,
    tasks: ReportTasks,
    scored: Scored,
    *,
    details: int = 500,
    figures: str | Path | None = None,
    overwrite: bool = False,
) -> Written:
    """Write the page, and the figures as SVG and PNG where a folder is given, which is made where it is not there.

    tasks     of read_tasks
    scored    of score_tasks, of the same tasks
    details   tasks whose samples and drawings are in the page: half of them the least certain, half the most certain

    A file appears under its name only when it is complete. Equal tasks give equal files. Raises InputError for what
    check_report refuses, MissingExtraError without matplotlib, SciPy or scikit-learn.
    """
    if details < 0:
        raise InputError(f"details: expected a number of tasks from 0 on, got {details}")
    check_report(path, figures, overwrite)
    drawings, missing = draw(tasks, scored, png=figures is not None)
    text = page(tasks, scored, drawings, missing, details).encode()
    files: list[Path] = []
    if figures is not None:
        Path(figures).mkdir(parents=True, exist_ok=True)
        files = _figure_files(Path(figures), [drawing.name for drawing in drawings])
        contents = [data for drawing in drawings for data in (drawing.svg.encode(), drawing.png)]
        for file, data in zip(files, contents, strict=True):
            _write(file, data, overwrite)
    _write(Path(path), text, overwrite)
    return Written(len(text), files, missing)


def _figure_files(folder: Path, names: Sequence[str]) -> list[Path]:
    return [folder / f"{name}{suffix}" for name in names for suffix in (".svg", ".png")]


def _write(path: Path, data: bytes, overwrite: bool) -> None:
    with moved_into_place(path.resolve(), overwrite) as stream:
        stream.write(data)
