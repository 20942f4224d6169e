"""Linux calls that Python 3.11 has no names for: namespaces, mounts, capabilities, process controls."""

from __future__ import annotations

import ctypes
import os

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
# Flags of a more privileged namespace's mount have to stay: as statvfs tells them, as mount takes them.
_KEPT = ((4, 4), (8, 8), (1024, 1024), (2048, 2048), (4096, 1 << 21))
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_AF_UNIX, _SOCK_SEQPACKET, _SHUT_WR = 1, 5, 1
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def _text(text: str | None) -> ctypes.c_char_p:
    return ctypes.c_char_p(None if text is None else os.fsencode(text))


def _prctl(option: int, value: int) -> None:
    _call("prctl", option, *(ctypes.c_ulong(argument) for argument in (value, 0, 0, 0)))


def unshare(namespaces: int) -> None:
    _call("unshare", namespaces)


def map_user(uid: int, gid: int) -> None:
    """Be the same user and group in the new user namespace."""
    for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(line)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    try:
        _call("mount", _text(source), _text(target), _text(kind), ctypes.c_ulong(flags), _text(options))
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({source or kind or 'remount'} on {target})") from None


def private_mounts() -> None:
    """Let nothing that is mounted from here on be seen outside."""
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)


def mount_memory(target: str, size: int, mode: str) -> None:
    """A file system in memory of at most `size` bytes."""
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode={mode},size={size},nr_inodes=20000")


def mount_processes(target: str) -> None:
    """This PID namespace's /proc."""
    _mount("proc", target, "proc", _MS_NOSUID | _MS_NODEV | 8)


def bind_read_only(source: str, target: str) -> None:
    _mount(source, target, None, _MS_BIND | _MS_REC)
    found = os.statvfs(target).f_flag
    kept = sum(flag for told, flag in _KEPT if found & told)
    _mount(None, target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | kept)


def read_only_root() -> None:
    _mount(None, "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def change_root(folder: str) -> None:
    """Make `folder`, which is a mount, the root and let go of the old one."""
    os.chdir(folder)
    _call("pivot_root", _text("."), _text("."))
    # Both roots lie on each other now; what is detached is the old one.
    _call("umount2", _text("."), _MNT_DETACH)
    os.chdir("/")


def loopback_up() -> None:
    """Give a new network namespace its own 127.0.0.1."""
    descriptor = _libc.socket(2, 2, 0)
    request = b"lo".ljust(16, b"\0") + _IFF_UP.to_bytes(2, "little").ljust(24, b"\0")
    try:
        _call("ioctl", descriptor, ctypes.c_ulong(_SIOCSIFFLAGS), ctypes.c_char_p(request))
    finally:
        os.close(descriptor)


def message_channel() -> tuple[int, int]:
    """Descriptors that read and write messages and never block.

    Whoever has the writing one can take nothing back that was written; through /proc a pipe could be opened again, by
    its user, and be read.
    """
    pair = (ctypes.c_int * 2)()
    _call("socketpair", _AF_UNIX, _SOCK_SEQPACKET | os.O_NONBLOCK | os.O_CLOEXEC, 0, pair)
    reading, writing = pair
    _call("shutdown", reading, _SHUT_WR)
    return reading, writing


def bound_capabilities() -> None:
    """See to it that no program gives a capability back; before the change of user, which ends the right to do so."""
    capability = 0
    try:
        while True:
            _prctl(_PR_CAPBSET_DROP, capability)
            capability += 1
    except OSError as error:
        # EINVAL after the last one that the kernel knows; EPERM for a user that has none to give.
        if error.errno not in (1, 22):
            raise


def drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())


def no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(number: int) -> None:
    """Get this signal when the thread that started this process ends. A later change of user undoes it."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent has ended."""
    _prctl(_PR_SET_SUBREAPER, 1)


def set_readable(readable: bool) -> None:
    """Whether other processes of the same user may look into this one's memory and descriptors."""
    _prctl(_PR_SET_DUMPABLE, int(readable))


def system_call(number: int, *arguments: object) -> None:
    _call("syscall", ctypes.c_long(number), *arguments)
