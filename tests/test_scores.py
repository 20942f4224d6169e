"""The writer of score files: the formats, what it refuses in which words, and that no file is ever half there."""

from __future__ import annotations

import csv
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cases import refused

from fase_gpu.config import FaseConfig
from fase_gpu.files import check_output, write_scores
from fase_gpu.results import FaseResult, RunInfo, Status

nan = float("nan")


def made_result(tasks: int, alphas: int | None = None, labels: bool = True) -> FaseResult:
    """A result with recognisable numbers: task 0 has a score, task 1 is SINGLE, and so on in turn."""
    status = torch.arange(tasks, dtype=torch.int8) % 2 * Status.SINGLE
    task = torch.where(status == Status.OK, torch.arange(tasks) + 0.1, nan).float()
    swept = task if alphas is None else task[:, None] * torch.arange(1, alphas + 1)
    classes = torch.zeros(swept.shape, dtype=torch.int32)
    return FaseResult(
        *(swept, swept, task, swept, task, task, task, swept),
        n_samples=2 - status // Status.SINGLE,
        n_clusters=classes,
        status=status,
        labels=torch.zeros((*classes.shape, 2), dtype=torch.int32) if labels else None,
        config=FaseConfig(alpha=1.6 if alphas is None else tuple(range(1, alphas + 1))),
        info=RunInfo(backend="torch", encoder="ast", samples=3, seconds={"score": 0.5}),
    )


@pytest.mark.parametrize("alphas", [None, 3])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".jsonl.gz", ".csv", ".CSV"])
def test_scores_round_trip(tmp_path: Path, suffix: str, alphas: int | None) -> None:
    result = made_result(5, alphas)
    task_ids = ["a", 'q"uo,te', "new\nline", "é\ud800", ""]
    path = tmp_path / f"scores{suffix}"
    write_scores(path, result, task_ids)

    rows: list[dict[str, Any]]
    if suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
    elif suffix.lower() == ".csv":
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        for row in rows:
            row["labels"] = json.loads(row["labels"])
            row["entropy"] = json.loads(row["entropy"]) if alphas else float(row["entropy"])
    else:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if suffix.endswith("gz") else data).decode().split("\n")
        assert lines.pop() == ""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        rows = [json.loads(line, parse_constant=refuse) for line in lines]

    columns = result.to_dict()
    assert list(rows[0]) == ["task_id", *columns]
    assert [row["task_id"] for row in rows] == ["a", 'q"uo,te', "new\nline", "é\ufffd", ""]
    assert [row["labels"] for row in rows] == columns["labels"]
    assert [row["status"] for row in rows] == columns["status"]
    found = np.array([row["entropy"] for row in rows], dtype=np.float32)
    np.testing.assert_array_equal(found, result.entropy.numpy())


def test_text_has_the_shortest_digits_of_a_float32(tmp_path: Path) -> None:
    write_scores(tmp_path / "s.csv", made_result(1), ["t"])
    assert (tmp_path / "s.csv").read_text().splitlines()[1] == 't,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,2,0,OK,"[0, 0]"'
    write_scores(tmp_path / "s.jsonl", made_result(2, labels=False), ["t", "u"])
    scored, single = (json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines())
    assert (scored["entropy"], single["entropy"], single["status"]) == (0.1, None, "SINGLE")
    assert "labels" not in scored


def test_parquet_carries_how_it_was_made(tmp_path: Path) -> None:
    write_scores(tmp_path / "s.parquet", made_result(2), ["t", "u"], {"replaced_bytes": 3})
    table = pq.read_table(tmp_path / "s.parquet")
    facts = json.loads(table.schema.metadata[b"fase_gpu"])
    assert facts["config"]["alpha"] == 1.6
    assert (facts["run"]["encoder"], facts["run"]["samples"], facts["replaced_bytes"]) == ("ast", 3, 3)
    assert facts["versions"]["torch"] == torch.__version__
    assert (table.schema.field("entropy").type, table.schema.field("task_id").type) == (pa.float32(), pa.string())
    assert table.schema.field("labels").type == pa.list_(pa.int32())


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv"])
def test_no_tasks_is_a_file_without_rows(tmp_path: Path, suffix: str) -> None:
    write_scores(tmp_path / f"s{suffix}", made_result(0), [])
    assert (tmp_path / f"s{suffix}").exists()


def test_an_output_that_cannot_be_is_refused_before_the_work(tmp_path: Path) -> None:
    taken = tmp_path / "taken.csv"
    taken.write_text("mine")
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    for name, message in {
        "s.txt": "expected a name that ends in .parquet, .jsonl, .jsonl.gz, .csv",
        "folder.csv": "is a folder, expected a file name",
        "pipe.csv": "exists and is not a regular file",
        "taken.csv": "exists already (--overwrite replaces it)",
        "no/s.csv": f"the folder {tmp_path}/no does not exist",
    }.items():
        path = tmp_path / name
        for call in (partial(check_output, path), partial(write_scores, path, made_result(1), ["t"])):
            assert refused(call) == f"{path}: {message}"
    assert taken.read_text() == "mine"
    assert refused(lambda: write_scores(taken, made_result(2), ["t"], overwrite=True)) == (
        "task_ids: expected one for each of 2 tasks, got 1"
    )
    write_scores(taken, made_result(1), ["t"], overwrite=True)
    assert taken.read_text().startswith("task_id,")
    assert refused(lambda: check_output("/proc/s.csv")).startswith(
        "/proc/s.csv: the folder /proc cannot be written to: "
    )
    assert sorted(os.listdir(tmp_path)) == ["folder.csv", "pipe.csv", "taken.csv"]


def test_a_file_that_appears_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.csv"
    sync = os.fsync

    def late(descriptor: int) -> None:
        path.write_text("mine")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", late)
    assert "appeared during the run" in refused(lambda: write_scores(path, made_result(1), ["t"]))

    def no_links(*_: object) -> None:
        raise PermissionError

    path.unlink()
    monkeypatch.setattr(os, "link", no_links)
    assert "exists already" in refused(lambda: write_scores(path, made_result(1), ["t"]))
    assert (path.read_text(), os.listdir(tmp_path)) == ("mine", ["s.csv"])
    monkeypatch.undo()
    monkeypatch.setattr(os, "link", no_links)
    path.unlink()
    write_scores(path, made_result(1), ["t"])
    assert os.listdir(tmp_path) == ["s.csv"]


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_scores(tmp_path / "s.csv", made_result(1), ["t"])
    finally:
        os.umask(before)
    assert (tmp_path / "s.csv").stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    for overwrite in (False, True):
        write_scores(tmp_path / "link.csv", made_result(1), ["t"], overwrite=overwrite)
        assert (tmp_path / "link.csv").is_symlink()
        assert not (tmp_path / "real.csv").is_symlink()


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".jsonl.gz", ".csv"])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError("disk full")])
def test_a_write_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException, suffix: str
) -> None:
    def fail(descriptor: int) -> None:
        assert len(os.listdir(tmp_path)) == 1
        raise stop

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, OSError)):
        write_scores(tmp_path / f"s{suffix}", made_result(1), ["t"])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".jsonl.gz", ".csv"])
def test_a_full_disk_is_an_oserror_and_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_scores(tmp_path / f"s{suffix}", made_result(999), [str(i) for i in range(999)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


def test_a_killed_writer_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("before")
    script = """
        import os, signal, sys
        from test_scores import made_result, write_scores
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
        write_scores(sys.argv[1], made_result(9), ["t"] * 9, overwrite=True)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), path], cwd=Path(__file__).parent, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "before"
