"""One form for programs that say the same thing: what becomes equal, what does not, and that it still does the same."""

from __future__ import annotations

import ast
import time
from typing import Any

import pytest
from hypothesis import given
from programs import programs

from fase_gpu.encode import load_encoder
from fase_gpu.encode._canonical import MAX_DEPTH, TooDeepError, canonical


def rewritten(text: str) -> str:
    tree = ast.parse(text)
    canonical(tree)
    return ast.unparse(ast.fix_missing_locations(tree))


def body(*lines: str) -> str:
    return "def f(xs, n):\n" + "\n".join(f"    {line}" for line in lines)


SAME = {
    "examples and asserts below": (body("return n"), body("return n") + "\nprint(f([], 1))\nassert f([], 2) == 2"),
    "main guard": (body("return n"), body("return n") + "\nif __name__ == '__main__':\n    f([1], 2)"),
    "augmented": (body("n = n + 1", "return n * n"), body("n += 1", "return n * n")),
    "augmented subscript": (body("xs[n] = xs[n] * 2", "return xs"), body("xs[n] *= 2", "return xs")),
    "guard": (body("if n:", "    print(1)", "    return 1", "else:", "    print(2)", "    return 2"),
              body("if n:", "    print(1)", "    return 1", "print(2)", "return 2")),
    "never reached": (body("return n"), body("return n", "print(n)")),
    "pass": (body("return n"), body("pass", "return n")),
    "truth of a condition": (body("return n in xs"), body("if n in xs:", "    return True", "return False")),
    "untruth of a condition": (body("return n not in xs"), body("if n in xs:", "    return False", "return True")),
    "both branches return": (body("return n if xs else 0"), body("if xs:", "    return n", "else:", "    return 0")),
    "both branches set": (body("y = n if xs else 0", "return y + y"),
                          body("if xs:", "    y = n", "else:", "    y = 0", "return y + y")),
    "named once": (body("return sum(sorted(xs))"), body("a = sorted(xs)", "b = sum(a)", "return b")),
    "named in a condition": (body("if sum(xs):", "    print(n)"), body("s = sum(xs)", "if s:", "    print(n)")),
    "named in a loop": (body("for x in sorted(xs):", "    print(x)"),
                        body("s = sorted(xs)", "for x in s:", "    print(x)")),
    "append": (body("return [x + 1 for x in xs if x]"),
               body("r = []", "for x in xs:", "    if x:", "        r.append(x + 1)", "return r")),
    "nested append": (body("return [y for x in xs for y in x]"),
                      body("r = []", "for x in xs:", "    for y in x:", "        r.append(y)", "return r")),
    "add": (body("return {x for x in xs}"), body("r = set()", "for x in xs:", "    r.add(x)", "return r")),
    "total": (body("return sum(x * 2 for x in xs)"), body("t = 0", "for x in xs:", "    t += x * 2", "return t")),
    "count": (body("return sum(1 for x in xs if x)"),
              body("t = 0", "for x in xs:", "    if x:", "        t += 1", "return t")),
    "joined": (body("return ''.join(x for x in xs)"), body("t = ''", "for x in xs:", "    t += x", "return t")),
    "list display": (body("xs[0] = []"), body("xs[0] = list()")),
    "list of a generator": (body("return [x for x in xs]"), body("return list(x for x in xs)")),
    "generator given": (body("return sum(x for x in xs)"), body("return sum([x for x in xs])")),
    "range": (body("return range(n)"), body("return range(0, n)")),
    "key of a counter": (body("xs[len(xs)] = xs[len(xs)] + 1"), body("xs[len(xs)] += 1")),
    "first iterable": (body("return [x for x in sorted(xs)]"), body("s = sorted(xs)", "return [x for x in s]")),
}  # fmt: skip
DIFFERENT = {
    "state of a closure": (body("def g():", "    nonlocal n", "    n += 1", "    return n", "return g"),
                           body("def g():", "    nonlocal n", "    return n + 1", "return g")),
    "state of a module": ("def f(x):\n    global c\n    c = load(x)\n    return c",
                          "def f(x):\n    global c\n    return load(x)"),
    "attribute of a class": (body("class C:", "    a = n", "    b = a", "return C"),
                             body("class C:", "    b = n", "return C")),
    "evaluated once": (body("x = xs.pop()", "return [x for _ in range(n)]"),
                       body("return [xs.pop() for _ in range(n)]")),
    "evaluated now": (body("x = xs.pop()", "return lambda: x"), body("return lambda: xs.pop()")),
    "truth of a list": (body("return xs"), body("if xs:", "    return True", "return False")),
    "running total": (body("for x in xs:", "    n += x", "    print(n)"), body("for x in xs:", "    print(n + x)")),
    "a call that sets something up": (body("return n"), "random.seed(0)\n" + body("return n")),
    "a generator": (body("return n", "yield n"), body("return n")),
    "a float": (body("t = 0.0", "for x in xs:", "    t += x", "return t"), body("return sum(x for x in xs)")),
    "operator": (body("return n + 1"), body("return n - 1")),
    "constant": (body("return n + 1"), body("return n + 2")),
    "comparison": (body("return n < 1"), body("return n <= 1")),
    "swapped returns": (body("if n:", "    return 1", "return 0"), body("if n:", "    return 0", "return 1")),
    "condition of a loop": (body("r = []", "for x in xs:", "    if x:", "        r.append(x)", "return r"),
                            body("r = []", "for x in xs:", "    r.append(x)", "return r")),
    "start of a total": (body("t = 0", "for x in xs:", "    t += x", "return t"),
                         body("t = 1", "for x in xs:", "    t += x", "return t")),
    "start of a list": (body("r = [n]", "for x in xs:", "    r.append(x)", "return r"),
                        body("r = []", "for x in xs:", "    r.append(x)", "return r")),
}  # fmt: skip


def cosine(one: str, two: str) -> float:
    a, b = load_encoder("ast", device="cpu", workers=0).encode([one, two]).vectors
    return float(a @ b)


@pytest.mark.parametrize("name", SAME)
def test_the_same_in_other_words(name: str) -> None:
    one, two = SAME[name]
    assert rewritten(one) == rewritten(two)
    assert cosine(one, two) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_meaning_stays_another(name: str) -> None:
    one, two = DIFFERENT[name]
    assert rewritten(one) != rewritten(two)
    assert cosine(one, two) < 1 - 1e-3


@pytest.mark.parametrize(
    "lines",
    [
        # read again after the branch, and by a function inside
        ("if n:", "    y = n + 1", "    z = y", "    print(z, z)", "else:", "    y = 2", "return y"),
        ("y = n + 1", "z = y", "def g():", "    return y", "return g() + z"),
        # the list is read by its own loop, or has something in it
        ("r = []", "for x in xs:", "    r.append(len(r))", "return r"),
        ("for x in xs:", "    if x > n:", "        return x", "return None"),
        # a loop that ends early is no comprehension
        ("r = []", "for x in xs:", "    if x == n:", "        break", "    r.append(x)", "return r"),
        ("r = []", "for x in xs:", "    r.append(x)", "else:", "    r.append(n)", "return r"),
        ("t = 0", "for x in xs:", "    t = x + t", "return t"),
        ("try:", "    return xs[n]", "except IndexError:", "    y = -1", "return y"),
        ("while True:", "    n += 1", "    if n > 9:", "        break", "return n"),
        ("d = dict()", "for x in xs:", "    d[x] = d.get(x, 0) + 1", "return sorted(d.items())"),
        ("if n < 0:", "    return None", "elif n == 1:", "    n = 7", "y = n", "return [y] * 2"),
        ("a, b = n, n + 1", "a, b = b, a", "return a - b"),
        ("r = set()", "for x in xs:", "    if x:", "        r.add(x)", "return sorted(r)"),
        ("y = n", "n = 3", "return y + n"),
        ("y = xs.pop() if xs else 0", "n += 1", "return y * n, xs"),
        ("return (lambda k: k + n)(1)",),
        ("return max([x for x in xs] + [n]), min((x for x in [n]))",),
        ("k = len(xs) - 1", "xs[k] += 1", "return xs"),
        ("t = 0", "for x in xs:", "    t += x", "    n += t", "return n, t"),
        ("class C:", "    a = n", "    b = a", "return C.a, C.b"),
        ("x = n + 1", "return [x for _ in xs], [(lambda: x)() for _ in xs]"),
        ("def g():", "    nonlocal n", "    n += 1", "    return n", "return g(), g()"),
        ("r = []", "for i, x in enumerate(xs):", "    for y in range(x):", "        r.append(i + y)", "return r"),
        ("match n:", "    case 0:", "        y = 1", "    case _:", "        y = n", "return y"),
        ("try:", "    return xs[n]", "except IndexError:", "    return -1", "finally:", "    xs.append(1)"),
        ("while n < 3:", "    n += 1", "else:", "    n = 10", "return n"),
    ],
)
def test_a_rewritten_program_does_the_same(lines: tuple[str, ...]) -> None:
    text = body(*lines)
    for n in (-1, 0, 1, 2, 5):
        for xs in ([], [1], [2, 0, 3, 2]):
            assert result(rewritten(text), list(xs), n) == result(text, list(xs), n), rewritten(text)
    for one, two in SAME.values():
        for name in (one, two):
            assert result(rewritten(name), [[1], [2]], 1) == result(name, [[1], [2]], 1)


def result(text: str, xs: list[Any], n: int) -> Any:
    names: dict[str, Any] = {"print": lambda *_: None}
    exec(text, names)
    try:
        return names["f"](xs, n), xs
    except (TypeError, IndexError) as error:
        return type(error), xs


def test_a_script_is_left_whole() -> None:
    assert rewritten("x = 1\nprint(x)\nassert x") == "x = 1\nprint(x)\nassert x"


@given(programs)
def test_any_program_is_rewritten_to_a_program(text: str) -> None:
    tree = ast.parse(text)
    canonical(tree)
    ast.parse(ast.unparse(ast.fix_missing_locations(tree)))


@pytest.mark.parametrize("unit", ["    if n > {}:\n        return {}\n", "    n = [n, {}][{}]\n"])
def test_many_statements(unit: str) -> None:
    text = "def f(xs, n):\n" + "".join(unit.format(i, i) for i in range(100)) + "    return n"
    for n in (-1, 0, 3, 1000):
        assert result(rewritten(text), [], n) == result(text, [], n)


def test_too_deep_programs_are_left_as_they_are() -> None:
    deep = "def f(n):\n" + "".join(f"    if n == {i}:\n        return {i}\n" for i in range(2 * MAX_DEPTH))
    with pytest.raises(TooDeepError):
        canonical(ast.parse(deep))
    # x += 1 is x = x + 1 only in what is rewritten.
    assert cosine(deep + "    x += 1\n", deep + "    x = x + 1\n") < 1 - 1e-5
    short = "def f(n):\n"
    assert cosine(short + "    x += 1\n", short + "    x = x + 1\n") == pytest.approx(1, abs=1e-6)
    assert load_encoder("ast", device="cpu", workers=0).encode([deep]).unparsable == [False]


@pytest.mark.parametrize("shell", ["if {}: pass", "if {} == 1: pass", "x[{}] += 1", "print({})", "def g(): return {}"])
def test_deep_expressions_parse(shell: str) -> None:
    for deep in ("-" * 900 + "a", "[" * 90 + "]" * 90, "a" + ".a" * 800, "+".join("a" * 800)):
        program = "def f(a):\n    return a\n" + shell.format(deep)
        assert load_encoder("ast", device="cpu", workers=0).encode([program]).unparsable == [False]


@pytest.mark.parametrize("count", [300, 3000])
@pytest.mark.parametrize(
    "text",
    [
        "def f(x0):\n    w = 1\n{chain}    return [x{last}, w]\n",
        "def f(x0):\n{chain}    return x{last}\n" + "    x1\n" * 20,
        "def f(x0):\n{plain}    return [{names}]\n",
    ],
)
def test_hostile_programs_take_no_longer_and_parse(text: str, count: int) -> None:
    chain = "".join(f"    x{i + 1} = g(x{i})\n" for i in range(count))
    plain = "".join(f"    a{i} = 1\n" for i in range(count))
    names = ", ".join(f"[a{i}]" for i in range(count))
    program = text.format(chain=chain, plain=plain, names=names, last=count)
    encoder = load_encoder("ast", device="cpu", workers=0)
    started = time.perf_counter()
    found = encoder.encode([program])
    assert found.unparsable == [False]
    assert time.perf_counter() - started < 20  # a quadratic search took minutes
