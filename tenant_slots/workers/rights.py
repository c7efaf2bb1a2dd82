"""What a process may use of the system, and as whom: a job that gives some of it up seldom can take it back."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

from tenant_slots.memory_file import identity

STANDARD_FILES = (0, 1, 2)

_libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None

IOPRIO_GET = {"x86_64": 252, "aarch64": 31}.get(platform.machine())
"""The call that tells the priority of a process' reads and writes. C's library knows it by its number alone."""

IOPRIO_WHO_PROCESS = 1

NAMESPACES = ("mnt", "net", "user", "uts", "ipc", "cgroup", "pid_for_children", "time_for_children")
"""In others of these a process sees other files, another network or other users than before. One of processes is for
those that it starts: once the first of them has ended, the system lets it start no more.
"""

PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS, PR_GET_SECUREBITS = 21, 39, 27
"""From <linux/prctl.h>: whether its calls are filtered, whether no program that it starts gets more rights, and what
root is to it.
"""

PR_GET_DUMPABLE, PR_GET_TIMERSLACK = 3, 30
"""Whether others of its user may look into it, and it into all of /proc/self; and how late it may wake up."""

PR_GET_THP_DISABLE = 42
"""Whether it does without large pages of memory."""

PR_GET_CHILD_SUBREAPER = 37
"""Whether what others leave of their children becomes its own, for which it has to wait."""

QUESTIONS = (
    PR_GET_SECCOMP,
    PR_GET_NO_NEW_PRIVS,
    PR_GET_SECUREBITS,
    PR_GET_DUMPABLE,
    PR_GET_TIMERSLACK,
    PR_GET_THP_DISABLE,
)

F_GETOWN_EX = 16
"""From <fcntl.h>: who gets a file's signals, a thread, a process or a group of these."""

KEYCTL = {"x86_64": 250, "aarch64": 219}.get(platform.machine())
"""As `IOPRIO_GET`: the call that tells which keys a process has."""

KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING = 0, -3
"""From <linux/keyctl.h>."""

CAPABILITIES = struct.pack("=Ii", 0x20080522, 0)
"""From <linux/capability.h>: its third version, and this process."""

BYTES_OF_CAPABILITIES = 24


def have_standard_files() -> None:
    """Whoever has started us may have closed some. What is opened next would have their numbers, such as what a worker
    shares with its work-horse, and what jobs print would be written there.
    """
    for number in STANDARD_FILES:  # the lowest number that is free is given out first
        if _identity(number) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def rights() -> tuple[object, ...]:
    """What this process may use of the system, and as whom."""
    import resource  # not on Windows, where no worker has a work-horse

    limits = {kind: resource.getrlimit(kind) for kind in _kinds_of_limits()}
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    soon_killed = _told("oom_score_adj")  # where memory is short
    standing = os.getpriority(os.PRIO_PROCESS, 0), processors, soon_killed, *_of_linux()
    user = os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getgroups(), os.getpgid(0)
    return limits, standing, user, [_identity(number) for number in STANDARD_FILES]


def _of_linux() -> Iterator[object]:
    """What only Linux has, and what a job changes that is to be a small burden, or starts what it does not trust."""
    if _libc is None:
        return
    yield os.sched_getscheduler(0)
    yield IOPRIO_GET and _libc.syscall(IOPRIO_GET, IOPRIO_WHO_PROCESS, 0)
    yield from (_libc.prctl(question, 0, 0, 0, 0) for question in QUESTIONS)
    yield _has_orphans(_libc)
    yield _capabilities(_libc)
    yield KEYCTL and _libc.syscall(KEYCTL, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0)
    yield _told("personality")
    yield _told("cgroup")  # whose limits hold for it
    yield _told("timers")  # one that a job has made sends its signal to the job that runs then
    yield _files_that_signal()
    with suppress(OSError):
        root = os.stat("/")
        yield root.st_dev, root.st_ino, [_namespace(name) for name in NAMESPACES]


def _has_orphans(libc: ctypes.CDLL) -> int:
    told = ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(told), 0, 0, 0)
    return told.value


def _capabilities(libc: ctypes.CDLL) -> bytes:
    """What it may do of all that root may; zeros where the system does not say."""
    found = ctypes.create_string_buffer(BYTES_OF_CAPABILITIES)
    libc.capget(ctypes.create_string_buffer(CAPABILITIES), found)
    return found.raw


def _namespace(name: str) -> str | None:
    """None where the system has none of that kind."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/ns/{name}")
    return None


def _identity(descriptor: int) -> tuple[int, int] | None:
    with suppress(OSError):
        return identity(descriptor)
    return None


def _files_that_signal() -> list[tuple[str, int, int]]:
    """The open files that send a signal to whoever is named there, as when something has come that can be read."""
    import fcntl  # nor this

    owned = []
    with suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # that of the list itself
                kind, owner = struct.unpack("ii", fcntl.fcntl(int(descriptor), F_GETOWN_EX, bytes(8)))
                if owner:
                    owned.append((descriptor, kind, owner))
    return owned


def _told(name: str) -> bytes:
    """The beginning of what the system tells of this process under that name; empty where it tells nothing."""
    with suppress(OSError):
        descriptor = os.open(f"/proc/self/{name}", os.O_RDONLY)
        try:
            return os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
    return b""


@functools.cache
def _kinds_of_limits() -> set[int]:
    import resource

    return {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
