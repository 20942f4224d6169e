"""Samples that misbehave: none passes, hangs, or harms anything, with namespaces and without."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from fase_gpu.evaluation.execution import Ending, Interpreter, Isolation, Limits, Sandbox, Task, execute
from fase_gpu.evaluation.outcomes import Outcome
from fase_gpu.files import SampleSet

if sys.platform != "linux":
    pytest.skip("execution of samples needs Linux", allow_module_level=True)

ROOT = Path(__file__).resolve().parent.parent
RIGHT = "def f(x):\n    return x + 1\n"
SECONDS = 1.0
Judge = Callable[..., Outcome]

UNITTEST = """
import unittest
class TestCases(unittest.TestCase):
    def test_one(self):
        self.assertEqual(f(1), 2)
    def test_two(self):
        self.assertTrue(f(2) == 3)
"""


def readable_by_all(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """A Python that an unprivileged user can run: this one, or its library linked into a folder for all."""
    if os.geteuid() != 0 or readable_by_all(Path(sys.base_prefix)):
        yield Interpreter.running()
        return
    folder = Path(tempfile.mkdtemp(prefix="python-"))

    def linked(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    try:
        folder.chmod(0o755)
        library = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
        left_out = shutil.ignore_patterns("site-packages", "test", "idlelib", "__pycache__", "config-*")
        shutil.copytree(Path(sys.base_prefix, library), folder / library, copy_function=linked, ignore=left_out)
        (folder / "bin").mkdir()
        program = folder / "bin" / "python3"
        linked(os.path.realpath(sys.executable), str(program))
        yield Interpreter(str(program), (str(folder),), ())
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def best() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def weaker(interpreter: Interpreter) -> Iterator[Sandbox]:
    """A sandbox as it is where there are no namespaces."""
    isolation = Isolation(None, True, os.geteuid() == 0)
    with Sandbox(isolation, interpreter) as sandbox:
        assert sandbox.isolation == isolation
        yield sandbox


@pytest.fixture(params=["namespaces", "limits"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    found: Sandbox = request.getfixturevalue("best" if request.param == "namespaces" else "weaker")
    if request.param == "namespaces" and not found.isolation.namespaces:
        pytest.skip("no namespaces for this user on this machine")
    return found


def judge_in(sandbox: Sandbox) -> Judge:
    """The outcome of a program, by default with assertions that a right one passes."""

    def judged(
        program: str, test: str = "assert f(1) == 2\nassert f(2) == 3", kind: str = "asserts", **limits: float
    ) -> Outcome:
        task = Task("t", kind, test, "f")  # type: ignore[arg-type]
        samples = SampleSet(["t"], [[program]], 0, 1)
        given = Limits(**{"seconds": SECONDS, **limits})  # type: ignore[arg-type]
        started = time.monotonic()
        (outcome,) = execute(samples, {"t": task}, given, workers=1, sandbox=sandbox).outcomes
        assert time.monotonic() - started < 30
        return outcome

    return judged


@pytest.fixture
def judge(sandbox: Sandbox) -> Judge:
    """With namespaces and without."""
    return judge_in(sandbox)


@pytest.fixture
def verdict(best: Sandbox) -> Judge:
    """With the best isolation: what the judge in the sandbox says is the same in all."""
    return judge_in(best)


@pytest.fixture
def mark() -> Iterator[str]:
    """A process name; fails where a process of that name is left."""
    name = f"s{os.urandom(5).hex()}"
    yield name
    assert named(name) == []


def named(name: str) -> list[str]:
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == name:
                found.append(comm.parent.name)
        except OSError:
            continue
    return found


def call_it(line: str) -> str:
    """Programs that do something bad when the function is called and would be right without it."""
    return f"import os, sys, signal, time, socket, threading\ndef f(x):\n    {line}\n    return x + 1\n"


def test_what_is_right_passes(judge: Judge) -> None:
    outcome = judge(RIGHT)
    assert (outcome.passed, outcome.error, outcome.message) == (True, None, None)
    assert judge("def f(x):\n    return x\n")[3:5] == (False, "assertion")
    assert judge(RIGHT, UNITTEST, "unittest").passed
    assert judge("def f(x):\n    return x\n", UNITTEST, "unittest")[3:5] == (False, "assertion")
    assert judge(RIGHT, "def check(candidate):\n    assert candidate(1) == 2", "check").passed


@pytest.mark.parametrize(
    "leave",
    ["sys.exit(0)", "os._exit(0)", "raise SystemExit", "exit(0)", "quit()", "os.kill(os.getpid(), 9)", "os.abort()"],
)
@pytest.mark.parametrize("kind", ["asserts", "unittest"])
def test_leaving_early_is_no_pass(verdict: Judge, leave: str, kind: str) -> None:
    expected = "killed" if "kill" in leave or "abort" in leave else "exit"
    test = {"asserts": "assert f(1) == 2", "unittest": UNITTEST}[kind]
    assert verdict(call_it(leave), test, kind)[3:5] == (False, expected)
    assert verdict(f"import os, sys\n{RIGHT}{leave}\n", test, kind)[3:5] == (False, expected)


def test_leaving_through_an_exit_handler_or_a_thread_is_no_pass(verdict: Judge) -> None:
    wrong = "import atexit, os, threading, time\ndef f(x):\n    return 0\n"
    assert not verdict(wrong + "atexit.register(os._exit, 0)").passed
    assert not verdict(
        wrong.replace("return 0", "time.sleep(9)") + "threading.Timer(0.1, os._exit, [0]).start()"
    ).passed


@pytest.mark.parametrize(
    "patch",
    [
        "unittest.TestCase.assertEqual = unittest.TestCase.assertTrue = lambda *a, **k: None",
        "unittest.TestCase.run = lambda self, result=None: result.startTest(self)",
        "unittest.TestResult.addFailure = lambda *a: None",
        "unittest.TestCase.failureException = type('Never', (Exception,), {})",
        "unittest.TestSuite.run = lambda self, result, debug=False: result",
        "unittest.TestLoader.loadTestsFromTestCase = lambda self, case: unittest.TestSuite()",
        "unittest.TestCase.__getattribute__ = lambda self, name: (lambda *a, **k: None)",
        "unittest.TestLoader.testMethodPrefix = 'nothing'",
        "unittest.TestCase.setUp = lambda self: self.skipTest('no')",
        "unittest.case._Outcome.testPartExecutor = __import__('contextlib').nullcontext",
    ],
)
def test_patching_unittest_is_no_pass(verdict: Judge, patch: str) -> None:
    assert not verdict(
        f"import unittest, unittest.case\n{patch}\ndef f(x):\n    return 0\n", UNITTEST, "unittest"
    ).passed
    changed = verdict(f"import unittest, unittest.case\n{RIGHT}{patch}\n", UNITTEST, "unittest")
    assert not changed.passed
    assert changed.error in ("tampered", "assertion", "SkipTest", "TypeError", "exit", "AttributeError", "KeyError")


@pytest.mark.parametrize(
    "patch",
    [
        "builtins.AssertionError = type('AssertionError', (Exception,), {})",
        "builtins.isinstance = lambda *a: True",
        "builtins.__build_class__ = lambda *a, **k: None",
        "builtins.abs = lambda x: 0",
        "builtins.vars = lambda *a: {}",
        "builtins.type = lambda *a: None",
        "builtins.BaseException = ZeroDivisionError",
        "builtins.len = lambda x: 0",
    ],
)
def test_patching_builtins_is_no_pass(verdict: Judge, patch: str) -> None:
    test = "assert f(1) == 2\nassert abs(f(2) - 3) < 1e-6"
    assert verdict(f"import builtins\n{RIGHT}{patch}\n", test)[3:5] == (False, "tampered")
    assert not verdict(f"import builtins\n{patch}\ndef f(x):\n    return 0\n", test).passed


@pytest.mark.parametrize(
    "patch",
    [
        "unittest.TestCase.assertEqual.__code__ = (lambda self, a, b, msg=None: None).__code__",
        "unittest.TestCase.assertEqual.__defaults__ = ('x',)",
        "unittest.case._Outcome.testPartExecutor.__wrapped__.__code__ = next.__class__",
        "unittest.TestCase.assertTrue.__code__ = (lambda self, x, msg=None: None).__code__",
        "unittest.TestCase.assertAlmostEqual.__kwdefaults__ = {'msg': 1}",
        "unittest.TestSuite.run.__code__ = (lambda self, result, debug=False: result).__code__",
        "unittest.TestCase.addClassCleanup.__func__.__code__ = (lambda *a, **k: None).__code__",
    ],
)
def test_rewriting_functions_of_unittest_is_no_pass(verdict: Judge, patch: str) -> None:
    program = f"import unittest, unittest.case\n{patch}\ndef f(x):\n    return "
    assert not verdict(program + "0", UNITTEST, "unittest").passed
    assert verdict(program + "x + 1", UNITTEST, "unittest").error in ("tampered", "TypeError")


@pytest.mark.parametrize("kind", ["asserts", "check", "unittest"])
def test_builtins_of_ones_own_are_not_the_tests(verdict: Judge, kind: str) -> None:
    own = "import builtins\n__builtins__ = {**vars(builtins), 'abs': lambda x: 0, 'len': lambda x: 0}\n"
    asserted = "assert abs(f(1) - 2) < 1"
    test = {
        "asserts": asserted,
        "check": f"def check(candidate):\n    {asserted}",
        "unittest": "import unittest\nclass TestCases(unittest.TestCase):\n    def test_one(self):\n"
        "        self.assertLess(abs(f(1) - 2), 1)",
    }[kind]
    assert verdict(own + "def f(x): return 0", test, kind)[3:5] == (False, "assertion")
    assert verdict(own + RIGHT, test, kind).passed


@pytest.mark.parametrize("kind", ["asserts", "unittest"])
@pytest.mark.parametrize("name", ["settrace", "setprofile"])
def test_tracing_the_tests_is_no_pass(verdict: Judge, name: str, kind: str) -> None:
    test = {"asserts": "assert f(1) == 2", "unittest": UNITTEST}[kind]
    skip = f"""
import sys
def trace(frame, event, arg):
    if frame.f_code.co_filename == "test.py" and event == "return":
        raise SystemExit
    if frame.f_code.co_name == "_baseAssertEqual":
        frame.f_lineno += 1
    return trace
sys.{name}(trace)
def f(x):
    return {{}}
"""
    assert verdict(skip.format("0"), test, kind)[3:5] == (False, "assertion")
    assert verdict(skip.format("x + 1"), test, kind).passed
    late = f"import sys\ndef f(x):\n    sys.{name}(lambda *a: None)\n    return x + 1\n"
    assert verdict(late, test, kind)[3:5] == (False, "tampered")


def test_own_names_for_what_tests_use_do_not_pass(verdict: Judge) -> None:
    own = "class AssertionError(BaseException): pass\ndef check(f): pass\ndef abs(x): return 0\ndef f(x): return 0\n"
    assert verdict(own, "assert abs(f(1) - 2) < 1")[3:5] == (False, "assertion")
    assert verdict(own, "def check(candidate):\n    assert abs(candidate(1) - 2) < 1", "check").error == "assertion"
    cases = "class TestCases:\n    pass\ndef f(x): return 0\n"
    assert verdict(cases, UNITTEST, "unittest").error == "assertion"


def test_swallowed_exceptions_do_not_pass(verdict: Judge) -> None:
    swallow = "import sys\nsys.excepthook = lambda *a: None\ndef f(x):\n    try: return 0\n    finally: pass\n"
    assert verdict(swallow)[3:5] == (False, "assertion")


def test_tests_that_are_skipped_or_absent_do_not_pass(verdict: Judge) -> None:
    assert verdict("import unittest\ndef f(x):\n    raise unittest.SkipTest", UNITTEST, "unittest").error == "SkipTest"
    assert verdict(RIGHT, "import unittest\nclass TestCases(unittest.TestCase): pass", "unittest").error == "tampered"


def test_both_sides_of_a_fork_go_on_and_one_counts(verdict: Judge) -> None:
    fork = "import os\nparent = os.getpid()\ndef f(x):\n    os.fork()\n    return {} if os.getpid() == parent else {}\n"
    assert not verdict(fork.format("0", "x + 1")).passed
    assert verdict(fork.format("x + 1", "0")).passed


def test_a_fork_bomb_ends(judge: Judge, mark: str) -> None:
    bomb = call_it(f"open('/proc/self/comm', 'w').write('{mark}')\n    while True: os.fork()")
    assert not judge(bomb).passed
    patient = bomb.replace("os.fork()", "\n        try: os.fork()\n        except OSError: pass")
    assert judge(patient).error == "timeout"


def test_filling_the_disk_fails(judge: Judge) -> None:
    fill = call_it("\n    with open('big', 'wb') as s:\n        for _ in range(1000): s.write(bytes(1 << 20))")
    assert judge(fill, files=1 << 24, seconds=20)[3:5] == (False, "OSError")


def test_many_files_fill_no_disk(judge: Judge, sandbox: Sandbox) -> None:
    if not sandbox.isolation.namespaces:
        pytest.skip("without namespaces only the size of each file is limited")
    many = call_it("\n    for i in range(100):\n        with open(str(i), 'wb') as s: s.write(bytes(1 << 20))")
    assert judge(many, files=1 << 24, seconds=20)[3:5] == (False, "OSError")


@pytest.mark.parametrize("to", ["print('x' * 9999)", "os.write(2, b'x' * 99999)", "sys.stderr.write('\\n' * 9999)"])
def test_printing_forever_is_a_timeout(verdict: Judge, to: str) -> None:
    assert verdict(call_it(f"while True: {to}")).error == "timeout"


def test_output_that_is_not_text_changes_nothing(judge: Judge) -> None:
    assert judge(call_it("os.write(1, bytes(range(256)) * 99); sys.stdout.buffer.write(b'\\xff\\xfe')")).passed


@pytest.mark.parametrize(
    "kill",
    ["os.killpg(0, 9)", "os.kill(-1, 9)", "os.kill(os.getppid(), 9)", "os.kill(os.getppid(), 19)", "os.kill(1, 9)"],
)
def test_killing_others_hits_nobody_else(judge: Judge, kill: str) -> None:
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=False)
    try:
        assert not judge(call_it(kill) + "    return 0\n", "assert f(1) == 3").passed
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize(
    "line", ["fcntl.fcntl(0, {}, os.getppid())", "fcntl.ioctl(socket.socketpair()[0], 0x8901, bytes(4))"]
)
def test_signals_cannot_be_sent_by_a_descriptor(weaker: Sandbox, line: str) -> None:
    send = line.format("fcntl.F_SETOWN")
    assert judge_in(weaker)(call_it(f"import fcntl; {send}")).error == "PermissionError"
    assert judge_in(weaker)(call_it("import fcntl; fcntl.fcntl(1, fcntl.F_SETFL, 0)")).passed


def test_a_keeper_that_fails_is_a_killed_sample(sandbox: Sandbox) -> None:
    payload = {"program": "import time; time.sleep(1)", "kind": "asserts", "test": "", "entry_point": "f"}
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(sandbox.run, "judge", payload | {"prompt": "", "defined": []}, Limits(9.0))
        time.sleep(0.6)
        (launcher,) = sandbox._running
        keeper = launcher.pid
        if sandbox.isolation.namespaces:
            keeper = int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text())
        os.kill(keeper, signal.SIGKILL)
        assert future.result() == Ending("exit", -9, 0.0, 0.0, False, None)


def test_the_runs_own_process_cannot_be_killed(judge: Judge) -> None:
    assert judge(call_it(f"os.kill({os.getpid()}, 9)")).error in ("ProcessLookupError", "PermissionError")


def test_stdin_is_empty(judge: Judge) -> None:
    assert judge(call_it("input()"))[3:5] == (False, "EOFError")
    assert judge(call_it("assert sys.stdin.read() == ''")).passed


def test_daemons_end_with_the_sample(judge: Judge, mark: str, tmp_path: Path) -> None:
    daemon = f"""
import os, time
def f(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open('/proc/self/comm', 'w').write({mark!r})
            os.closerange(0, 999)
            time.sleep(0.5)
            for folder in ({str(tmp_path)!r}, '/tmp', '/var/tmp'):
                try: open(folder + '/{mark}', 'w').close()
                except OSError: pass
            time.sleep(60)
        os._exit(0)
    os.wait()
    time.sleep(0.1)
    return x + 1
"""
    assert judge(daemon).passed
    assert named(mark) == []
    time.sleep(0.7)
    assert not any(Path(folder, mark).exists() for folder in (tmp_path, "/tmp", "/var/tmp"))


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_samples_end_with_a_run_that_is_killed(sandbox: Sandbox, mark: str, end: str) -> None:
    sample = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n"
    sample += f"open('/proc/self/comm', 'w').write({mark!r})\ntime.sleep(60)\n"
    script = f"""
from fase_gpu.evaluation.execution import Interpreter, Isolation, Limits, Sandbox, Task, execute
from fase_gpu.files import SampleSet
with Sandbox({sandbox.isolation!r}, {sandbox._interpreter!r}) as box:
    tasks = {{"t": Task("t", "asserts", "f()")}}
    execute(SampleSet(["t"], [[{sample!r}]], 0, 1), tasks, Limits(50), sandbox=box)
"""
    # A killed run leaves its folder.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "TMPDIR": folder}) as host:
            deadline = time.monotonic() + 20
            while not named(mark) and time.monotonic() < deadline:
                time.sleep(0.05)
            running = len(named(mark))
            time.sleep(0.2)
            getattr(host, end)()
    assert running
    while named(mark) and time.monotonic() < deadline:
        time.sleep(0.05)


def test_the_network_is_out_of_reach(judge: Judge) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        reached = judge(call_it(f"socket.create_connection(('127.0.0.1', {port}), 0.5)"), seconds=20)
        assert reached.error in ("ConnectionRefusedError", "PermissionError")
        with pytest.raises(TimeoutError):
            listener.accept()


def test_other_processes_cannot_be_looked_into(judge: Judge, sandbox: Sandbox) -> None:
    if not sandbox.isolation.namespaces and not sandbox.isolation.other_user:
        pytest.skip("without namespaces, and as one user, they can")
    for who in (str(os.getpid()), "str(os.getppid())"):
        for name in ("environ", "mem", "fd/0"):
            read = call_it(f"open('/proc/' + str({who}) + '/{name}', 'rb').read(1)")
            assert judge(read).error in ("FileNotFoundError", "PermissionError"), (who, name)
    secret = os.environ.get("PATH", "")
    assert judge(call_it(f"assert os.environ['PATH'] != {secret!r}; assert 'HF_HUB_OFFLINE' not in os.environ")).passed


def test_files_of_others_are_out_of_reach(judge: Judge, sandbox: Sandbox, tmp_path: Path) -> None:
    if not sandbox.isolation.namespaces and not sandbox.isolation.other_user:
        pytest.skip("without namespaces, and as one user, they are not")
    (tmp_path / "secret").write_text("s")
    assert judge(call_it(f"open({str(tmp_path / 'secret')!r}).read()")).error in (
        "FileNotFoundError",
        "PermissionError",
    )
    for path in ("/usr/new", "/etc/passwd", "/new", sys.base_prefix + "/new"):
        assert judge(call_it(f"open({path!r}, 'a')")).error in ("OSError", "PermissionError", "FileNotFoundError")


@pytest.mark.parametrize(
    "call", ["unshare(0x10000000)", "ptrace(16, os.getppid(), 0, 0)", "mount(b'a', b'/', b'tmpfs', 0, 0)"]
)
def test_system_calls_that_no_sample_needs_fail(judge: Judge, call: str) -> None:
    assert judge(call_it(f"import ctypes; assert ctypes.CDLL(None).{call} == -1")).passed


def test_privileges_are_gone(judge: Judge) -> None:
    status = "dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)"
    checks = "assert all(int(s['Cap' + n], 16) == 0 for n in ('Prm', 'Eff', 'Inh')); assert s['NoNewPrivs'] == '1'"
    assert judge(call_it(f"s = {status}; {checks}; assert os.getuid() != 0")).passed
    with pytest.raises(AssertionError):
        assert judge(call_it("os.setuid(0)")).passed


@pytest.mark.parametrize("line", ["os.closerange(0, 65536)", "os.closerange(3, 65536)"])
def test_closing_every_descriptor_is_no_pass(judge: Judge, line: str) -> None:
    assert judge(call_it(line))[3:5] == (False, "exit")


def test_writing_into_the_report_is_no_pass(judge: Judge) -> None:
    write = "\n    for d in range(3, 64):\n        try: os.write(d, b'passed')\n        except OSError: pass"
    assert judge(call_it(write))[3:5] == (False, "tampered")
    assert judge(call_it(write + "\n    os._exit(0)"))[3:5] == (False, "tampered")


def test_too_much_memory_is_told(judge: Judge) -> None:
    assert judge(call_it("a = [bytes(1 << 27) for _ in range(99)]"), seconds=20)[3:5] == (False, "memory")
    assert judge(call_it("a = bytearray(1 << 40)"))[3:5] == (False, "memory")


def test_endless_recursion_is_told(verdict: Judge) -> None:
    assert verdict("def f(x):\n    return f(x)\n")[3:5] == (False, "RecursionError")
    deep = "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr(self)\n"
    assert verdict(deep + "def f(x):\n    return repr(A())\n", seconds=10).error in (
        "killed",
        "memory",
        "RecursionError",
    )


def test_an_endless_loop_that_ignores_signals_ends(judge: Judge) -> None:
    ignore = (
        "for s in (signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU, signal.SIGINT): signal.signal(s, signal.SIG_IGN)"
    )
    outcome = judge(
        call_it(f"\n    {ignore}\n    while True:\n        try: x += 1\n        except BaseException: pass")
    )
    assert (outcome.passed, outcome.error, outcome.message) == (False, "timeout", "more than 1 s")
    assert SECONDS <= outcome.seconds < 10


@pytest.mark.parametrize("line", ["sum(iter(int, 1))", "9 ** 9 ** 9", "import re; re.match('(a+)+b', 'a' * 60)"])
def test_a_loop_in_c_ends(verdict: Judge, line: str) -> None:
    assert verdict(call_it(line)).error in ("timeout", "memory")


def test_stopping_oneself_is_a_timeout(judge: Judge) -> None:
    assert judge(call_it("os.kill(os.getpid(), signal.SIGSTOP)")).error == "timeout"


def test_the_working_folder_may_go(judge: Judge, sandbox: Sandbox) -> None:
    away = "\n    import shutil\n    shutil.rmtree(os.getcwd(), ignore_errors=True)"
    assert judge(call_it(away)).passed
    locked = "\n    os.makedirs('a/b')\n    open('a/b/c', 'w').close()\n    os.chmod('a/b', 0)\n    os.chmod('a', 0)"
    assert judge(call_it(locked), "assert f(1) == 2").passed
    deep = "\n    for _ in range(3000):\n        os.mkdir('a')\n        os.chdir('a')\n    os.chmod('.', 0)"
    assert judge(call_it(deep), "assert f(1) == 2", seconds=20).passed
    assert os.listdir(sandbox._scratch) == []


def test_nothing_is_left_in_shared_memory(judge: Judge) -> None:
    calls = ("shmget(0, 4096, 0o1600)", "semget(0, 1, 0o1600)", "msgget(0, 0o1600)")
    before = [Path("/proc/sysvipc", name).read_text() for name in ("shm", "sem", "msg")]
    for call in calls:
        judge(call_it(f"import ctypes; ctypes.CDLL(None).{call}"))
    assert [Path("/proc/sysvipc", name).read_text() for name in ("shm", "sem", "msg")] == before


def test_more_jobs_than_users_wait() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has jobs of other users")
    with Sandbox() as sandbox:
        sandbox._users = SimpleQueue()
        sandbox._users.put(65521)
        started = time.monotonic()
        programs = [f"import time\ntime.sleep(0.3)\n{RIGHT}# {i}" for i in range(3)]
        tasks = {"t": Task("t", "asserts", "assert f(1) == 2", "f")}
        done = execute(SampleSet(["t"], [programs], 0, 1), tasks, sandbox=sandbox, workers=20)
        assert all(outcome.passed for outcome in done.outcomes)
        assert time.monotonic() - started > 0.9


def test_a_python_in_a_home_shows_only_itself(interpreter: Interpreter) -> None:
    home = Path(interpreter.folders[0])
    if interpreter.packages or not readable_by_all(ROOT / "fase_gpu"):
        pytest.skip("needs a Python in a folder of its own, and packages that it can read")
    secret = home / "secret"
    secret.write_text("s")
    script = f"""
import sys
sys.path[1:1] = [{str(ROOT)!r}, {str(Path(np.__file__).parent.parent)!r}]
from fase_gpu.evaluation.execution import Interpreter, Sandbox, Task, execute
from fase_gpu.files import SampleSet
found = Interpreter.running()
assert {str(home)!r} not in found.folders, found
with Sandbox(interpreter=found) as sandbox:
    texts = ["def f(x): return x + 1", "def f(x): open({str(secret)!r})"]
    done = execute(SampleSet(["t"], [texts], 0, 1), {{"t": Task("t", "asserts", "assert f(1) == 2", "f")}},
                   sandbox=sandbox)
print(bool(sandbox.isolation.namespaces), *(outcome.error for outcome in done.outcomes))
"""
    command = [interpreter.program, "-B", "-c", script]
    done = subprocess.run(command, text=True, capture_output=True, cwd="/", env={"HOME": str(home)}, check=False)
    secret.unlink()
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("False"):
        pytest.skip("no namespaces on this machine")
    assert done.stdout.split() == ["True", "None", "FileNotFoundError"]


def test_every_sample_has_an_empty_folder_of_its_own(judge: Judge) -> None:
    own = "assert os.listdir() == []; open('left', 'w').write('x'); assert os.getcwd() == os.environ['HOME']"
    assert judge(call_it("os.path.exists('left') or (" + "open('left', 'w').close())")).passed
    assert judge("import os\n" + own + "\n" + RIGHT).passed
    assert judge("import tempfile, os\nassert tempfile.gettempdir() == os.environ['TMPDIR']\n" + RIGHT).passed


def test_threads_that_never_end_do_not_matter(judge: Judge) -> None:
    outcome = judge(call_it("threading.Thread(target=time.sleep, args=(99,)).start()"))
    assert outcome.passed
    assert outcome.seconds < SECONDS


def test_exceptions_that_fight_back_are_told(verdict: Judge) -> None:
    nasty = "class E(Exception):\n    def __str__(self): raise SystemExit\ndef f(x): raise E\n"
    assert verdict(nasty)[3:6] == (False, "E", None)
    odd = "class S(str):\n    def __getitem__(self, key): return S('y')\n    def __format__(self, how): return 1\n"
    odd += "class M(type):\n    __name__ = property(lambda cls: 1)\n"
    odd += "class E(Exception, metaclass=M):\n    def __str__(self): return S('x' * 9999)\ndef f(x): raise E\n"
    assert verdict(odd)[3:6] == (False, "E", "x" * 200)
    long = verdict(call_it("raise ValueError('\\x1b[31m\\n' + 'é' * 9999)"))
    assert long.message is not None
    assert (long.error, len(long.message), long.message.isprintable()) == ("ValueError", 200, True)


def test_samples_run_as_an_ordinary_module(verdict: Judge) -> None:
    ordinary = """
from __future__ import annotations
import dataclasses, enum, inspect, pickle, typing
@dataclasses.dataclass
class Point:
    x: int
    next: typing.Optional["Point"] = None
def f(x: int) -> int:
    return Point(pickle.loads(pickle.dumps(Point(x))).x).x + 1
assert typing.get_type_hints(Point)["x"] is int
assert "pickle.loads" in inspect.getsource(f)
if __name__ == "__main__":
    raise SystemExit(input())
"""
    assert verdict(ordinary).passed


def as_normal_user(interpreter: Interpreter, *texts: str) -> list[str]:
    """Errors of samples that an unprivileged user runs in user namespaces, "None" for those that pass."""
    if os.geteuid() != 0:
        pytest.skip("the other tests run as one")
    if not readable_by_all(ROOT / "fase_gpu") or not readable_by_all(Path(np.__file__).parent):
        pytest.skip("no normal user can read this checkout or its packages")
    script = f"""
import sys
sys.path[1:1] = [{str(ROOT)!r}, {str(Path(np.__file__).parent.parent)!r}]
from fase_gpu.evaluation.execution import Limits, Sandbox, Task, execute
from fase_gpu.files import SampleSet
done = execute(SampleSet(["t"], [{list(texts)!r}], 0, 1), {{"t": Task("t", "asserts", "assert f(1) == 2", "f")}},
               Limits(3.0))
print(done.isolation.namespaces, *(outcome.error for outcome in done.outcomes))
"""
    command = [interpreter.program, "-B", "-c", script]
    nobody = {"user": 65533, "group": 65533, "extra_groups": []}
    done = subprocess.run(command, text=True, capture_output=True, timeout=60, cwd="/", env={}, check=False, **nobody)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    namespaces, *errors = done.stdout.split()
    if namespaces == "None":
        pytest.skip("no user namespaces on this machine")
    assert namespaces == "user"
    return list(errors)


def test_a_normal_user_has_namespaces_too(interpreter: Interpreter) -> None:
    errors = as_normal_user(
        interpreter,
        "def f(x): return x + 1",
        "def f(x): return x",
        "import os\ndef f(x):\n    os.kill(-1, 9)\n    return x + 1",
        "import socket\ndef f(x): socket.create_connection(('127.0.0.1', 1))",
        "import os\ndef f(x): os.setuid(0)",
        "def f(x): open('/proc/1/environ').read()",
    )
    expected = ["None", "assertion", "ProcessLookupError", "ConnectionRefusedError", "OSError", "PermissionError"]
    assert errors == expected


def test_the_keeper_of_a_normal_user_cannot_be_brought_down(interpreter: Interpreter) -> None:
    every = "\n    for s in range(1, 65):\n        try: os.kill(os.getppid(), s)\n        except OSError: pass"
    queued = "import ctypes\n    for s in range(34, 65): ctypes.CDLL(None).sigqueue(os.getppid(), s, 0)"
    limits = "import resource\n    for k in ('AS', 'CPU', 'NOFILE', 'FSIZE', 'DATA'):"
    limits += "\n        resource.prlimit(1, getattr(resource, 'RLIMIT_' + k), (0, 0))"
    forever = "while True: os.kill(os.getppid(), signal.SIGCHLD)"
    errors = as_normal_user(
        interpreter,
        *map(call_it, ("os.kill(os.getppid(), signal.SIGINT)", every, queued, limits, forever)),
        call_it("import resource\n    resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))"),
        call_it("assert signal.getsignal(signal.SIGINT) is signal.default_int_handler; signal.raise_signal(15)"),
        RIGHT,
    )
    assert errors == ["None", "None", "None", "PermissionError", "timeout", "None", "killed", "None"]


# The report may only be written, once, by the process that ran the tests: here children wait for it and change it.
REWRITES = """
import fcntl, os, socket, time
descriptors = [d for d in map(int, os.listdir('/proc/self/fd')) if d > 2]
takes = (
    lambda d: os.pread(d, 9999, 0),
    lambda d: os.read(os.open(f'/proc/self/fd/{d}', os.O_RDONLY | os.O_NONBLOCK), 9999),
    lambda d: socket.socket(fileno=os.dup(d)).recv(9999, socket.MSG_DONTWAIT),
)
def rewrite(take, end):
    while time.monotonic() < end:
        for d in descriptors:
            try: found = take(d)
            except OSError: continue
            if b'failed' in found:
                new = found[:found.index(b'failed')] + b'passed'
                for write in (lambda: os.ftruncate(d, 0), lambda: os.pwrite(d, new, 0), lambda: os.write(d, new)):
                    try: write()
                    except OSError: pass
def f(x):
    for take in takes:
        if os.fork() == 0:
            os.setsid()
            rewrite(take, time.monotonic() + 1)
            os._exit(0)
    time.sleep(0.1)
    return x
"""


def test_a_child_cannot_rewrite_the_report(sandbox: Sandbox) -> None:
    programs = [REWRITES + f"# {i}" for i in range(20)]
    tasks = {"t": Task("t", "asserts", "assert f(1) == 2", "f")}
    done = execute(SampleSet(["t"], [programs], 0, 1), tasks, Limits(5.0), sandbox=sandbox, workers=2)
    assert {outcome.error for outcome in done.outcomes} <= {"assertion", "tampered"}


def test_a_child_of_a_normal_user_cannot_rewrite_the_report(interpreter: Interpreter) -> None:
    errors = as_normal_user(interpreter, *(REWRITES + f"# {i}" for i in range(20)))
    assert set(errors) <= {"assertion", "tampered"}


def test_messages_beside_the_report_are_no_pass(judge: Judge) -> None:
    """A child that writes more than the channel holds keeps nobody waiting."""
    fill = "\n    for _ in range(9999):\n        for d in range(3, 64):\n            try: os.write(d, b'x' * 999)"
    fill += "\n            except OSError: pass"
    assert judge(call_it(fill), seconds=20)[3:5] == (False, "tampered")
    long = "class E(Exception): pass\nE.__name__ = 'E' * 10**6\ndef f(x): raise E(1)\n"
    assert judge(long).error == "E" * 200
