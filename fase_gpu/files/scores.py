"""Score files: a row per task as Parquet, JSONL or CSV, never half written under their own name."""

from __future__ import annotations

import csv
import gzip
import importlib.metadata
import json
import math
import os
import platform
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from fase_gpu import __version__
from fase_gpu.errors import InputError
from fase_gpu.files.paths import to_utf8

if TYPE_CHECKING:
    import pyarrow

    from fase_gpu.results import FaseResult

METADATA_KEY: Final = "fase_gpu"
_ROWS_AT_ONCE = 8192


def check_output(path: str | Path, overwrite: bool = False, inputs: Iterable[str | Path] = ()) -> None:
    """Raise InputError unless `write_scores` can write there: to be called before the work, not after it."""
    if not Path(path).is_dir():
        _writer(Path(path))
    check_target(path, overwrite, inputs)


def check_target(path: str | Path, overwrite: bool = False, inputs: Iterable[str | Path] = ()) -> None:
    """Raise InputError unless `moved_into_place` can put a file there: any suffix, but none of `inputs`."""
    target = Path(path)
    for file in map(Path, inputs):
        if target.exists() and file.exists() and target.samefile(file):
            raise InputError(f"{path}: is an input, expected another file")
    if target.is_dir():
        raise InputError(f"{path}: is a folder, expected a file name")
    if target.exists():
        if not target.is_file():
            raise InputError(f"{path}: exists and is not a regular file")
        if not overwrite:
            raise InputError(f"{path}: exists already (--overwrite replaces it)")
    folder = target.resolve().parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {target.parent} does not exist")
    trial = _unfinished(folder)
    try:
        # Permission bits do not tell of read-only disks, quotas and the like.
        trial.touch(exist_ok=False)
    except OSError as error:
        raise InputError(f"{path}: the folder {target.parent} cannot be written to: {error.strerror}") from error
    trial.unlink()


def write_scores(
    path: str | Path,
    result: FaseResult,
    task_ids: Sequence[str],
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    columns: Mapping[str, Any] | None = None,
) -> None:
    """Write a row per task: `task_id`, then the columns of `FaseResult.to_arrow`, then those of `columns`, [T] each.

    The suffix chooses the format:

        .parquet              as to_arrow gives it; the schema's metadata has, under "fase_gpu", a JSON object with the
                              config, the run's counts and seconds, the versions, and what `metadata` adds
        .jsonl, .jsonl.gz     an object a line, rows only; NaN and infinity are null, as JSON has neither
        .csv                  rows only; lists (labels, and the scores of several alphas) as JSON text; NaN is nan

    Text formats have float32 values in their shortest digits, which read back as the same float32. A killed run leaves
    no half file: the rows go to a hidden temporary file in the same folder, which is synced and then renamed.

    Raises InputError for what `check_output` refuses, or when there is not one task id a row.
    """
    import pyarrow

    check_output(path, overwrite)
    target = Path(path).resolve()
    if len(task_ids) != len(result):
        raise InputError(f"task_ids: expected one for each of {len(result)} tasks, got {len(task_ids)}")
    ids = pyarrow.array([to_utf8(task_id)[0] for task_id in task_ids], type=pyarrow.string())
    rows = result.to_arrow().add_column(0, "task_id", ids)
    for name, values in (columns or {}).items():
        rows = rows.append_column(name, pyarrow.array(values))
    with moved_into_place(target, overwrite) as stream:
        _writer(target)(stream, rows.replace_schema_metadata({METADATA_KEY: _metadata(result, metadata or {})}))


def _metadata(result: FaseResult, more: Mapping[str, Any]) -> str:
    versions = {"fase-gpu": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "pyarrow", "transformers"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    facts = {"config": result.config.to_dict(), "run": asdict(result.info), "versions": versions, **more}
    return json.dumps(facts, allow_nan=False)


def _write_parquet(stream: IO[bytes], rows: pyarrow.Table) -> None:
    import pyarrow.parquet as pq

    pq.write_table(rows, stream, compression="zstd")


def _write_jsonl(stream: IO[bytes], rows: pyarrow.Table) -> None:
    with _text(stream) as text:
        for row in _plain_rows(rows):
            values = {name: json_value(value) for name, value in row.items()}
            text.write(json.dumps(values, ensure_ascii=False) + "\n")


def _write_jsonl_gz(stream: IO[bytes], rows: pyarrow.Table) -> None:
    # No name and no time inside, so that equal scores give equal files.
    with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
        _write_jsonl(packed, rows)  # type: ignore[arg-type]


def _write_csv(stream: IO[bytes], rows: pyarrow.Table) -> None:
    with _text(stream) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(rows.column_names)
        for row in _plain_rows(rows):
            writer.writerow(
                json.dumps(json_value(value)) if isinstance(value, list) else value for value in row.values()
            )


_WRITERS: Final[dict[str, Callable[[IO[bytes], pyarrow.Table], None]]] = {
    ".parquet": _write_parquet,
    ".jsonl": _write_jsonl,
    ".jsonl.gz": _write_jsonl_gz,
    ".csv": _write_csv,
}


def _writer(path: Path) -> Callable[[IO[bytes], pyarrow.Table], None]:
    for suffix, writer in _WRITERS.items():
        if path.name.lower().endswith(suffix):
            return writer
    raise InputError(f"{path}: expected a name that ends in {', '.join(_WRITERS)}")


@contextmanager
def _text(stream: IO[bytes]) -> Iterator[TextIOWrapper]:
    """UTF-8 text on a stream that stays open: the caller still has to sync it."""
    text = TextIOWrapper(stream, encoding="utf-8", newline="\n")
    try:
        yield text
    finally:
        text.detach()


def _plain_rows(rows: pyarrow.Table) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    for index, column in enumerate(rows.schema):
        swept = pa.types.is_list(column.type)
        if (column.type.value_type if swept else column.type) == pa.float32():
            # Through text, or 0.1 would be written as 0.10000000149011612.
            text, number = (pa.list_(pa.string()), pa.list_(pa.float64())) if swept else (pa.string(), pa.float64())
            rows = rows.set_column(index, column.name, rows.column(index).cast(text).cast(number))
    for batch in rows.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from batch.to_pylist()


def json_value(value: Any) -> Any:
    """A value as JSON has it: null for NaN and infinity, lists for tuples."""
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def moved_into_place(target: Path, overwrite: bool) -> Iterator[IO[bytes]]:
    """A stream to a temporary file that becomes `target` when all went well, and goes away when anything did not."""
    unfinished = _unfinished(target.parent)
    try:
        with open(unfinished, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if overwrite:
            os.replace(unfinished, target)
        else:
            _rename_unless_taken(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def _unfinished(folder: Path) -> Path:
    # Not from tempfile, whose files are private whatever the umask says.
    return folder / f".fase_gpu-{secrets.token_hex(8)}.tmp"


def _rename_unless_taken(source: Path, target: Path) -> None:
    """Rename without replacing a file that appeared meanwhile: a link fails where a rename would replace."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise InputError(f"{target}: appeared during the run and was left alone (--overwrite replaces it)") from None
    except OSError:
        # Some file systems have no links; there the check and the rename are two steps.
        check_target(target)
        os.replace(source, target)
