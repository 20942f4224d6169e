"""A seccomp filter: system calls that no sample needs, and those that reach out where no namespace stops them."""

from __future__ import annotations

import ctypes
import os
import struct

from . import kernel

# Numbers of the calls: x86-64, and the common table that ARM64 uses.
_CALLS = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
    "socket": (41, 198),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "clone": (56, 220),
    "clone3": (435, 435),
    "seccomp": (317, 277),
}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
# These outlive their processes.
_SHARED = ("shmget", "semget", "msgget", "mq_open")
_SIGNALS = ("tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
_OWN_PID_ONLY = ("kill", "tgkill", "prlimit64")
_NEVER = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "unshare", "setns", "mount", "umount2", "pivot_root"),
    *("add_key", "request_key", "keyctl", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "open_tree"),
    *("fsopen", "chroot"),
)
_NEW_NAMESPACES = 0x7E020000
_X32 = 0x40000000
_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _FIRST_ARGUMENT_AT, _SECOND_ARGUMENT_AT = 0, 4, 16, 24
# Whom a descriptor's events are signalled to, by any signal: F_SETOWN, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP.
_OWNERS = {"fcntl": (8, 15), "ioctl": (0x8901, 0x8902)}
_SET_FILTER, _NO_SLOWDOWN = 1, 4


def install(namespaces: bool) -> None:
    """Forbid system calls to this process and its children for good; `no_new_privileges` has to be set.

    Limits are changed by a process for itself only: in a user namespace the keeper has the same user. Without
    namespaces also sockets, System V's and POSIX's named memory and queues, and signals to any process but this one.
    Raises OSError where it cannot be done.
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(_ENOSYS, f"seccomp: not known for {machine}")
    column, architecture = _MACHINES[machine]
    number = {name: numbers[column] for name, numbers in _CALLS.items()}
    program = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        program += [(_ABOVE, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    # glibc falls back to clone, whose flags a filter can see.
    program += [(_EQUAL, 0, 1, number["clone3"]), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    for name in (*_NEVER, *(() if namespaces else ("socket", *_SIGNALS, *_SHARED))):
        program += [(_EQUAL, 0, 1, number[name]), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    program += [
        (_EQUAL, 0, 4, number["clone"]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for name in ("prlimit64",) if namespaces else _OWN_PID_ONLY:
        # prlimit64 takes 0 for the caller; to kill, 0 is the whole group.
        program += [
            (_EQUAL, 0, 5, number[name]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_EQUAL, 2, 0, os.getpid()),
            (_EQUAL, 1, 0, 0 if name == "prlimit64" else os.getpid()),
            (_RETURN, 0, 0, _ERRNO | _EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
    for name, (one, other) in () if namespaces else _OWNERS.items():
        program += [
            (_EQUAL, 0, 5, number[name]),
            (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
            (_EQUAL, 1, 0, one),
            (_EQUAL, 0, 1, other),
            (_RETURN, 0, 0, _ERRNO | _EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
    program.append((_RETURN, 0, 0, _ALLOW))
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    instructions = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(instructions)))
    kernel.system_call(number["seccomp"], ctypes.c_ulong(_SET_FILTER), ctypes.c_ulong(_NO_SLOWDOWN), header)
