"""Structural classes against an independent, slow comparison of unordered trees."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import programs

from fase_gpu.errors import InputError
from fase_gpu.structural import structural_classes

SIGNIFICANT = {"Import", "FunctionDef", "If", "ClassDef", "While", "For", "comprehension", "Return"}


def same_tree(a: ast.AST, b: ast.AST) -> bool:
    return type(a) is type(b) and same_trees(list(ast.iter_child_nodes(a)), list(ast.iter_child_nodes(b)))


def same_trees(some: list[ast.AST], others: list[ast.AST]) -> bool:
    """Equal as multisets: pair off equal trees until none is left on either side."""
    left = list(others)
    for tree in some:
        match = next((i for i, other in enumerate(left) if same_tree(tree, other)), None)
        if match is None:
            return False
        del left[match]
    return not left


def structurally_equal(a: str, b: str) -> bool:
    trees = [ast.parse(text) for text in (a, b)]
    found = [[node for node in ast.walk(tree) if type(node).__name__ in SIGNIFICANT] for tree in trees]
    if not found[0] and not found[1]:
        return same_tree(*trees)
    return same_trees(*found)


@given(st.lists(programs, min_size=2, max_size=5))
def test_equal_keys_are_equal_structures(texts: list[str]) -> None:
    keys = structural_classes(texts, workers=0).keys
    for i, a in enumerate(texts):
        for j, b in enumerate(texts):
            assert (keys[i] == keys[j]) == structurally_equal(a, b), (a, b)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ("x = 1\ny = f(x)", "z = g(w)\nv = 'text'", True),  # no significant node: whole trees, statements in any order
        ("x = 1", "x = 1 + 1", False),
        ("x = 1", "", False),
        ("", "# only a comment", True),
        ("def f(a):\n    return a + 1", "def g(b):\n    return c - 2", False),  # operators are nodes: Add, Sub
        ("def f(a):\n    return a + 1", "def g(b):\n    return c + 'x'", True),
        ("def f(a):\n    return a + 1", "def g(b):\n    return 2 + c", True),
        ("def f():\n    'doc'\n    return 1", "def f():\n    return 1", False),  # docstrings stay
        ("def f():\n    'doc'\n    return 1", "def f():\n    'other'\n    return 2", True),
        ("async def f():\n    x = 1", "async def g():\n    y = 1; z = 2", False),  # not significant: whole trees
        ("async def f():\n    return 1", "return 1", True),  # only the Return is significant
        ("from a import b\nif x: pass", "from a import c, d\nif x: pass", True),  # ImportFrom is not significant
        ("import a\nif x: pass", "import a, b\nif x: pass", False),
        ("[a for a in b]", "{a for a in b}", True),  # the comprehension node is the same
        ("[a for a in b]", "(c for c in d)", True),
        ("[a for a in b]", "{a: a for a in b}", True),
        ("[a for a in b]", "[a for a in b if a]", False),
        ("if a:\n    return 1", "return 1\nif a:\n    return 1", False),  # a multiset: one Return more
        ("if a:\n    pass\nelse:\n    f()", "if a:\n    f()\nelse:\n    pass", True),  # children in any order
    ],
)
def test_what_counts(a: str, b: str, equal: bool) -> None:
    keys = structural_classes([a, b]).keys
    assert (keys[0] == keys[1]) is equal
    assert structurally_equal(a, b) is equal


def test_unparsable_texts_have_no_key() -> None:
    found = structural_classes(["def f(:", "x = 1", "def f(:", "x = \0"])
    assert found.unparsable == [True, False, True, True]
    assert [bool(key) for key in found.keys] == [False, True, False, False]


def test_keys_are_the_same_on_every_machine() -> None:
    assert structural_classes(["def f(a):\n    return a", "x = 1"]).keys == [
        "6e1d45dd165d430a7c34d1419a9422fb",
        "d82dc0bfe740c436723974f65beb2be0",
    ]


def test_empty_and_wrong_input() -> None:
    assert structural_classes([]) == ([], [])
    with pytest.raises(InputError, match=r"texts\[1\]: expected a string, got NoneType"):
        structural_classes(["x", None])  # type: ignore[list-item]
    with pytest.raises(InputError, match="got one string"):
        structural_classes("x = 1")


def test_needs_no_torch() -> None:
    code = "import sys, fase_gpu.structural as s; s.structural_classes(['x']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
