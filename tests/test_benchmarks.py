"""The benchmark runner: what it checks, times, records and prints; its baselines against the oracle."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import embeddings as kind_of_task
from typer.testing import CliRunner, Result

import fase_gpu as fg

ROOT = Path(__file__).resolve().parent.parent

# Not on the path of the installed package; see test_aot.py.
_SPEC = importlib.util.spec_from_file_location("benchmarks", ROOT / "benchmarks" / "__init__.py")
assert _SPEC is not None
sys.modules.setdefault("benchmarks", importlib.util.module_from_spec(_SPEC))

baselines = importlib.import_module("benchmarks.baselines")
cases = importlib.import_module("benchmarks.cases")
main = importlib.import_module("benchmarks.__main__")
measure = importlib.import_module("benchmarks.measure")
report = importlib.import_module("benchmarks.report")
workloads = importlib.import_module("benchmarks.workloads")

Run = Callable[..., Result]


def clocked(name: str, seconds: float) -> Any:
    """A contender that says how long it took."""
    return measure.Contender(name, lambda k: seconds, tasks=10, own_clock=True)


def toy(name: str = "toy n=10 d=4", problem: str = "", calls: list[str] | None = None, **settings: Any) -> Any:
    """A case that takes no time, three times as fast as its baseline."""

    def make(case: Any, device: str) -> Any:
        counted = measure.Contender("fase_gpu", lambda k: (calls if calls is not None else []).append(name) or 1e-3)
        return measure.Work([replace(counted, own_clock=True), clocked("other", 3e-2)], lambda: problem, ["absent"])

    return cases.Case(name, make, 10, 4, seconds=0.01, **settings)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `python -m benchmarks` on the given cases."""
    # The tests' own interpreter, which the runner refuses.
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    def run(found: Sequence[Any], *arguments: str) -> Result:
        monkeypatch.setattr(cases, "cases", lambda device="cpu": list(found))
        return CliRunner().invoke(main.app, list(arguments))

    return run


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """Of real cases, small ones."""
    found = [
        cases.Case(f"pipeline n={n} d={d} fp32", workloads.pipeline, n, d, 64, seconds=0.05)
        for n, d in ((5, 384), (5, 768), (5, 1024), (10, 384), (10, 768), (20, 768))
    ]
    found += [cases.Case(f"batch {k} n=10 d=384 fp32", workloads.batch, 10, 384, k, seconds=0.05) for k in (1, 1000)]
    found += [case for case in cases.cases() if case.group == "stage" and case.n == 10]
    made: dict[str, Any] = main.run([replace(case, seconds=0.05) for case in found], threads=1)
    # As it comes back from a file.
    made = json.loads(json.dumps(made))
    return made


def test_a_failing_check_is_not_timed_and_fails_the_run(command: Run, tmp_path: Path) -> None:
    calls: list[str] = []
    found = [toy("bad", problem="off by one", calls=calls), toy("good", calls=calls)]
    result = command(found, "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 1
    assert set(calls) == {"good"}
    bad, good = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert (bad["failed"], bad["contenders"]) == ("off by one", [])
    assert (good["failed"], len(good["contenders"])) == ("", 2)
    assert "FAILED: off by one" in result.stdout
    assert "not timed: bad" in result.stdout


def test_a_case_that_raises_fails_alone(command: Run) -> None:
    def make(case: Any, device: str) -> Any:
        raise ImportError("a stage has moved")

    result = command([cases.Case("moved", make), toy("good")])
    assert result.exit_code == 1
    assert "FAILED: ImportError: a stage has moved" in result.stdout
    assert "other 3, absent" in result.stdout


def test_a_run_in_which_all_checks_hold_succeeds(command: Run) -> None:
    result = command([toy()])
    assert result.exit_code == 0, result.output
    assert "absent not installed" in result.stdout


@pytest.mark.parametrize(
    ("words", "expected"), [("n=10", ["toy n=10 d=4"]), ("D=4 N=100", ["toy n=100 d=4"]), ("toy", None), ("", None)]
)
def test_the_filter_takes_words(command: Run, tmp_path: Path, words: str, expected: list[str] | None) -> None:
    found = [toy("toy n=10 d=4"), toy("toy n=100 d=4")]
    command(found, "--filter", words, "--json", str(tmp_path / "out.json"))
    ran = [case["name"] for case in json.loads((tmp_path / "out.json").read_text())["cases"]]
    assert ran == (expected or [case.name for case in found])


@pytest.mark.parametrize(
    "arguments", [("--filter", "nothing"), ("--device", "tpu"), ("--threads", "0"), ("--floors", "nowhere.json")]
)
def test_what_cannot_be_asked_for_is_refused(command: Run, arguments: tuple[str, ...]) -> None:
    assert command([toy()], *arguments).exit_code == 2


def test_nothing_is_timed_in_the_interpreter(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert command([toy()]).exit_code == 2


def test_quick_runs_the_quick_cases_only(command: Run) -> None:
    result = command([toy("slow one"), toy("fast one", quick=True)], "--quick")
    assert "fast one" in result.stdout
    assert "slow one" not in result.stdout


def test_quantiles_are_interpolated() -> None:
    assert measure.quantiles([5, 1, 3, 2, 4]) == pytest.approx({"p20": 1.8, "median": 3, "p80": 4.2})
    assert measure.quantiles([7.0]) == {"p20": 7, "median": 7, "p80": 7}


def test_contenders_take_turns_and_ratios_are_per_task() -> None:
    order: list[str] = []

    def logged(name: str, seconds: float, tasks: int) -> Any:
        return measure.Contender(name, lambda k: order.append(name) or seconds, tasks, own_clock=True)

    ours, other = measure.rounds([logged("a", 1.0, 100), logged("b", 0.5, 10)], budget=0.01)
    assert order[:6] == ["a", "b"] * 3
    assert ours["us_per_task"]["median"] == pytest.approx(1e4)
    assert ours["tasks_per_s"] == pytest.approx(100)
    assert ours["ratio"] is None
    assert other["ratio"]["median"] == pytest.approx(5)
    assert other["ratio"]["rounds"] == pytest.approx([5] * ours["rounds"])


def test_a_slow_contender_gets_a_part_of_the_tasks() -> None:
    seen: list[int] = []

    def slow(k: int) -> None:
        seen.append(k)
        torch.randn(200_000 * k).sort()

    entries = measure.rounds(
        [measure.Contender("fase_gpu", lambda k: None, 50), measure.Contender("slow", slow, 50, part=True)], 0.3
    )
    assert entries[0]["subset_of"] is None
    assert entries[1]["subset_of"] == 50
    assert entries[1]["tasks"] == seen[-1] < 50
    assert entries[1]["us_per_task"]["median"] > 100


def test_the_record_says_what_was_measured_where(record: dict[str, Any]) -> None:
    assert {"date", "commit", "changed", "device", "threads", "machine", "versions", "environment"} <= record.keys()
    assert {"load_before", "load_after", "seconds", "fits", "cases"} <= record.keys()
    assert {"cpu", "cores", "memory_gb"} <= record["machine"].keys()
    assert {"python", "torch", "numpy", "scipy", "scikit-learn", "triton"} <= record["versions"].keys()
    first = record["cases"][0]
    assert {"name", "group", "n", "d", "dtype", "tasks", "alphas", "threads", "missing", "failed"} <= first.keys()
    assert [entry["failed"] for entry in record["cases"]] == [""] * len(record["cases"])
    ours = first["contenders"][0]
    assert {"name", "tasks", "calls", "subset_of", "rounds", "us_per_task", "tasks_per_s"} <= ours.keys()
    assert [c["name"] for c in first["contenders"]] == ["fase_gpu", "released", "scipy", "bmm"]


@pytest.mark.parametrize("kind", ["random", "clustered", "lattice", "orthogonal"])
@pytest.mark.parametrize("n", [2, 3, 10, 50])
def test_the_scipy_baseline_is_the_oracle(kind: str, n: int) -> None:
    x = kind_of_task(kind, n).astype(np.float64)
    config = fg.FaseConfig(alpha=[0.5, 1.6])
    oracle = fg.score_embeddings(x[None], config=config, backend="reference")
    scores = baselines.scipy_task(x, (0.5, 1.6))
    for name in ("mst_mean", "pdm_mean", "multiscale"):
        assert getattr(scores, name) == pytest.approx(float(getattr(oracle, name)[0]), abs=1e-9), name
    if kind in ("random", "clustered"):
        # The others' densities have several maxima, and with the mode goes the radius.
        assert scores.mode == pytest.approx(float(oracle.mode[0]), abs=1e-9)
        assert scores.entropy.tolist() == pytest.approx(oracle.entropy[0].tolist(), abs=1e-9)
    assert workloads.disagreement(fg.score_embeddings(x[None], config=config), {0: x}) == ""


@pytest.mark.parametrize("n", [3, 5, 10, 50])
def test_the_released_baseline_is_the_oracle_with_released_semantics(n: int) -> None:
    x = workloads.embeddings(16, n, 64, seed=n)
    config = fg.FaseConfig(semantics="released", alpha=[0.8, 1.6])
    oracle = fg.score_embeddings(x, config=config, backend="reference")
    clear = (oracle.margin * oracle.eps).numpy() > 5e-6
    assert clear.sum() > 24
    found = np.array([baselines.released_sweep(rows, (0.8, 1.6)) for rows in x.numpy()])
    np.testing.assert_allclose(found[clear], oracle.entropy.numpy()[clear], atol=1e-9)
    assert baselines.released(x[0].numpy(), 0.8) == found[0, 0]
    assert len(np.unique(found.round(6))) > 1


@pytest.mark.parametrize(
    ("name", "change"),
    [("mst_mean", 1e-5), ("pdm_mean", 1e-5), ("multiscale", 1e-3), ("mode", 0.02), ("eps", 1e-3), ("entropy", 0.05)],
)
def test_the_check_finds_a_wrong_score(name: str, change: float) -> None:
    x = workloads.embeddings(4, 10, 64)
    result = fg.score_embeddings(x)
    assert workloads.disagreement(result, dict(enumerate(x.numpy()))) == ""
    column = getattr(result, name).clone()
    column[2] += change
    assert workloads.disagreement(replace(result, **{name: column}), dict(enumerate(x.numpy()))).startswith(
        f"task 2: {name}"
    )


def test_the_check_finds_a_task_without_a_score() -> None:
    x = workloads.embeddings(2, 10, 64)
    bad = x.clone()
    bad[1, 3] = float("nan")
    assert "NOT_FINITE" in workloads.disagreement(fg.score_embeddings(bad), dict(enumerate(x.numpy())))


def test_embeddings_have_distances_as_encoders_give() -> None:
    x = workloads.embeddings(64, 10, 384)
    result = fg.score_embeddings(x)
    assert 0.02 < result.pdm_mean.mean() < 0.3
    assert len(result.entropy.unique()) > 3
    again = workloads.embeddings(64, 10, 384)
    assert torch.equal(x, again)


def test_tasks_of_every_place_are_checked() -> None:
    x = workloads.embeddings(1000, 5, 8)
    some = workloads.some_of(x)
    assert {0, 999} < some.keys()
    assert len(some) == 8
    assert all(np.array_equal(rows, x[t]) for t, rows in some.items())
    assert list(workloads.some_of(x[:1])) == [0]


def test_large_inputs_repeat_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "_POOL", 4 * 5 * 8 * 3)
    x = workloads.embeddings(7, 5, 8)
    assert torch.equal(x[:3], x[3:6])
    assert torch.equal(x[0], x[6])
    assert not torch.equal(x[0], x[1])


def test_names_of_cases_are_unique_and_floors_have_cases() -> None:
    names = [case.name for case in cases.cases()]
    assert len(set(names)) == len(names)
    floors = json.loads((ROOT / "benchmarks" / "floors.json").read_text())
    quick = {case.name for case in cases.cases() if case.quick}
    assert floors.keys() <= set(names)
    assert len(floors.keys() & quick) >= 5
    assert all(floor > 0 for least in floors.values() for floor in least.values())


@pytest.mark.parametrize(("floor", "status"), [(2.9, 0), (3.1, 1)])
def test_floors_fail_only_below(command: Run, tmp_path: Path, floor: float, status: int) -> None:
    floors = tmp_path / "floors.json"
    floors.write_text(json.dumps({"toy n=10 d=4": {"other": floor, "absent": 1e9}}))
    result = command([toy()], "--floors", str(floors))
    assert f"toy n=10 d=4 against other: 3, floor {floor:g}" in result.stdout
    assert result.exit_code == status
    assert ("BELOW THE FLOOR" in result.stdout) == bool(status)


def test_a_floor_without_a_case_is_refused(command: Run, tmp_path: Path) -> None:
    floors = tmp_path / "floors.json"
    floors.write_text(json.dumps({"renamed": {"other": 1}}))
    result = command([toy()], "--floors", str(floors))
    assert result.exit_code == 2
    assert "renamed" in result.output


def test_an_exponent_is_the_power() -> None:
    assert report.exponent([(x, 3 * x**1.7) for x in (10, 50, 100)]) == pytest.approx(1.7)


def test_fits_are_of_the_record(record: dict[str, Any]) -> None:
    found = {(fit["along"], fit["at"]) for fit in record["fits"]}
    assert found == {("n", "d = 768"), ("d", "n = 5")}


def test_the_report_writes_between_the_markers_only(record: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason='needs the extra "bench"')
    page = tmp_path / "performance.md"
    page.write_text("By hand.\n<!-- begin stage -->\nold\n<!-- end stage -->\nAlso by hand.\n")
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    result = CliRunner().invoke(main.app, ["report", str(path), "--docs", str(tmp_path)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert text.startswith("By hand.\n<!-- begin stage -->\n")
    assert text.endswith("<!-- end stage -->\nAlso by hand.\n")
    assert "old" not in text
    assert "| stage tree n=10 d=384 |" in text
    plots = sorted(tmp_path.glob("*.svg"))
    assert [plot.name for plot in plots] == [f"performance_{name}.svg" for name in ("batch", "dimensions", "samples")]
    assert all("<svg" in plot.read_text() and "released" in plot.read_text() for plot in plots[1:])
    first = page.read_text()
    CliRunner().invoke(main.app, ["report", str(path), "--docs", str(tmp_path)])
    assert page.read_text() == first


def test_the_report_refuses_a_marker_that_it_does_not_know(record: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "performance.md").write_text("<!-- begin stages -->\n<!-- end stages -->\n")
    with pytest.raises(ValueError, match="unknown blocks stages"):
        report.write(record, tmp_path)


def test_the_page_asks_for_every_group_of_cases() -> None:
    asked = {name for _, name, _ in report._BLOCK.findall((ROOT / "docs" / "performance.md").read_text())}
    groups = {case.group for case in cases.cases()}
    assert groups - {"limit"} <= asked
    assert asked - groups <= {"machine", "versions", "shares", "fits", "grid_released", "grid_scipy"}


def test_records_are_merged_by_case(record: dict[str, Any]) -> None:
    newer = record | {"commit": "newer", "cases": [record["cases"][1] | {"n": 99}]}
    both = report.merged([record, newer])
    assert both["commit"] == "newer"
    assert both["earlier"] == [{name: record[name] for name in ("date", "commit", "changed")}]
    assert f"{record['commit'][:10]}" in report.title(both)
    assert report.merged([both])["earlier"] == both["earlier"]
    assert [entry["n"] for entry in both["cases"][:2]] == [record["cases"][0]["n"], 99]
    assert len(both["cases"]) == len(record["cases"])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is reset on Linux only")
def test_peak_memory_is_of_the_call_alone() -> None:
    # In a process of its own, whose heap holds nothing that was freed before.
    program = """
import json
import numpy as np
from benchmarks import measure
np.ones(40 << 20, np.uint8)  # before, and larger
print(json.dumps(measure.peak_memory(lambda: np.ones(20 << 20, np.uint8), "cpu")))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 18 < found["peak_mb"] - found["before_mb"] < 40


@pytest.mark.slow
def test_the_quick_run_keeps_above_the_floors(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = tmp_path / "quick.json"
    floors = ROOT / "benchmarks" / "floors.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--floors", str(floors), "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(path.read_text())
    assert all(entry["contenders"] for entry in record["cases"])
    assert done.stdout.count(": ok") >= 5
    shutil.rmtree(tmp_path)
