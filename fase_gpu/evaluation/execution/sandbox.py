"""Jobs in processes of their own that can reach and harm as little as the system allows."""

from __future__ import annotations

import marshal
import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from fase_gpu.errors import InputError, SandboxError

_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"),
    *("/etc/alternatives", "/etc/fonts", "/etc/group", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types"),
    *("/etc/nsswitch.conf", "/etc/passwd", "/etc/timezone"),
)
# Of jobs in a private root. Not /tmp itself: a Python that lies below it is shown there.
_HOME: Final = "/tmp/sample"
# No service and no login has these: https://systemd.io/UIDS-GIDS
_UNUSED_UIDS: Final = range(65520, 65534)
_START: Final = "import sys; sys.path.insert(0, sys.argv.pop()); from confined import launcher; launcher.main()"
# No site, no user's packages, no current folder; the environment is empty but for what is set here.
_OPTIONS: Final = ("-s", "-S", "-P", "-X", "utf8")
# More than the launcher takes to end a job, on a machine that is out of breath.
_GRACE_SECONDS = 60


@dataclass(frozen=True)
class Limits:
    """What one job may take.

    seconds      wall time
    cpu_seconds  processor time of each of its processes; by default two seconds more than the wall time
    idle         (wall, processor): seconds of wall time after which it is ended, like one whose time is over, where all
                 its processes together have neither had a processor nor waited for one for so many seconds
    memory       bytes of address space of each of its processes
    files        bytes of one file, and with a private root of all its files
    processes    processes and threads, at a time
    """

    seconds: float = 5.0
    memory: int = 1 << 30
    files: int = 100_000_000
    processes: int = 64
    cpu_seconds: int | None = None
    idle: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 86400:
            raise InputError(f"seconds: expected above 0 and at most 86400, got {self.seconds:g}")
        if self.memory < 1 << 26:
            raise InputError(f"memory: expected 64 MB at least, which Python itself needs, got {self.memory} bytes")
        if self.files < 1 << 16 or self.processes < 1:
            raise InputError(f"files, processes: too small, got {self.files} bytes and {self.processes}")


@dataclass(frozen=True)
class Isolation:
    """How jobs are kept from everything else.

    namespaces    "root": built with root's rights; "user": in a user namespace; None: there are none
    filtered      a seccomp filter forbids system calls that reach out of the sandbox
    other_user    jobs run as a user that nobody else is
    """

    namespaces: str | None
    filtered: bool
    other_user: bool

    def __str__(self) -> str:
        parts = [f"namespaces ({self.namespaces})" if self.namespaces else "no namespaces"]
        parts += ["system call filter"] if self.filtered else []
        parts += ["unprivileged user"] if self.other_user else []
        return ", ".join([*parts, "resource limits"])

    def missing(self) -> list[str]:
        """What jobs are not kept from, for want of namespaces."""
        if self.namespaces:
            return []
        own = [] if self.other_user else ["reading and changing your files and looking into your processes"]
        return [
            *own,
            "reading what all users may read",
            "seeing other processes",
            "leaving files where all users may write",
            "filling the disk with many files",
            "outliving a run whose processes are killed one by one",
        ]


class Ending(NamedTuple):
    """How a job ended.

    ended      "exit" (by itself or by a signal) or "timeout"
    code       exit status, or minus the number of the signal
    seconds    wall time of its process
    cpu        CPU seconds of its process and of the children that it waited for
    forged     somebody else wrote into the report
    report     what the job's module reported, None where it did not
    """

    ended: str
    code: int
    seconds: float
    cpu: float
    forged: bool
    report: str | None


@dataclass(frozen=True)
class Interpreter:
    """The Python of the jobs: its program, the folders it lies in and the folders of its packages."""

    program: str
    folders: tuple[str, ...]
    packages: tuple[str, ...]

    @staticmethod
    def running() -> Interpreter:
        """The Python that runs now, with the packages that are installed for it."""
        folders = [path for path in map(Path, sys.path) if path.name in ("site-packages", "dist-packages")]
        packages = [str(path) for path in folders if path.is_dir()]
        program = Path(sys.executable)
        prefixes = {Path(prefix) for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)}
        prefixes |= {program.parent.parent, program.resolve().parent.parent}
        shown = {*packages, *(str(path) for prefix in prefixes for path in _of_python(prefix, program))}
        return Interpreter(str(program), tuple(shown | {os.path.realpath(path) for path in shown}), tuple(packages))


def _of_python(prefix: Path, program: Path) -> list[Path]:
    """A folder that Python is installed in, or only Python's part of it where it is somebody's home or holds one."""
    homes = []
    with suppress(RuntimeError):
        homes.append(Path.home())
    for uid in (os.getuid(), program.stat().st_uid):
        with suppress(KeyError):
            homes.append(Path(pwd.getpwuid(uid).pw_dir))
    real = prefix.resolve()
    private = [home.resolve() for home in homes]
    if not any(home.is_relative_to(real) or real == home / ".local" for home in private):
        return [prefix]
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    parts = [f"lib*/{version}", f"lib*/lib{version}*", "bin/python*", "pyvenv.cfg"]
    return [path for part in parts for path in prefix.glob(part)] if real != Path("/") else []


class Sandbox:
    """Runs jobs, from any number of threads, with the best isolation that works here or with a given one.

    A job is a module of the sub-package `confined` with `run(payload, report)`: it is called in the sandbox with what
    `run` was given and calls `report(text)` once when it is done.

        with Sandbox() as sandbox:
            ending = sandbox.run("judge", {...}, Limits())

    Started by root, jobs are users that no service and no login has, of which there are 14: more jobs wait for one.
    Two runs at the same time have the same 14: without namespaces jobs of the one can then change those of the other.

    Raises InputError where there is neither a namespace nor a filter, and where a job would have to run as root.
    """

    def __init__(self, isolation: Isolation | None = None, interpreter: Interpreter | None = None) -> None:
        if sys.platform != "linux":
            raise InputError(f"execution of samples needs Linux, got {sys.platform}; run it in a container")
        self._interpreter = interpreter or Interpreter.running()
        self._visible = _visible(self._interpreter.folders)
        self._users: SimpleQueue[int] = SimpleQueue()
        for uid in _UNUSED_UIDS:
            self._users.put(uid)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._scratch = tempfile.mkdtemp(prefix="fase_gpu-")
        try:
            # Jobs of another user have to get to their own folder below it.
            os.chmod(self._scratch, 0o711)
            self.isolation = self._working(candidates() if isolation is None else [isolation])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every job that still runs and remove all folders."""
        self._stopped = True
        self.interrupt()
        _remove(self._scratch)

    def interrupt(self) -> None:
        """End the jobs that run now; what is told of them means nothing."""
        with self._lock:
            for process in self._running:
                # Not SIGKILL: without namespaces it has to end what its job started.
                process.terminate()

    def run(self, module: str, payload: Any, limits: Limits) -> Ending:
        """Run one job and wait for its end. `payload`: anything that marshal takes.

        Raises SandboxError, with the reason, when the sandbox could not be built or was closed meanwhile.
        """
        return self._run(self.isolation, module, payload, limits)

    def _working(self, choices: list[Isolation]) -> Isolation:
        reasons = []
        for isolation in choices:
            try:
                ending = self._run(isolation, "probe", None, Limits(seconds=30))
            except SandboxError as error:
                reasons.append(f"{isolation}: {error}")
                continue
            if ending.report == "ready":
                return isolation
            reasons.append(f"{isolation}: {self._interpreter.program} cannot be run by an unprivileged user")
        raise InputError(f"samples cannot be run safely here, use another machine or user: {'; '.join(reasons)}")

    def _run(self, isolation: Isolation, module: str, payload: Any, limits: Limits) -> Ending:
        with self._user(isolation) as uid, self._folder(isolation, uid) as folder:
            home = _HOME if isolation.namespaces else folder
            job = {
                "isolation": isolation.namespaces or "limits",
                "filtered": isolation.filtered,
                "uid": uid,
                "folder": folder,
                "home": home,
                "visible": self._visible,
                "paths": list(self._interpreter.packages),
                "module": module,
                "payload": payload,
                "seconds": float(limits.seconds),
                "idle": limits.idle,
                "cpu_seconds": limits.cpu_seconds or int(limits.seconds) + 2,
                "memory": limits.memory,
                "file_bytes": limits.files,
                "disk_bytes": limits.files,
                "processes": limits.processes,
            }
            return self._ending(marshal.dumps(job), home, limits.seconds)

    def _ending(self, job: bytes, home: str, seconds: float) -> Ending:
        environment = {
            "PATH": f"{Path(self._interpreter.program).parent}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": home,
            "TMPDIR": home,
            "MPLBACKEND": "Agg",
            # The order of sets of strings is the same in every run.
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        # Thread pools of one: many threads' stacks count against the memory limit, and samples run side by side.
        environment |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
        arguments = [self._interpreter.program, *_OPTIONS, "-c", _START, str(Path(__file__).parent)]
        with self._lock:
            if self._stopped:
                raise SandboxError("the sandbox is closed")
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            told, problem = process.communicate(job, timeout=seconds + _GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            # A job may slow its keeper down.
            process.kill()
            process.communicate()
            return Ending("timeout", -signal.SIGKILL, seconds + _GRACE_SECONDS, 0.0, False, None)
        finally:
            with self._lock:
                self._running.discard(process)
        if self._stopped:
            raise SandboxError("the sandbox is closed")
        if process.returncode in (-signal.SIGKILL, -signal.SIGTERM) and not problem:
            # The job brought its keeper down, or a machine that ran out of memory took the launcher along.
            return Ending("exit", -9, 0.0, 0.0, False, None)
        if process.returncode != 0:
            lines = problem.decode("utf-8", "replace").strip().splitlines() or [f"status {process.returncode}"]
            raise SandboxError(lines[-1])
        header, _, report = told.partition(b"\n")
        ended, code, took, cpu, forged = header.decode().split()
        text = report.decode("utf-8", "replace") if report else None
        return Ending(ended, int(code), float(took), float(cpu), forged == "1", text)

    @contextmanager
    def _user(self, isolation: Isolation) -> Iterator[int | None]:
        """A user for one job at a time, so that jobs at the same time have limits apart; waits until one is free."""
        if not isolation.other_user:
            yield None
            return
        uid = self._users.get()
        try:
            yield uid
        finally:
            self._users.put(uid)

    @contextmanager
    def _folder(self, isolation: Isolation, uid: int | None) -> Iterator[str]:
        """The job's own folder, or where its private root is mounted, which nobody else sees."""
        if isolation.namespaces:
            yield self._scratch
            return
        folder = tempfile.mkdtemp(dir=self._scratch)
        try:
            if uid is not None:
                os.chown(folder, uid, uid)
            yield folder
        finally:
            _remove(folder)


def candidates() -> list[Isolation]:
    """Every isolation that may work for this user, the best first."""
    root = os.geteuid() == 0
    namespaces = "root" if root else "user"
    # Without either, a sample could end every process of its user.
    return [Isolation(namespaces, True, root), Isolation(namespaces, False, root), Isolation(None, True, root)]


def _visible(folders: tuple[str, ...]) -> list[str]:
    """Absolute paths to show, none of them below another."""
    found: list[str] = []
    for path in sorted({*_SYSTEM, *folders} - {"/"}):
        below = any(path.startswith(f"{shown}/") and not os.path.islink(shown) for shown in found)
        if os.path.exists(path) and not below:
            found.append(path)
    return found


def _remove(folder: str) -> None:
    """Remove a folder, of whose inside a job may have made parts unreadable, or deeper than any path is long.

    What cannot be removed stays.
    """
    unique, waiting, empty = os.urandom(8).hex(), [folder], 0
    while waiting:
        parent = waiting.pop()
        with suppress(OSError):
            os.chmod(parent, stat.S_IRWXU)
            for name in os.listdir(parent):
                path = f"{parent}/{name}"
                with suppress(OSError):
                    if not stat.S_ISDIR(os.lstat(path).st_mode):
                        os.unlink(path)
                        continue
                    os.chmod(path, stat.S_IRWXU)
                    # Next to each other instead of within each other.
                    moved = f"{folder}/{unique}{empty}"
                    os.rename(path, moved)
                    waiting.append(moved)
                    empty += 1
            if parent != folder:
                os.rmdir(parent)
    with suppress(OSError):
        os.rmdir(folder)
