"""The readers of sample and embedding files: what they take, what they refuse in which words, no text lost."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cases import refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fase_gpu.files import read_embeddings, read_samples

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def write_lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


# Samples


def test_both_forms_of_a_record_append_in_file_order(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "s.jsonl",
        {"task_id": "b", "samples": ["1", "2"], "passed": [True, False], "prompt": "not put before"},
        {"task_id": "a", "solution": "3", "prompt": "not put before"},
        {"task_id": 7, "completion": "  return 4\n", "prompt": "def f():\n"},
        {"task_id": "b", "completion": "5"},
        {"task_id": "7", "samples": [], "solution": "not read"},
        {"task_id": "none", "samples": []},
        {"task_id": "a", "samples": None, "solution": None, "completion": "6", "prompt": None},
    )
    found = read_samples(path)
    assert found.task_ids == ["b", "a", "7", "none"]
    assert found.samples == [["1", "2", "5"], ["3", "6"], ["def f():\n  return 4\n"], []]
    assert (found.replaced_bytes, found.lines) == (0, 7)


texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
ids = st.sampled_from(["a", "b", "HumanEval/0", "é\u2028", ""])
records = st.lists(
    st.one_of(
        st.fixed_dictionaries({"task_id": ids, "samples": st.lists(texts, max_size=3)}),
        st.fixed_dictionaries({"task_id": ids, "solution": texts}),
        st.fixed_dictionaries({"task_id": ids, "completion": texts}, optional={"prompt": texts}),
    ),
    min_size=1,
)


@given(records, st.sampled_from(["\n", "\r\n", "\n \n"]), st.booleans(), st.booleans(), st.booleans())
@same_folder
def test_jsonl_gives_the_texts_that_a_dict_would(
    tmp_path: Path, records: list[dict[str, Any]], newline: str, escaped: bool, packed: bool, bom: bool
) -> None:
    expected: dict[str, list[str]] = {}
    for record in records:
        one = [record.get("prompt", "") + record["completion"]] if "completion" in record else [record.get("solution")]
        expected.setdefault(record["task_id"], []).extend(record.get("samples", one))
    data = newline.join(json.dumps(record, ensure_ascii=escaped) for record in records).encode()
    data = b"\xef\xbb\xbf" + data if bom else data
    path = tmp_path / "s.jsonl"
    path.write_bytes(gzip.compress(data) if packed else data)
    found = read_samples(path)
    assert (found.task_ids, found.samples) == (list(expected), list(expected.values()))
    assert (found.replaced_bytes, found.lines) == (0, len(records))


@pytest.mark.parametrize(
    ("line", "text", "replaced"),
    [
        (b'{"task_id": "t", "solution": "a\xffb"}', "a\ufffdb", 1),
        (b'{"task_id": "t", "solution": "a\xe2\x82"}', "a\ufffd\ufffd", 2),
        (b'{"task_id": "t", "solution": "\\ud800!"}', "\ufffd!", 1),
        (b'{"task_id": "t", "solution": "\\ud83d\\ude00"}', "\N{GRINNING FACE}", 0),
        (b'{"task_id": "t", "solution": "\xef\xbf\xbd"}', "\ufffd", 0),
        (b'{"task_id": "t", "completion": "b", "prompt": "\xff"}', "\ufffdb", 1),
        (b'{"task_id": "t", "solution": "b", "note": "\xff"}', "b", 0),
    ],
)
def test_what_is_not_unicode_is_replaced_and_counted(tmp_path: Path, line: bytes, text: str, replaced: int) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(line)
    found = read_samples(path)
    assert (found.samples, found.replaced_bytes) == ([[text]], replaced)
    found.samples[0][0].encode()


def test_a_task_id_that_is_not_unicode_is_replaced_too(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b'{"task_id": "t\xff", "solution": ""}')
    found = read_samples(path)
    assert (found.task_ids, found.replaced_bytes) == (["t\ufffd"], 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("task_id,solution", "not JSON: Expecting value at column 1"),
        ('{"task_id": "t", ', "not JSON: .* at column 17; expected an object a line"),
        ("[1]", "expected an object a line, got a list"),
        ("3", "expected an object a line, got a number"),
        ("null", "expected an object a line, got null"),
        ("[" * 100_000, "not usable JSON: .*recursion"),
        ('{"task_id": 1%s}' % ("0" * 5000), "not usable JSON: .*digits"),
        ('{"id": 1, "solution": ""}', "no task_id; fields: id, solution"),
        ("{}", "no task_id; fields: none"),
        ('{"task_id": null, "solution": ""}', "task_id is null; fields: task_id, solution"),
        ('{"task_id": 1.5, "solution": ""}', "task_id: expected a string or an integer, got 1.5"),
        ('{"task_id": true, "solution": ""}', "task_id: expected a string or an integer, got True"),
        ('{"task_id": "t", "code": ""}', "task 't': no samples, solution or completion; fields: task_id, code"),
        ('{"task_id": "t", "samples": null}', "task 't': samples is null"),
        ('{"task_id": "t", "samples": "x"}', "task 't': samples: expected a list of strings, got a string"),
        ('{"task_id": "t", "samples": ["x", 3]}', r"task 't': samples\[1\]: expected a string, got a number"),
        ('{"task_id": "t", "samples": [null]}', r"task 't': samples\[0\]: expected a string, got null"),
        ('{"task_id": "t", "solution": ["x"]}', "task 't': solution: expected a string, got a list"),
        ('{"task_id": "t", "completion": {}}', "task 't': completion: expected a string, got an object"),
        ('{"task_id": "t", "completion": "x", "prompt": 1}', "task 't': prompt: expected a string, got a number"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"task_id": "ok", "solution": ""}\n\n' + line + "\n")
    assert re.match(rf"{path}:3: {message}", refused(lambda: read_samples(path)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\n \r\n", "has no records, expected an object a line"),
        (b"\xef\xbb\xbf", "has no records, expected an object a line"),
        ("{}".encode("utf-16"), "expected UTF-8, got UTF-16"),
        (b"\x93NUMPY\x01\x00", "expected JSONL or Parquet, got NumPy data (embeddings need --embeddings)"),
        (b"\x1f\x8b", "gzip data is cut off after line 0"),
        (b"\x1f\x8b\x00\x00\x00\x00\x00\x00\x00\x00\x00", "gzip data is damaged after line 0: Unknown compression"),
        (gzip.compress(b'{"task_id": 1, "solution": ""}\n' * 9)[:-9], "gzip data is cut off after line 9"),
        (b"PAR1 and nothing more", "Parquet data is damaged after row 0: "),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "s"
    path.write_bytes(data)
    assert refused(lambda: read_samples(path)).startswith(f"{path}: {message}")


@pytest.mark.parametrize("read", [read_samples, read_embeddings])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    assert refused(lambda: read(tmp_path / "no")) == f"{tmp_path}/no: no such file"
    assert refused(lambda: read(tmp_path)) == f"{tmp_path}: is a folder, expected a file"


def test_damage_in_the_middle_of_gzip_data_is_an_error(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(json.dumps({"task_id": 1, "solution": os.urandom(9999).hex()}).encode()))
    data[len(data) // 2] ^= 255
    path = tmp_path / "s.gz"
    path.write_bytes(data)
    assert "gzip data is damaged" in refused(lambda: read_samples(path))


def test_samples_come_through_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    line = gzip.compress(json.dumps({"task_id": 1, "solution": "x" * 100_000}).encode())
    script = f"import sys; open({str(path)!r}, 'wb').write(sys.stdin.buffer.read())"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        writer.stdin.write(line)
        writer.stdin.close()
        assert read_samples(path).samples == [["x" * 100_000]]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view(), pa.binary()], ids=str)
@pytest.mark.parametrize("many", [pa.list_, pa.large_list, pa.list_view])
def test_parquet_of_samples(tmp_path: Path, text: Any, many: Callable[[Any], Any]) -> None:
    samples = [["x", "é"], [], ["z"]]
    columns = {
        "other": pa.array([1, 2, 3]),
        "samples": pa.array(samples, type=many(text)),
        "task_id": pa.array(["b", "a", "b"], type=text),
    }
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    found = read_samples(tmp_path / "s.parquet")
    assert (found.task_ids, found.samples) == (["b", "a"], [["x", "é", "z"], []])
    assert (found.replaced_bytes, found.lines) == (0, 3)


def test_parquet_of_one_sample_a_row(tmp_path: Path) -> None:
    columns = {
        "task_id": pa.array([3, 2, 3]),
        "solution": pa.array(["x", None, None]),
        "completion": pa.array(["not read", "y", "y"]).dictionary_encode(),
        "prompt": pa.array(["not put before", "p", None]),
    }
    pq.write_table(pa.table(columns), tmp_path / "s.parquet", row_group_size=1)
    found = read_samples(tmp_path / "s.parquet")
    assert (found.task_ids, found.samples) == (["3", "2"], [["x", "y"], ["py"]])


@pytest.mark.parametrize("many", [pa.list_, pa.large_list, lambda text: pa.list_(text, 1)])
def test_parquet_text_that_is_not_unicode_is_replaced_and_counted(tmp_path: Path, many: Callable[[Any], Any]) -> None:
    def unchecked(values: Any) -> Any:
        return values.view(pa.string())

    bad = unchecked(pa.array([b"ok", b"a\xffb"], type=pa.binary()))
    lists = pa.ListArray.from_arrays([0, 1, 2], bad)
    pq.write_table(
        pa.table({"task_id": unchecked(pa.array([b"t", b"\xfe"])), "samples": lists.cast(many(pa.string()))}),
        tmp_path / "s.parquet",
    )
    found = read_samples(tmp_path / "s.parquet")
    assert (found.task_ids, found.samples) == (["t", "\ufffd"], [["ok"], ["a\ufffdb"]])
    assert found.replaced_bytes == 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": [1], "solution": ["x"]}, ": no task_id column; columns: id, solution"),
        ({"task_id": [1]}, ": row 1: task '1': no samples, solution or completion; fields: task_id"),
        ({"task_id": [1, None], "solution": ["x", "y"]}, ": row 2: task_id is null; fields: task_id, solution"),
        ({"task_id": [1.0], "solution": ["x"]}, ": row 1: task_id: expected a string or an integer, got 1.0"),
        ({"task_id": ["t"], "samples": [[1]]}, ": row 1: task 't': samples[0]: expected a string, got a number"),
        ({"task_id": ["t"], "samples": [["x", None]]}, ": row 1: task 't': samples[1]: expected a string, got null"),
        ({"task_id": ["t"], "solution": [None]}, ": row 1: task 't': solution is null; fields: task_id, solution"),
        ({"task_id": [], "solution": []}, ": has no records, expected an object a line"),
    ],
)
def test_bad_parquet_is_named(tmp_path: Path, columns: dict[str, list[Any]], message: str) -> None:
    path = tmp_path / "s.parquet"
    pq.write_table(pa.table(columns), path)
    assert refused(lambda: read_samples(path)) == f"{path}{message}"


@pytest.mark.shared
def test_the_real_sample_sets_have_the_documented_tasks(shared_data: Path) -> None:
    for path in sorted(shared_data.glob("samples/*.jsonl")):
        found = read_samples(path)
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert found.task_ids == [row["task_id"] for row in rows]
        assert found.samples == [row["samples"] for row in rows]


# Embeddings


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
def test_padded_embeddings(tmp_path: Path, dtype: str) -> None:
    x = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    np.save(tmp_path / "e.npy", np.asfortranarray(x))
    np.savez_compressed(tmp_path / "e.npz", x=x, n_samples=np.array([3, 1], "u1"), task_id=np.array(["b", "a"]))
    plain, named = read_embeddings(tmp_path / "e.npy"), read_embeddings(tmp_path / "e.npz")
    for found in (plain, named):
        assert len(found) == 2
        assert torch.equal(torch.from_numpy(found.x), torch.from_numpy(x.astype(x.dtype.newbyteorder("="))))
    assert (plain.n_samples, plain.offsets, plain.task_ids) == (None, None, None)
    assert named.n_samples is not None
    assert (named.n_samples.tolist(), named.n_samples.dtype.name) == ([3, 1], "int64")
    assert named.task_ids == ["b", "a"]


@pytest.mark.parametrize(
    ("task_ids", "expected"),
    [([7, 8], ["7", "8"]), ([b"\xc3\xa9", b"b"], ["é", "b"]), (["\ud800", "b"], ["\ufffd", "b"])],
)
def test_packed_embeddings(tmp_path: Path, task_ids: list[Any], expected: list[str]) -> None:
    x = np.ones((5, 2), "f4")
    np.savez(tmp_path / "e.npz", embeddings=x, offsets=[0, 2, 5], task_ids=np.array(task_ids))
    found = read_embeddings(tmp_path / "e.npz")
    assert (len(found), found.x.shape, found.task_ids) == (2, (5, 2), expected)
    assert found.offsets is not None
    assert found.offsets.tolist() == [0, 2, 5]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"vectors": np.ones(3)}, "no array named embeddings (or x); names in the file: vectors"),
        ({}, "no array named embeddings (or x); names in the file: none"),
        ({"x": np.ones((3, 2))}, "embeddings: expected [T, N, d] or packed [S, d] with offsets, got shape (3, 2)"),
        ({"x": np.ones((1, 3, 2)), "offsets": [0, 3]}, "embeddings: expected [T, N, d] or packed [S, d] with offsets"),
        ({"x": np.ones((1, 3, 2), int)}, "embeddings: expected float16, float32 or float64, got int64"),
        ({"x": np.ones((1, 3, 2)), "n_samples": [1.5]}, "n_samples: expected integers, one axis, got float64 of"),
        (
            {"x": np.ones((3, 2)), "offsets": [[0, 3]]},
            "offsets: expected integers, one axis, got int64 of shape (1, 2)",
        ),
        ({"x": np.ones((1, 3, 2)), "task_id": ["a", "b"]}, "task_id: expected one for each of 1 tasks, got 2"),
        ({"x": np.ones((1, 3, 2)), "task_id": [0.5]}, "task_id: expected strings or integers, one axis, got float64"),
        ({"x": np.array([[["a", 1]]], object)}, "cannot be read as NumPy data: Object arrays cannot be loaded"),
    ],
)
def test_bad_embeddings_are_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "e.npz"
    np.savez(path, **arrays)
    assert refused(lambda: read_embeddings(path)).startswith(f"{path}: {message}")


@pytest.mark.parametrize("keep", [3, 20, 300])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_embeddings_that_are_cut_off_are_an_error(tmp_path: Path, suffix: str, keep: int) -> None:
    path = tmp_path / f"e{suffix}"
    x = np.ones((2, 10, 20), "f4")
    if suffix == ".npy":
        np.save(path, x)
    else:
        np.savez(path, x=x)
    path.write_bytes(path.read_bytes()[:keep])
    assert refused(lambda: read_embeddings(path)).startswith(f"{path}: ")
