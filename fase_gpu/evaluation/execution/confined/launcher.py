"""The process that builds a sandbox around one job, watches it and says how it ended.

    launcher      unshares the namespaces, starts the keeper and waits
      keeper      the init of the PID namespace: mounts the private root, starts the job, enforces the time limit
        job       without privileges, under resource limits and a system call filter; runs the job's module

Without namespaces the launcher is the keeper. The job is told on stdin (marshal), the end on stdout: a line
`ended code seconds cpu forged`, then what the job reported, at most REPORT_BYTES.

Where the job brings its keeper down, the launcher ends itself by SIGKILL: that is how a job ended, not a sandbox that
could not be built.
"""

from __future__ import annotations

import builtins
import importlib
import marshal
import os
import resource
import sys
import time

from . import filter, kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any, NoReturn
else:
    # signal itself makes enumerations of everything, which takes longer than all the rest of this process.
    import _signal as signal

# So little that a message of it fits into any empty channel.
REPORT_BYTES = 1 << 15
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_OPEN_FILES = 512
# The status of a keeper that did not see its job's end.
_LOST = 77


def main() -> NoReturn:
    """Read the job, run it, tell how it ended; exits with 1 and the reason on stderr where there is no sandbox."""
    with open(0, "rb", closefd=False) as stream:
        job = marshal.loads(stream.read())
    try:
        run(**job)
    except OSError as error:
        os.write(2, f"{error.strerror or error}\n".encode("utf-8", "replace"))
        os._exit(1)
    os._exit(0)


def run(
    isolation: str,
    filtered: bool,
    uid: int | None,
    folder: str,
    home: str,
    visible: list[str],
    paths: list[str],
    module: str,
    payload: object,
    seconds: float,
    idle: tuple[float, float] | None,
    cpu_seconds: int,
    memory: int,
    file_bytes: int,
    disk_bytes: int,
    processes: int,
) -> None:
    """Run `module`.run(payload, report) in a sandbox.

    isolation    "root" or "user": namespaces, built by root or in a user namespace; "limits": none
    filtered     install the system call filter
    uid          user and group of the job; None: who calls
    folder       the mount point of the private root
    home         the job's working folder, below /tmp in a private root
    visible      files and folders of the private root, read-only
    paths        of sys.path, beside the standard library's
    """
    _first_when_memory_is_short()
    # The private root is for another user too, whatever the caller keeps to itself.
    os.umask(0o022)
    work = importlib.import_module(f".{module}", __package__).run
    namespaces = isolation != "limits"
    if namespaces:
        own_uid, own_gid = os.getuid(), os.getgid()
        new = kernel.NEWNS | kernel.NEWPID | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS
        kernel.unshare(new | (kernel.NEWUSER if isolation == "user" else 0))
        if isolation == "user":
            kernel.map_user(own_uid, own_gid)
    # Without namespaces the job's descendants outlive this process, unless it ends them first.
    kernel.die_with_parent(signal.SIGKILL if namespaces else signal.SIGTERM)

    def limited() -> None:
        for kind, limit in (
            (resource.RLIMIT_CPU, cpu_seconds),
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_FSIZE, file_bytes),
            (resource.RLIMIT_NPROC, processes),
            (resource.RLIMIT_NOFILE, _OPEN_FILES),
            (resource.RLIMIT_CORE, 0),
        ):
            hard = resource.getrlimit(kind)[1]
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (limit, limit))
        kernel.bound_capabilities()
        if uid is not None:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        kernel.drop_capabilities()
        kernel.no_new_privileges()
        if not namespaces:
            kernel.die_with_parent(signal.SIGKILL)
        if filtered:
            filter.install(namespaces)

    def job(report: Callable[[str], None]) -> None:
        os.chdir(home)
        sys.path[:] = [*sys.path[1:], *paths]
        work(payload, report)

    if not namespaces:
        kernel.adopt_orphans()
        _watch(limited, job, seconds, idle)
        return
    keeper = os.fork()
    if keeper:
        # Whatever ends the keeper ends its whole namespace.
        _, status = os.waitpid(keeper, 0)
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == _LOST:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(os.waitstatus_to_exitcode(status))
    kernel.die_with_parent(signal.SIGKILL)
    _private_root(folder, home, visible, disk_bytes)
    kernel.loopback_up()
    _watch(limited, job, seconds, idle)


def _first_when_memory_is_short() -> None:
    """Have the kernel end this sandbox before anything else: many processes may each take the memory limit."""
    try:
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("1000")
    except OSError:
        return


def _private_root(root: str, home: str, visible: list[str], disk_bytes: int) -> None:
    """Make a root of which only the temporary folder can be written to and only `visible` is the system's."""
    kernel.private_mounts()
    kernel.mount_memory(root, 1 << 20, "755")
    for name in ("proc", "dev/shm", "tmp"):
        os.makedirs(f"{root}/{name}")
    kernel.mount_memory(f"{root}/tmp", disk_bytes, "1777")
    os.mkdir(root + home)
    os.chmod(root + home, 0o777)
    kernel.mount_memory(f"{root}/dev/shm", disk_bytes, "1777")
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    for path in (*visible, *_DEVICES):
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            open(target, "w").close()
        kernel.bind_read_only(path, target)
    try:
        kernel.mount_processes(f"{root}/proc")
    except OSError as error:
        # In a user namespace of a container that masks parts of /proc. Few samples read it.
        if error.errno != 1:
            raise
    kernel.change_root(root)
    kernel.read_only_root()


def _watch(
    limited: Callable[[], None],
    job: Callable[[Callable[[str], None]], None],
    seconds: float,
    idle: tuple[float, float] | None,
) -> None:
    """Fork the job, wait until it ends or its time is over, end what it left behind, and tell the result on stdout."""
    # So that a job of the same user can neither read the token here nor the descriptors.
    kernel.set_readable(False)
    token = os.urandom(16)
    told, telling = kernel.message_channel()
    # An init takes SIGTERM from its job; otherwise it is from outside.
    heard: set[int] = {signal.SIGCHLD} if os.getpid() == 1 else {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, heard)
    handlers = _ignore_signals(heard)
    ready, started_writing = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if not child:
        _job(limited, job, telling, token, started_writing, handlers)
    try:
        os.close(started_writing)
        os.close(telling)
        ended, status, cpu = _awaited(child, heard, started, seconds, idle)
        took = time.monotonic() - started
        _end_descendants()
        problem = os.read(ready, 1000)
        if not problem:
            forged, report = _reported(told, token)
            header = f"{ended} {os.waitstatus_to_exitcode(status)} {took:.6f} {cpu:.6f} {int(forged)}\n".encode()
            _write_all(1, header + report)
    except BaseException:
        _lose()
    if problem:
        raise OSError(0, problem.decode())


def _ignore_signals(heard: set[int]) -> dict[int, Any]:
    """Be deaf to what a job of the same user may send; the handlers that were there."""
    handlers: dict[int, Any] = {}
    for number in signal.valid_signals() - heard - {signal.SIGKILL, signal.SIGSTOP}:
        handlers[number] = signal.getsignal(number)
        signal.signal(number, signal.SIG_IGN)
    return handlers


def _lose() -> NoReturn:
    # An init cannot kill itself.
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(_LOST)


def _awaited(
    child: int, heard: set[int], started: float, seconds: float, idle: tuple[float, float] | None
) -> tuple[str, int, float]:
    """How the job ended, its status and CPU seconds; it is killed where it takes too long or does too little."""
    deadline = started + seconds
    look = started + idle[0] if idle else deadline
    while True:
        # The clock is looked at every time: a job may send SIGCHLD without a pause.
        late = time.monotonic() >= deadline
        if idle and not late and time.monotonic() >= look:
            late, look = _busy_seconds() < idle[1], deadline
        if late:
            os.kill(child, signal.SIGKILL)
        else:
            found = signal.sigtimedwait(heard, max(min(look, deadline) - time.monotonic(), 0))
            if found is not None and found.si_signo == signal.SIGTERM:
                _end_descendants()
                _lose()
        end = _reap(child, wait=late)
        if end is not None:
            return ("timeout" if late else "exit", *end)


def _busy_seconds() -> float:
    """How long the descendants had a processor or waited for one; infinite where the system does not say."""
    total = 0.0
    try:
        found = _descendants()
        for pid in found:
            with open(f"/proc/{pid}/stat", "rb") as stream:
                own_and_waited_for = stream.read().rpartition(b")")[2].split()[11:15]
            total += sum(map(int, own_and_waited_for)) / os.sysconf("SC_CLK_TCK")
            with open(f"/proc/{pid}/schedstat", "rb") as stream:
                total += int(stream.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        # One that ended just now, too, is not idle.
        return float("inf")
    return total if found else float("inf")


def _reported(told: int, token: bytes) -> tuple[bool, bytes]:
    """Whether anything but one report of the job itself came, and that report."""
    messages = []
    for _ in range(2):
        try:
            # One byte more than is taken, so that more than that is seen.
            messages.append(os.read(told, len(token) + REPORT_BYTES + 1))
        except BlockingIOError:
            messages.append(b"")
    report, more = messages
    if report.startswith(token) and len(report) <= len(token) + REPORT_BYTES and not more:
        return False, report[len(token) :]
    return bool(report or more), b""


def _job(
    limited: Callable[[], None],
    job: Callable[[Callable[[str], None]], None],
    telling: int,
    token: bytes,
    problems: int,
    handlers: dict[int, Any],
) -> NoReturn:
    """In the job's process: lock it up, run, report once, and leave without any exit handler."""
    leave, write, own_pid = os._exit, os.write, os.getpid
    pid, most = own_pid(), REPORT_BYTES

    def report(text: str) -> None:
        # A child that the sample forked comes here too.
        if own_pid() == pid:
            write(telling, token + text.encode("utf-8", "replace")[:most])
        leave(0)

    try:
        os.setsid()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGTERM})
        os.closerange(3, min(telling, problems))
        os.closerange(min(telling, problems) + 1, max(telling, problems))
        os.closerange(max(telling, problems) + 1, 1 << 16)
        null = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)
        limited()
        kernel.set_readable(True)
    except Exception as error:
        write(problems, str(getattr(error, "strerror", None) or error).encode()[:1000])
        leave(1)
    os.close(problems)
    try:
        _look_ordinary()
        job(report)
    finally:
        leave(1)


def _look_ordinary() -> None:
    """Give the sample exit and quit, which the module site would, and take these modules out of its way."""
    import _sitebuiltins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))
    for name in [name for name in sys.modules if name.partition(".")[0] == __package__]:
        del sys.modules[name]


def _reap(child: int, wait: bool) -> tuple[int, float] | None:
    """Status and CPU seconds of the job where it has ended; collects every orphan that has."""
    found = None
    # Not for ever: some may end as fast as they are collected.
    for _ in range(10_000):
        try:
            pid, status, usage = os.wait4(child if wait else -1, 0 if wait else os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status, usage.ru_utime + usage.ru_stime
            if wait:
                return found
    return found


def _end_descendants() -> None:
    """Kill what the job left; where this process is an init, its own end does that."""
    if os.getpid() == 1:
        return
    # Stopped before they are killed: each stopped one keeps its place under the limit of processes, so that ones that
    # fork as fast as they can run out of places instead of taking those of the dead.
    stopped: set[int] = set()
    quiet_rounds = 0
    while quiet_rounds < 3:
        new = _descendants() - stopped
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
        quiet_rounds = 0 if new else quiet_rounds + 1
    while stopped:
        for pid in stopped:
            _signal(pid, signal.SIGKILL)
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            stopped = _descendants()


def _descendants() -> set[int]:
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as stream:
                    children = [int(child) for child in stream.read().split()]
                found.update(children)
                waiting += children
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
