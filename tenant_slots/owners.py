"""Owner processes: which process runs a job or keeps a reservation, and whether it is still alive."""

from __future__ import annotations

import functools
import os
import secrets
import signal
import time
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from tenant_slots.models import TenantJob

runs_here: set[int] = set()
"""Tokens of the runs that this process is executing; several when one runs inside another."""


class Liveness(Enum):
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """It is on another host, or belongs to another user who hides it."""


@dataclass(frozen=True)
class Owner:
    """The process that runs a job, and the token of that one run, as the job's row keeps them."""

    worker: str
    host: str
    pid: int
    pid_started: int
    beats: bool
    """Another process or thread sends its heartbeats, so that their absence means something."""
    token: int
    """63 random bits. The number of an attempt is given twice when a failover has lost commits; this is not."""

    def as_fields(self) -> dict[str, Any]:
        return vars(self)


OWNER_FIELDS = tuple(field.name for field in fields(Owner))


def this_process(worker: str, *, beats: bool) -> Owner:
    """This process as the owner of a new run."""
    pid, token = os.getpid(), secrets.randbits(63)
    return Owner(worker=worker, host=this_host(), pid=pid, pid_started=_started(pid) or 0, beats=beats, token=token)


@functools.cache
def this_host() -> str:
    """The same for processes that can see each other's pids: a host's name is not enough, containers share it.

    Empty where there is no /proc; then every owner counts as one of another host.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def liveness(job: TenantJob) -> Liveness:
    """Whether the process that started the job still exists, and has not turned to something else."""
    if not _is_local(job):
        return Liveness.UNKNOWN
    if job.pid == os.getpid() and not job.is_reservation and job.token not in runs_here:
        return Liveness.DEAD
    started = _started(job.pid)
    if started is None and _is_hidden(job.pid):
        return Liveness.UNKNOWN
    return Liveness.ALIVE if started == job.pid_started else Liveness.DEAD


def _is_local(job: TenantJob) -> bool:
    return bool(job.host) and job.host == this_host()


def kill(job: TenantJob) -> bool:
    """SIGKILL what runs a local job: the work-horses of a forking worker with their process groups, else the process.

    False when the operating system does not allow it, or when it would be this process.
    """
    if liveness(job) is not Liveness.ALIVE or job.pid == os.getpid():
        return False
    try:
        horses = [pid for pid in _children(job.pid) if os.getpgid(pid) == pid]
        for horse in horses:
            os.killpg(horse, signal.SIGKILL)
        if not horses:
            os.kill(job.pid, signal.SIGKILL)
    except OSError:
        return liveness(job) is Liveness.DEAD
    _wait_for_end(horses or [job.pid])
    return True


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_for_end(pids: list[int]) -> None:
    """A killed process ends as soon as the kernel runs it; two seconds are for a machine that is very busy."""
    deadline = time.monotonic() + 2
    while any(_started(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)


def _started(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process: with it a reused pid is not mistaken. None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, ValueError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def _is_hidden(pid: int) -> bool:
    """Whether a process exists that /proc does not show: its mount option hidepid hides those of other users."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}").exists()
