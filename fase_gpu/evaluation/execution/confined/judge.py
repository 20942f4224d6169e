"""Runs a sample with its task's tests, inside the sandbox.

A sample passes only when this module, after the tests have run to their end, reports so with the sandbox's token, and
what the tests are judged by (builtins, unittest and the code of its functions) is what it was before the sample was
loaded. So a sample that leaves, swallows exceptions, replaces or rewrites assertion methods, brings builtins of its
own, traces the tests or forks does not pass.

The tests share the process with the sample, though, so that one that is written against this module passes: it may walk
the frames to `report` or search its memory for the token, write into this module, patch and restore around single
assertions, change modules other than unittest that the tests use, or return values whose comparison lies; and in kind
"unittest", where sample and tests are one module, define what the tests call by the name of a builtin.

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
_any, _len, _isinstance, _str, _type, _vars = any, len, isinstance, str, type, vars
_KINDS = ((AssertionError, "assertion"), (MemoryError, "memory"), (SystemExit, "exit"))
_trace, _profile, _tracing, _profiling = sys.settrace, sys.setprofile, sys.gettrace, sys.getprofile
_builtins = builtins.__dict__
_name, _part = type.__dict__["__name__"].__get__, str.__getitem__
_Function = type(lambda: None)
_SETTINGS = (bool, int, str, type(None))
_ANYTHING = BaseException


def run(payload: dict[str, Any], report: Callable[[str], None]) -> None:
    """Judge `program` by `test`; the report is "passed", or "failed", the error and the message, a line each.

    kind          "asserts": `test` runs to its end; "check": it defines check(candidate); "unittest": class TestCases
    entry_point   of kind "check"
    prompt        runs before the program, in the same module
    defined       names that the reference solution defines, so that tests see the sample's even if a builtin has it
    """
    error, message = "", ""
    try:
        owners = [builtins]
        if payload["kind"] == "unittest":
            owners += _unittest_owners()
        before = [(owner, dict(vars(owner))) for owner in owners]
        functions = _functions(owners)
        failure = _judged(**payload)
        if failure is None:
            changed = _changed(before) or _rewritten(functions)
            if changed is None:
                report("passed")
            error, message = "tampered", f"changed {changed}"
        else:
            error, message = failure
    except _ANYTHING as caught:
        error, message = _described(caught)
    report(f"failed\n{error}\n{message}")


def _judged(
    program: str, kind: str, test: str, entry_point: str, prompt: str, defined: list[str]
) -> tuple[str, str] | None:
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
    exec(compile(prompt, _FILE, "exec", dont_inherit=True), space)
    exec(code, space)
    _trace(None)
    _profile(None)
    if kind != "unittest":
        # A function of the sample named like a builtin must not decide what its tests compare.
        space = {name: value for name, value in space.items() if name not in hidden}
    space["__builtins__"] = _builtins
    exec(tests, space)
    failure = _unittest_failure(space["TestCases"]) if kind == "unittest" else None
    if failure is None and (_tracing() or _profiling()):
        return "tampered", "traced its tests"
    return failure


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
    import unittest.util

    modules = [unittest, unittest.case, unittest.loader, unittest.result, unittest.suite, unittest.util]
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


def _functions(owners: list[Any]) -> list[tuple[Any, Any, Any, dict[str, Any]]]:
    """The functions of the owners with all that they can be rewritten by."""
    found = {}
    for owner in owners:
        for value in vars(owner).values():
            parts = (value, *(getattr(value, name, None) for name in ("__func__", "fget", "fset", "__wrapped__")))
            found.update({id(part): part for part in parts if type(part) is _Function})
    return [(f, f.__code__, f.__defaults__, dict(f.__kwdefaults__ or {})) for f in found.values()]


def _rewritten(functions: list[tuple[Any, Any, Any, dict[str, Any]]]) -> str | None:
    """The first of these functions whose code or defaults are not what they were."""
    for function, code, defaults, named in functions:
        now = function.__kwdefaults__ or {}
        same = function.__code__ is code and function.__defaults__ is defaults and _len(now) == _len(named)
        if not same or _any(name not in now or now[name] is not value for name, value in named.items()):
            return _part(code.co_qualname, slice(None))
    return None


def _described(error: Any) -> tuple[str, str]:
    """Error kind and message of an exception, whatever its class does when it is asked."""
    # Its own parts of strings: what the class makes of them may be anything.
    name = _part(_name(_type(error)), slice(None, _MESSAGE))
    for kind, shown in _KINDS:
        if _isinstance(error, kind):
            name = shown
    try:
        message = _part(_str(error), slice(None, _MESSAGE))
    except _ANYTHING:
        message = ""
    return name, message
