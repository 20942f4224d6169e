"""Sample files: LLM-written programs grouped by task, as JSONL (plain or gzip) or Parquet."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fase_gpu.errors import InputError
from fase_gpu.files.paths import open_binary, to_utf8

_FIELDS = ("samples", "solution", "completion")
_COLUMNS = ("task_id", *_FIELDS, "prompt", "passed")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class SampleSet:
    """T tasks in the order in which the file first names them.

    task_ids         [T], all different
    samples          [T] lists of the task's texts, in file order; a list may be empty
    replaced_bytes   bytes that are not UTF-8 and lone surrogates, each replaced by U+FFFD, in the ids and texts read
    lines            lines (rows, in Parquet) with a record; blank lines are not counted
    passed           [T] lists of whether each sample passed its task's tests, where labels were asked for and are there
    prompts          [T] the first prompt of each task, "" where there is none; only where they were asked for
    """

    task_ids: list[str]
    samples: list[list[str]]
    replaced_bytes: int
    lines: int
    passed: list[list[bool]] | None = None
    prompts: list[str] | None = None


def read_samples(path: str | Path, *, labels: bool = False, prompts: bool = False) -> SampleSet:
    """Read a sample file; its content, not its name, tells JSONL, gzip and Parquet apart.

    A record has a `task_id` (a string, or an integer, which is kept as its digits) and the first of these that is there
    and not null:

        samples      a list of complete programs
        solution     one complete program
        completion   one continuation of `prompt`, which is put before it where the record has one

    `prompt` is never put before samples or a solution. Records of one task may be anywhere in the file and in any form:
    their samples append. Other fields are ignored. `"samples": []` is a task without samples.

    With `labels`, a record's `passed` is read too: a list of booleans (or 0 and 1) beside `samples`, else one; in
    every record or in none.

    Raises InputError with the file and the line (the row, in Parquet) of the first record that cannot be read.
    """
    return _grouped(path, read_records(path, _COLUMNS), labels, prompts)


def read_records(path: str | Path, columns: Sequence[str] | None = None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of a JSONL file, plain or gzip, or of a Parquet file, each with where it is: file and line, or row.

    `columns`: those of a Parquet file to read, where there are such; None for all. Raises InputError, with the place,
    for what cannot be read.
    """
    with open_binary(path) as stream:
        magic = stream.peek(6)[:6]
        if magic.startswith((b"\x93NUMPY", b"PK\x03\x04")):
            raise InputError(f"{path}: expected JSONL or Parquet, got NumPy data (embeddings need --embeddings)")
        if magic.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise InputError(f"{path}: expected UTF-8, got UTF-16")
        if magic.startswith(b"PAR1"):
            yield from _parquet_records(path, columns)
        elif magic.startswith(b"\x1f\x8b"):
            with gzip.open(stream) as unpacked:
                yield from _json_records(path, unpacked)
        else:
            yield from _json_records(path, stream)


@dataclass
class _Texts:
    """Turns values into text that every writer and tokenizer takes, counting what had to be replaced."""

    replaced: int = 0

    def text(self, value: object, name: str) -> str:
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if not isinstance(value, str):
            raise InputError(f"{name}: expected a string, got {_named(value)}")
        value, replaced = to_utf8(value)
        self.replaced += replaced
        return value

    def task_id(self, record: Mapping[str, Any]) -> str:
        value = record.get("task_id")
        if value is None:
            problem = "task_id is null" if "task_id" in record else "no task_id"
            raise InputError(f"{problem}; fields: {', '.join(record) or 'none'}")
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, (str, bytes)):
            raise InputError(f"task_id: expected a string or an integer, got {value!r}")
        return self.text(value, "task_id")

    def samples(self, record: Mapping[str, Any], task_id: str) -> list[str]:
        name = next((name for name in _FIELDS if record.get(name) is not None), None)
        if name is None:
            nulls = [name for name in _FIELDS if name in record]
            problem = f"{nulls[0]} is null" if nulls else "no samples, solution or completion"
            raise InputError(f"task {task_id!r}: {problem}; fields: {', '.join(record)}")
        value = record[name]
        if name == "samples":
            if not isinstance(value, list):
                raise InputError(f"task {task_id!r}: samples: expected a list of strings, got {_named(value)}")
            return [self.text(sample, f"task {task_id!r}: samples[{i}]") for i, sample in enumerate(value)]
        text = self.text(value, f"task {task_id!r}: {name}")
        if name == "completion" and record.get("prompt") is not None:
            text = self.text(record["prompt"], f"task {task_id!r}: prompt") + text
        return [text]


def _labels(record: Mapping[str, Any], task_id: str, samples: int) -> list[bool] | None:
    """Whether each of the record's samples passed; None where it does not say."""
    value = record.get("passed")
    if value is None:
        return None
    listed = record.get("samples") is not None
    found = value if listed and isinstance(value, list) else [value]
    if listed != isinstance(value, list) or not all(label in (0, 1) and isinstance(label, int) for label in found):
        expected = "a list of booleans" if listed else "a boolean"
        raise InputError(f"task {task_id!r}: passed: expected {expected}, got {_named(value)}")
    if len(found) != samples:
        raise InputError(f"task {task_id!r}: passed: expected one for each of {samples} samples, got {len(found)}")
    return [bool(label) for label in found]


def _named(value: object) -> str:
    """What a JSON value is, in JSON's words."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def _grouped(
    path: str | Path, records: Iterator[tuple[str, Mapping[str, Any]]], labels: bool, prompts: bool
) -> SampleSet:
    texts = _Texts()
    tasks: dict[str, list[str]] = {}
    passed: dict[str, list[bool]] = {}
    first_prompts: dict[str, str] = {}
    lines = labelled = 0
    for where, record in records:
        lines += 1
        try:
            task_id = texts.task_id(record)
            samples = texts.samples(record, task_id)
            tasks.setdefault(task_id, []).extend(samples)
            if labels:
                found = _labels(record, task_id, len(samples))
                labelled += found is not None
                if labelled not in (0, lines):
                    raise InputError(f"task {task_id!r}: passed: expected in every record or in none")
                passed.setdefault(task_id, []).extend(found or [])
            if prompts and not first_prompts.get(task_id):
                prompt = record.get("prompt")
                first_prompts[task_id] = to_utf8(prompt)[0] if isinstance(prompt, str) else ""
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    if not lines:
        raise InputError(f"{path}: has no records, expected an object a line")
    return SampleSet(
        list(tasks),
        list(tasks.values()),
        texts.replaced,
        lines,
        list(passed.values()) if labelled else None,
        list(first_prompts.values()) if prompts else None,
    )


def _json_records(path: str | Path, stream: Iterable[bytes]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    number = 0
    try:
        for number, line in enumerate(stream, start=1):
            text = (line.removeprefix(_BOM) if number == 1 else line).rstrip()
            if not text:
                continue
            where = f"{path}:{number}"
            try:
                # Bytes that are not UTF-8 become lone surrogates, so that only those in fields that are used count.
                record = json.loads(text.decode("utf-8", "surrogateescape"))
            except json.JSONDecodeError as error:
                raise InputError(
                    f"{where}: not JSON: {error.msg} at column {error.colno}; expected an object a line"
                ) from None
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: not usable JSON: {error}") from None
            if not isinstance(record, dict):
                raise InputError(f"{where}: expected an object a line, got {_named(record)}")
            yield where, record
    except EOFError:
        raise InputError(f"{path}: gzip data is cut off after line {number}") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: gzip data is damaged after line {number}: {error}") from None


def _parquet_records(path: str | Path, wanted: Sequence[str] | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if wanted is None or name in wanted]
            if "task_id" not in columns:
                raise InputError(f"{path}: no task_id column; columns: {', '.join(file.schema_arrow.names)}")
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                for values in zip(*(_python_values(column) for column in batch.columns), strict=True):
                    row += 1
                    yield f"{path}: row {row}", dict(zip(batch.schema.names, values, strict=True))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: Parquet data is damaged after row {row}: {reason}") from error


def _python_values(column: Any) -> list[Any]:
    """The column's values; text that is not UTF-8 (Arrow does not check it) as bytes."""
    import pyarrow as pa

    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        kind = column.type
        if pa.types.is_large_list(kind):
            plain = pa.large_list(pa.large_binary())
        elif pa.types.is_nested(kind):
            plain = pa.list_(pa.binary())
        else:
            plain = pa.large_binary()
        values = column.cast(plain).to_pylist()
    return values
