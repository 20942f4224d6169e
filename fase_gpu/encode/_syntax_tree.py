"""What is read off one program's syntax tree, and the process that reads many of them.

Standard library and `_canonical.py` only, and no import of fase_gpu in the worker: `_reading.py` runs this very file as
the worker process, which starts in about 30 ms where an import of torch takes seconds.
"""

from __future__ import annotations

import ast
import os
import pickle
import re
import signal
import sys
import threading
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

if TYPE_CHECKING or __name__ != "__main__":
    from fase_gpu.encode._canonical import TooDeepError, canonical
else:  # the worker, whose path is isolated: behind everything else, so that nothing there can hide a standard module
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from _canonical import TooDeepError, canonical

Features: TypeAlias = tuple[bytes, bytes, bool]
"""(16-byte digests, their uint32 counts, the text does not parse) of one text.

A plain tuple: a class defined here would be pickled as the worker's `__main__`."""
Node: TypeAlias = tuple[ast.AST, int]
R = TypeVar("R")

MAX_DEPTH: Final = 1000
"""A deeper tree counts as not parsable. Python's own limit lies near 3000 levels, moves with the version, the recursion
limit and the depth of the caller, and would make a text's vector depend on them. Real samples reach 22 levels."""
MAX_PRINTED_DEPTH: Final = 150
"""ast.unparse spends up to 6 of Python's 1000 frames on a level; a deeper program is left as it is."""

_DEFINITIONS: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS: Final = ("body", "orelse", "finalbody", "handlers", "cases")
_SIGNIFICANT: Final = (
    ast.Import,
    ast.FunctionDef,
    ast.If,
    ast.ClassDef,
    ast.While,
    ast.For,
    ast.comprehension,
    ast.Return,
)
_CONDITIONAL: Final = b"IfExp\0"
# ASCII classes only, because what \w and \s match beyond ASCII changes with Python's Unicode version.
_TOKEN: Final = re.compile(r"(?:\w|[^\x00-\x7f])+|\S", re.ASCII)
_one_reader = threading.Lock()


def features(text: str, readable: bool = True) -> Features:
    """Counts of every canonical subtree and every node type (SPEC 11) of the program in its one form (`_canonical.py`),
    or of token bigrams where it does not parse."""
    nodes = _read(text, docstrings=False, one_form=True) if readable else None
    counts: Counter[bytes]
    if nodes is None:
        tokens = ["", *_TOKEN.findall(text), ""]
        pairs = Counter(pairwise(tokens))
        counts = Counter({_hash(_utf8(f"?{a} {b}")): count for (a, b), count in pairs.items()})
    else:
        labels = [_label(node) for node, _ in nodes]
        # Two guards that return are one conditional expression, where only the order tells what the condition chooses.
        counts = Counter(_canonical(nodes, labels, _CONDITIONAL))
        for label, count in Counter(labels).items():
            counts[_hash(b"#" + label)] += count
    return b"".join(counts), array("I", counts.values()).tobytes(), nodes is None


def structure(text: str, readable: bool = True) -> str | None:
    """A key that two programs share exactly if they are structurally equal (SPEC 8); None where it does not parse."""
    nodes = _read(text, docstrings=True) if readable else None
    if nodes is None:
        return None
    forms = _canonical(nodes, [_type_name(node) for node, _ in nodes])
    significant = sorted(form for form, (node, _) in zip(forms, nodes, strict=True) if isinstance(node, _SIGNIFICANT))
    return _hash(b"".join([b"significant\0", *significant]) if significant else b"whole\0" + forms[-1]).hex()


def normalized(text: str, readable: bool = True) -> tuple[str, bool]:
    """(the program printed again without comments and docstrings, False), or (the text itself, True)."""
    nodes = _read(text, docstrings=False) if readable else None
    if nodes is None:
        return text, True
    if _height(nodes) > MAX_PRINTED_DEPTH:
        return text, False
    try:
        return ast.unparse(nodes[-1][0]), False
    except (ValueError, RecursionError):
        # Some f-strings have no printed form before Python 3.12, nor do integers of more than 4300 digits.
        return text, False


def read_each(job: Callable[[str], R], texts: Sequence[str]) -> list[R]:
    """`job` of every text, in this process."""
    # Under "error", a warning about an escape such as "\d" would make the text one that does not parse. Filters belong
    # to the process, so that a second thread must not save and restore them in between.
    with _one_reader, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [job(text) for text in texts]


def _read(text: str, *, docstrings: bool, one_form: bool = False) -> list[Node] | None:
    """Every node with the number of its children, children before parents; None for a text that does not parse."""
    try:
        tree = ast.parse(text)
    except Exception:  # SyntaxError, ValueError, MemoryError, RecursionError, by version: all mean the same here
        return None
    if not docstrings:
        _drop_docstrings(tree)
    if one_form:
        try:
            canonical(tree)
        except TooDeepError:
            return _read(text, docstrings=docstrings)
    nodes: list[Node] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        waiting = len(stack)
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                stack.extend([child for child in value if isinstance(child, ast.AST)])
            elif isinstance(value, ast.AST):
                stack.append(value)
        nodes.append((node, len(stack) - waiting))
    nodes.reverse()
    if _height(nodes) <= MAX_DEPTH:
        return nodes
    # Values put in place one in the other may have made it too deep.
    return _read(text, docstrings=docstrings) if one_form else None


def _height(nodes: list[Node]) -> int:
    """Levels of the tree; for a tree of few nodes, an upper bound of them."""
    if len(nodes) <= MAX_PRINTED_DEPTH:
        return len(nodes)
    done: list[int] = []
    for _, children in nodes:
        height = 1 + max(done[-children:]) if children else 1
        if children:
            del done[-children:]
        done.append(height)
    return done[-1]


def _drop_docstrings(tree: ast.Module) -> None:
    """Remove the strings that open a module, class or function: all, as the second would be the next docstring."""
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, _DEFINITIONS):
            body: list[ast.stmt] = node.body
            while body and _is_string(body[0]):
                del body[0]
            if not body and not isinstance(node, ast.Module):
                body.append(ast.Pass())
        for field in _BLOCKS:
            block = getattr(node, field, None)
            if isinstance(block, list):
                stack.extend(block)


def _is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _canonical(nodes: list[Node], labels: list[bytes], ordered: bytes | None = None) -> list[bytes]:
    """Digest of each node's canonical form: its label and those of its children, sorted but where it is `ordered`."""
    forms: list[bytes] = []
    done: list[bytes] = []
    for (_, children), label in zip(nodes, labels, strict=True):
        if children:
            parts = done[-children:]
            form = _hash(label + b"".join(parts if label == ordered else sorted(parts)))
            del done[-children:]
        else:
            form = _hash(label)
        done.append(form)
        forms.append(form)
    return forms


def _label(node: ast.AST) -> bytes:
    """Type of a node, with a constant's type and value and an attribute's name. No label is the beginning of another
    that has children, so that label + digests stands for one form only."""
    if isinstance(node, ast.Constant):
        value: Any = node.value
        if isinstance(value, str):
            value = _utf8(value)
        elif not isinstance(value, bytes):
            # hex, because decimal digits of an integer take quadratic time and stop at 4300
            value = (hex(value) if type(value) is int else repr(value)).encode()
        return b"Constant\0%s\0%s" % (type(node.value).__name__.encode(), value)
    if isinstance(node, ast.Attribute):
        return b"Attribute\0%s\0" % _utf8(node.attr)
    return _type_name(node)


def _type_name(node: ast.AST) -> bytes:
    return type(node).__name__.encode() + b"\0"


@lru_cache(maxsize=1 << 16)
def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _serve() -> None:
    """Answer pickled (name of a job, texts) on stdin with pickled lists of results on stdout until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end closes stdin
    jobs: dict[str, Callable[[str], Any]] = {job.__name__: job for job in (features, structure, normalized)}
    reply: Any = "ready"
    while True:
        pickle.dump(reply, sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
        sys.stdout.buffer.flush()
        try:
            name, texts = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        reply = read_each(jobs[name], texts)


if __name__ == "__main__":
    _serve()
