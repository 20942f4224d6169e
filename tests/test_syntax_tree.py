"""The `ast` encoder, normalize_code, and the workers that read texts for them."""

from __future__ import annotations

import ast
import collections
import hashlib
import math
import re
import shutil
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import programs

from fase_gpu.encode import Encoding, _canonical, _reading, _syntax_tree, load_encoder, normalize_code
from fase_gpu.encode._canonical import canonical
from fase_gpu.encode._reading import read_each
from fase_gpu.encode._syntax_tree import features, normalized, structure
from fase_gpu.errors import BackendError, InputError

GOOD = "def f(a):\n    '''Doc.'''\n    return [x.pop() for x in a if x]  # last\n"
HOSTILE = {
    "null byte": "x = 1\0",
    "lone surrogate": "x = '\ud800'",
    "surrogate escape": "x = '\\ud800'",
    "open brackets": "(" * 5000,
    "closed brackets": "(" * 150 + ")" * 150,
    "unary": "not " * 5000 + "a",
    "sum": "+".join(["1"] * 50_000),
    "elif": "if a: pass\n" + "elif a: pass\n" * 3000,
    "indented": "".join(" " * i + "if a:\n" for i in range(150)) + " " * 150 + "pass",
    "long": "x = 1\n" * 20_000,
    "huge integer": "x = 0x" + "f" * 10_000,
    "decimal integer": "x = " + "9" * 10_000,
    "float overflow": "x = 1e999",
    "bad escape": "x = '\\d'",
    "is literal": "x is 1\nassert (x, 'y')",
    "cookie": "# coding: latin-1\nx = 'é'",
    "byte order mark": "\ufeffx = 1",
    "carriage returns": "x = 1\ry = 2\r\nz = 3",
    "tabs and spaces": "if a:\n\tb\n        c",
    "not code": "Sure! Here is the function:\n```python\ndef f(): pass\n```",
    "another alphabet": "def f(:\n переменная = 変数 ½",
    "only spaces": " \n\t\n\f",
    "odd spaces": "\u3000\u2028",
}


def encode(texts: list[str], workers: int | None = 0) -> Encoding:
    return load_encoder("ast", device="cpu", workers=workers).encode(texts)


def slow_vector(text: str) -> list[float]:
    """SPEC 11 read once more, of the program in its one form: recursive, a feature at a time."""

    def digest(data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=16).digest()

    counts: collections.Counter[bytes] = collections.Counter()

    def visit(node: ast.AST) -> bytes:
        label = type(node).__name__.encode() + b"\0"
        if isinstance(node, ast.Constant):
            value = node.value
            shown = hex(value) if type(value) is int else value if isinstance(value, str) else repr(value)
            label += type(value).__name__.encode() + b"\0" + (value if isinstance(value, bytes) else shown.encode())
        if isinstance(node, ast.Attribute):
            label += node.attr.encode() + b"\0"
        children = list(ast.iter_child_nodes(node))
        forms = [visit(child) for child in children]
        form = digest(label + b"".join(forms if isinstance(node, ast.IfExp) else sorted(forms)))
        counts[form] += 1
        counts[digest(b"#" + label)] += 1
        return form

    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            while node.body and re.match(r"Expr\(value=Constant\(value=['\"]", ast.dump(node.body[0])):
                node.body.pop(0)
            if not node.body and not isinstance(node, ast.Module):
                node.body.append(ast.Pass())
    canonical(tree)
    visit(tree)
    vector = [0.0] * 2048
    for feature, count in counts.items():
        bits = int.from_bytes(feature[:8], "little")
        vector[bits % 2048] += math.sqrt(count) * (1 if bits >> 63 else -1)
    length = math.sqrt(math.fsum(v * v for v in vector))
    return [v / length for v in vector]


@given(programs)
def test_equals_the_plain_reading_of_the_specification(text: str) -> None:
    found = encode([text])
    assert found.unparsable == [False]
    torch.testing.assert_close(found.vectors[0], torch.tensor(slow_vector(text)), rtol=0, atol=1e-6)


def test_vectors_are_the_same_on_every_machine() -> None:
    """Values of `slow_vector`, and for the last text the same from its five bigrams, on CPython 3.11."""
    vectors = encode(["", "x = 1.5", "def f(:"]).vectors
    found = [{i: round(v, 5) for i, v in enumerate(row) if v} for row in vectors.tolist()]
    half, tenth, fifth = 0.70711, 0.31623, 0.44721
    assert found[0] == {1420: -half, 1555: half}
    signs = {192: 1, 476: 1, 739: 1, 915: -1, 1049: -1, 1500: -1, 1555: 1, 1580: 1, 1914: -1, 1995: -1}
    assert found[1] == {position: sign * tenth for position, sign in signs.items()}
    assert found[2] == {662: -fifth, 719: fifth, 1276: -fifth, 1424: -fifth, 2007: -fifth}


@given(programs)
def test_names_do_not_count(text: str) -> None:
    renamed = re.sub(r"\b([abc])\b(?!')", r"some_\1", text)
    found = encode([text, renamed]).vectors
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)


def test_what_counts() -> None:
    def cosine(a: str, b: str) -> float:
        one, two = encode([a, b]).vectors
        return float(one @ two)

    assert cosine("def f(a):\n    return a", "# note\ndef g(b):\n    '''Doc.'''\n    return b  # note") > 1 - 1e-6
    assert cosine("def f():\n    '''Doc.'''", "def f(): pass") > 1 - 1e-6
    assert cosine("x = 1", "x = 2") < 1 - 1e-3
    assert cosine("x = 1", "x = True") < 1 - 1e-3
    assert cosine("x = 1", "x = 1.0") < 1 - 1e-3
    assert cosine("x = 'a'", "x = b'a'") < 1 - 1e-3
    assert cosine("x.append(y)", "x.remove(y)") < 1 - 1e-3
    assert abs(cosine("def f(a): return a", "def f(a): return a)")) < 0.1  # a tree and bigrams share nothing


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_has_a_vector_and_harms_no_neighbour(name: str) -> None:
    alone = encode([GOOD])
    found = encode([GOOD, HOSTILE[name], GOOD])
    assert torch.equal(found.vectors[0], alone.vectors[0])
    assert torch.equal(found.vectors[2], alone.vectors[0])
    assert (found.unparsable[0], found.unparsable[2]) == (False, False)
    assert found.truncated == [False] * 3
    assert float(found.vectors[1].norm()) == pytest.approx(1, abs=1e-6)
    assert normalize_code(GOOD) == "def f(a):\n    return [x.pop() for x in a if x]"


def test_which_hostile_texts_parse() -> None:
    found = encode(list(HOSTILE.values()))
    parsable = {name for name, bad in zip(HOSTILE, found.unparsable, strict=True) if not bad}
    assert parsable == {
        "surrogate escape",
        "closed brackets",
        "long",
        "huge integer",
        "float overflow",
        "bad escape",
        "is literal",
        "cookie",
        "carriage returns",
        "only spaces",
    }


@given(st.text())
def test_any_text_has_a_unit_vector(text: str) -> None:
    assert float(encode([text]).vectors.norm()) == pytest.approx(1, abs=1e-6)


def test_features_that_cancel_leave_no_zero_vector() -> None:
    from fase_gpu.encode.syntax_tree import _unit_vectors

    plus, minus = (bits.to_bytes(8, "little") + bytes(8) for bits in (5 | 1 << 63, 5))
    cancelling = (plus + minus, bytes([1, 0, 0, 0] * 2), False)
    dense = _unit_vectors([cancelling, features("x = 1")])
    assert dense[0].nonzero()[0].tolist() == [0]
    assert (dense[1] == _unit_vectors([features("x = 1")])[0]).all()


@pytest.mark.parametrize("depth", [_syntax_tree.MAX_DEPTH, _syntax_tree.MAX_DEPTH + 1])
def test_depth_limit_does_not_depend_on_the_caller(depth: int) -> None:
    text = "not " * (depth - 4) + "a"  # a level each, beside Module, Expr, Name and Load

    def deep(levels: int) -> Encoding:
        return deep(levels - 1) if levels else encode([text])

    assert encode([text]).unparsable == deep(600).unparsable == [depth > _syntax_tree.MAX_DEPTH]


@pytest.mark.parametrize("job", [features, structure, normalized])
def test_same_in_this_process_and_in_workers(job: _reading.Job[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reading, "CHARS_PER_CHUNK", 300)
    texts = [*HOSTILE.values(), GOOD, "", *(f"x = {i}\nif x: y.a{i % 7}()" for i in range(100))]
    here = read_each(job, texts, 0)
    assert here == read_each(job, texts, 1) == read_each(job, texts, 3)
    assert read_each(job, [], 2) == []


def test_workers_start_where_there_is_work_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = _reading._Worker.__init__

    def counted(self: _reading._Worker) -> None:
        started.append(self)
        start(self)

    monkeypatch.setattr(_reading._Worker, "__init__", counted)
    monkeypatch.setattr(_reading, "_cores", lambda: 2)
    texts = [f"x = {i}" for i in range(100)]
    expected = encode(texts, 0)
    assert torch.equal(encode(texts, None).vectors, expected.vectors)
    assert started == []
    monkeypatch.setattr(_reading, "CHARS_PER_WORKER", 100)
    monkeypatch.setattr(_reading, "CHARS_PER_CHUNK", 50)
    assert torch.equal(encode(texts, None).vectors, expected.vectors)
    assert len(started) == 2


def test_text_that_kills_its_worker_counts_as_unparsable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killer = tmp_path / "killer.py"
    shutil.copy(_canonical.__file__, tmp_path)
    source = Path(_syntax_tree.__file__).read_text(encoding="utf-8")
    trap = '    if "killer" in text:\n        signal.raise_signal(signal.SIGSEGV)\n    try:\n        tree ='
    killer.write_text(source.replace("    try:\n        tree =", trap), encoding="utf-8")
    monkeypatch.setattr(_syntax_tree, "__file__", str(killer))
    texts = [f"x = {i}" for i in range(40)]
    texts[17] = "killer = 1"
    texts[23] = "killer.two()"
    found = encode(texts, 2)
    assert [i for i, bad in enumerate(found.unparsable) if bad] == [17, 23]
    assert read_each(normalized, texts, 2)[17] == ("killer = 1", True)
    assert read_each(structure, texts, 2)[23] is None
    good = [i for i in range(40) if i not in (17, 23)]
    assert torch.equal(found.vectors[good], encode([texts[i] for i in good]).vectors)
    assert torch.equal(found.vectors[17:18], encode(["killer = 1)"]).vectors) is False
    assert float(found.vectors[17].norm()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("program", ["does-not-exist", "/bin/false"])
def test_workers_that_cannot_start(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(BackendError, match="syntax-tree worker"):
        encode(["x = 1"], 1)


def test_warning_filters_stay_as_they_were_under_threads() -> None:
    import warnings

    before = list(warnings.filters)
    results: list[list[bool]] = []
    threads = [
        threading.Thread(target=lambda: results.append(encode([HOSTILE["bad escape"]]).unparsable)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[False]] * 8
    assert list(warnings.filters) == before


@given(programs)
def test_normalized_program_is_the_same_tree_and_settles(text: str) -> None:
    once = normalize_code(text)
    assert normalize_code(once) == once
    assert "#" not in once
    assert '"""' not in once
    assert torch.equal(encode([once]).vectors, encode([text]).vectors)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("# nothing else\n", ""),
        ("'''Module.'''\nx=1", "x = 1"),
        ("def f():\n  'Doc.'\n  'Another.'", "def f():\n    pass"),
        ("class C:\n  'Doc.'\n  x = 1 # one", "class C:\n    x = 1"),
        ("if a:\n  'Not a docstring.'", "if a:\n    'Not a docstring.'"),
        ("try:\n  a\nexcept E:\n  def f():\n    'Doc.'", "try:\n    a\nexcept E:\n\n    def f():\n        pass"),
        ("match a:\n  case 1:\n    def f(): 'Doc.'", "match a:\n    case 1:\n\n        def f():\n            pass"),
        ("def f(:  # broken", "def f(:  # broken"),
        ("x = 0x" + "f" * 10_000 + " # too long to print", "x = 0x" + "f" * 10_000 + " # too long to print"),
    ],
)
def test_normalize_code(text: str, expected: str) -> None:
    assert normalize_code(text) == expected


@pytest.mark.parametrize(
    "nested",
    [
        lambda n: "not " * n + "a",
        lambda n: "lambda a: " * n + "a",
        lambda n: "a if b else " * n + "a",
        lambda n: "**".join("a" * n),
        lambda n: "a" + ".b" * n,
        lambda n: "f(x=" * (n // 2) + "a" + ")" * (n // 2),
        lambda n: "{a: " * n + "a" + "}" * n,
        lambda n: "[" * n + "a" + "]" * n,
        lambda n: "(a for a in " * (n // 2) + "a" + ")" * (n // 2),
        lambda n: "".join(" " * i + "while a:\n" for i in range(n * 2 // 3)) + " " * (n * 2 // 3) + "a",
        lambda n: "match a:\n case " + "{1: " * (n - 10) + "a" + "}" * (n - 10) + ": a",
        lambda n: "match a:\n case " + "C(k=" * (n - 10) + "a" + ")" * (n - 10) + ": a",
    ],
)
def test_prints_up_to_its_depth_limit(nested: collections.abc.Callable[[int], str]) -> None:
    text = nested(_syntax_tree.MAX_PRINTED_DEPTH - 5)
    printed = normalize_code(text + "  # comment")
    assert "#" not in printed
    assert ast.dump(ast.parse(printed)) == ast.dump(ast.parse(text))


def test_deeper_programs_are_left_as_they_are() -> None:
    text = "not " * _syntax_tree.MAX_PRINTED_DEPTH + "a  # comment"
    assert normalize_code(text) == text
    assert encode([text]).unparsable == [False]


@settings(max_examples=20)
@given(st.lists(programs | st.text(max_size=5), max_size=6))
def test_equal_texts_have_equal_vectors_in_input_order(texts: list[str]) -> None:
    found = encode([*texts, *texts])
    assert found.vectors.shape == (2 * len(texts), 2048)
    assert found.vectors.dtype == torch.float32
    assert torch.equal(found.vectors[: len(texts)], found.vectors[len(texts) :])
    for i, text in enumerate(texts):
        assert torch.equal(found.vectors[i], encode([text]).vectors[0])


def test_wrong_input() -> None:
    with pytest.raises(InputError, match=r"texts\[2\]: expected a string, got int"):
        encode(["x", "y", 3])  # type: ignore[list-item]
    with pytest.raises(InputError, match="text: expected a string, got bytes"):
        normalize_code(b"x")  # type: ignore[arg-type]
