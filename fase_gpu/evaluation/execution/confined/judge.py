"""Runs a sample with its task's tests, inside the sandbox.

A sample passes only when this module, after the tests have run to their end, reports so with the sandbox's token, and
what the tests are judged by (builtins, unittest) is what it was before the sample was loaded. So a sample that leaves,
swallows exceptions, replaces assertion methods or forks does not pass. The tests share the process with the sample,
though, and this cannot exclude a sample that searches its own process for the token, that patches and restores around
single assertions, or that returns values whose comparison lies.

The sample is a module named `__test__`, as BigCodeBench names it: not `__main__`, so that code under
`if __name__ == "__main__":` does not run.
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MODULE = "__test__"
_FILE = f"{MODULE}.py"
_MESSAGE = 1000

# Bound now: a sample may replace any of them.
_isinstance, _str, _type, _vars = isinstance, str, type, vars
_KINDS = ((AssertionError, "assertion"), (MemoryError, "memory"), (SystemExit, "exit"))
_SETTINGS = (bool, int, str, type(None))
_ANYTHING = BaseException


def run(payload: dict[str, Any], report: Callable[[str], None]) -> None:
    """Judge `program` by `test`; the report is "passed", or "failed", the error and the message, a line each.

    kind          "asserts": `test` runs to its end; "check": it defines check(candidate); "unittest": class TestCases
    entry_point   of kind "check"
    defined       names that the reference solution defines, so that tests see the sample's even if a builtin has it
    """
    error, message = "", ""
    try:
        owners = [builtins]
        if payload["kind"] == "unittest":
            owners += _unittest_owners()
        before = [(owner, dict(vars(owner))) for owner in owners]
        failure = _judged(**payload)
        if failure is None:
            changed = _changed(before)
            if changed is None:
                report("passed")
            error, message = "tampered", f"replaced {changed}"
        else:
            error, message = failure
    except _ANYTHING as caught:
        error, message = _described(caught)
    report(f"failed\n{error}\n{message}")


def _judged(program: str, kind: str, test: str, entry_point: str, defined: list[str]) -> tuple[str, str] | None:
    """None, or error and message of a failure that is no exception of this call."""
    own = {*defined, entry_point} - {""}
    hidden = set(vars(builtins)) - own if own else set()
    module = type(sys)(MODULE)
    space = vars(module)
    space["__file__"] = _FILE
    space["__loader__"] = _Source(program)
    sys.modules[MODULE] = module
    if kind == "unittest":
        # The benchmark's tests count on these being there.
        import os

        space.update(sys=sys, os=os, environ=os.environ)
    try:
        code = compile(program, _FILE, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return "syntax", str(error)
    call = f"\ncheck({entry_point})\n" if kind == "check" else ""
    tests = compile(test + call, "test.py", "exec", dont_inherit=True)
    exec(code, space)
    if kind == "unittest":
        exec(tests, space)
        return _unittest_failure(space["TestCases"])
    # A function of the sample named like a builtin must not decide what its tests compare.
    space = {name: value for name, value in space.items() if name not in hidden}
    exec(tests, space)
    return None


class _Source:
    """Lets inspect.getsource find the text of the sample."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, name: str) -> str:
        return self._text


def _unittest_owners() -> list[Any]:
    import unittest
    import unittest.case
    import unittest.loader
    import unittest.result
    import unittest.suite

    modules = [unittest, unittest.case, unittest.loader, unittest.result, unittest.suite]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return [*modules, *(owner for owner in classes if owner.__module__.startswith("unittest."))]


def _unittest_failure(cases: Any) -> tuple[str, str] | None:
    import unittest

    first: list[tuple[str, str]] = []

    def note(error: Any) -> None:
        if not first:
            first.append(_described(error))

    class Result(unittest.TestResult):
        def addError(self, test: Any, err: Any) -> None:
            note(err[1])

        def addFailure(self, test: Any, err: Any) -> None:
            note(err[1])

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                note(err[1])

        def addSkip(self, test: Any, reason: str) -> None:
            first.append(("SkipTest", reason))

        def addExpectedFailure(self, test: Any, err: Any) -> None:
            note(err[1])

        def addUnexpectedSuccess(self, test: Any) -> None:
            first.append(("assertion", "unexpected success"))

    suite = unittest.TestLoader().loadTestsFromTestCase(cases)
    expected = suite.countTestCases()
    result = Result()
    suite.run(result)
    if first:
        return first[0]
    if not 0 < expected == result.testsRun:
        return "tampered", f"{result.testsRun} of {expected} tests ran"
    return None


def _changed(before: list[tuple[Any, dict[str, Any]]]) -> str | None:
    """The first of the judging functions and classes that is not what it was."""
    for owner, old in before:
        new = _vars(owner)
        for name, value in old.items():
            # Settings such as TestCase.maxDiff and what modules note of themselves.
            if _type(value) in _SETTINGS:
                continue
            if name not in new or new[name] is not value:
                return f"{owner.__name__}.{name}"
        if _type(owner) is _type:
            for name in new:
                if name not in old:
                    return f"{owner.__name__}.{name}"
    return None


def _described(error: Any) -> tuple[str, str]:
    """Error kind and message of an exception, whatever its class does when it is asked."""
    name = _type(error).__name__
    for kind, shown in _KINDS:
        if _isinstance(error, kind):
            name = shown
    try:
        message = _str(error)[:_MESSAGE]
    except _ANYTHING:
        message = ""
    return name, message
