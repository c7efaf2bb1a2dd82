"""Owner processes: which process runs a job or keeps a reservation, and whether it is still alive."""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from tenant_slots import witness
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.models import TenantJob

runs_here: set[int] = set()
"""Tokens of the runs that this process is executing; several when one runs inside another."""


STOPPED = "TtZX"
"""States of proc(5) in which a process does nothing; the last two it does not leave."""

DEAD = "ZX"

FIRST_PROCESS = 1
"""It is no work-horse of ours, and a signal to the group of that number goes to every process that there is."""

HOST_BYTES = 12
"""Of the digest that names a host: enough that no two of them ever share one."""


class Liveness(Enum):
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """It is on another host, or belongs to another user who hides it."""


@dataclass(frozen=True)
class Owner:
    """The process that answers for a run, and the token of that one run, as the job's row keeps them.

    It is the worker, also where a work-horse runs the job: the horse may be gone while its worker still has to record
    how the job ended.
    """

    worker: str
    host: str
    pid: int
    pid_started: int
    beats: bool
    """Another process or thread sends its heartbeats, so that their absence means something."""
    token: int
    """63 random bits. The number of an attempt is given twice when a failover has lost commits; this is not."""
    horse: int = 0
    """The work-horse and the group of processes that it leads; 0 where the owner runs the job itself."""

    def for_run(self, horse: int) -> Owner:
        """The owner of a new run, which this work-horse executes; 0 for none."""
        return replace(self, token=secrets.randbits(63), horse=horse)

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

    A digest, for every start writes it. Empty where there is no /proc; then every owner counts
    as one of another host.
    """
    try:
        boot, processes = Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return hashlib.blake2b(f"{boot}{processes}".encode(), digest_size=HOST_BYTES).hexdigest()


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
    """SIGKILL what runs a local job, if it still runs that very run; True when nothing does any more.

    The witness of the owner process names the run and the process that executes it: a work-horse, which goes with its
    group, or the worker itself. A worker that has turned to another job is left alone. False too when the operating
    system does not allow it, or when it would be this process.
    """
    try:
        for process in _processes_that_run(job):
            if process == os.getpid():
                return False
            _kill_at(job, process)
    except OSError:
        return liveness(job) is Liveness.DEAD
    return True


def end_leftovers(job: TenantJob) -> None:
    """Kill what a dead work-horse of this host has started and left behind: its group of processes.

    The system gives a number to no other process while a group has it. So where the leader is gone and the group is
    not, it is still that of the horse, unless all of it had ended, and the number came round again. One that nobody has
    waited for yet is gone as well: where the worker died too, that is up to the first process of the container, which
    may take its time, or never do it.
    """
    if job.horse <= FIRST_PROCESS or not _is_local(job):
        return
    if liveness(job) is Liveness.DEAD:
        _end_orphan(job)
        _wait_until(lambda: not _started(job.horse))  # the kernel ends it with its worker, in a moment
    if not _started(job.horse):
        with suppress(OSError):
            os.killpg(job.horse, 0)  # raises where nobody is left, as after nearly every run
            if _is_of_run(job, _members(job.horse)):
                os.killpg(job.horse, signal.SIGKILL)


def _is_of_run(job: TenantJob, members: dict[int, float]) -> bool:
    """Whether one of a group's processes is known to belong to a run: by the witness that it has inherited, by RQ's
    name of the job in its environment, or because it was there when the run was last heard of, or within a lease from
    then, as in so short a time the system does not come round to a number.

    Args:
        members: how many seconds ago each of them has started.
    """
    if any(_names_run(process, job) for process in members):
        return True
    heard = job.beat_at or job.started_at
    ages = members.values()
    return bool(heard and ages) and max(ages) >= (clock.now() - heard).total_seconds() - app_settings.LEASE_TTL


def _names_run(process: int, job: TenantJob) -> bool:
    with suppress(OSError):  # it has ended, or is another user's
        if any(seen.token == job.token for seen in witness.seen_in(process)):
            return True
        return f"RQ_JOB_ID={job.rq_job_id or job.uuid}".encode() in Path(f"/proc/{process}/environ").read_bytes()
    return False


def _end_orphan(job: TenantJob) -> None:
    """Kill a work-horse that has outlived its worker: the kernel spares one whose job has changed its user or group."""
    with suppress(OSError):
        if job.horse in _processes_that_run(job):
            _kill_at(job, job.horse)


def _processes_that_run(job: TenantJob) -> list[int]:
    """As the witness says that the owner shares with its work-horse, where it is left when the owner is dead."""
    found = liveness(job)
    if found is Liveness.UNKNOWN:
        return []
    holder = job.pid if found is Liveness.ALIVE else job.horse
    return [seen.process for seen in witness.seen_in(holder) if seen.token == job.token and seen.process]


def _kill_at(job: TenantJob, process: int) -> None:
    """Stopped, it cannot turn to another job between the look and the kill."""
    os.kill(process, signal.SIGSTOP)
    _wait_until(lambda: _state(process) in STOPPED)
    if process not in _processes_that_run(job):
        os.kill(process, signal.SIGCONT)
    elif os.getpgid(process) == process:
        os.killpg(process, signal.SIGKILL)
    else:
        os.kill(process, signal.SIGKILL)
    _wait_until(lambda: not _started(process) or process not in _processes_that_run(job))


def _wait_until(condition: Callable[[], bool]) -> None:
    """A signal is dealt with as soon as the kernel runs the process; two seconds are for a very busy machine."""
    deadline = time.monotonic() + 2
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)


def _state(pid: int) -> str:
    """The letter of proc(5); that of a dead process when it is gone."""
    return (_stat(pid) or ["X"])[0]


def _started(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process: with it a reused pid is not mistaken. None when it is gone."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in DEAD else int(stat[19])


def _stat(pid: int) -> list[str] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()  # with the process' own name, of any bytes: a title cut short
        return stat.rpartition(b")")[2].decode().split()
    except (OSError, ValueError):
        return None


def all_stats() -> dict[int, list[str]]:
    """What proc(5) says of each process behind its name: the state, the parent, the group and so on.

    Raises OSError where there is no /proc.
    """
    stats = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {process: stat for process, stat in stats.items() if stat}


def _members(group: int) -> dict[int, float]:
    """The processes of a group, and how many seconds ago each has started."""
    uptime, ticks = time.clock_gettime(time.CLOCK_BOOTTIME), os.sysconf("SC_CLK_TCK")
    return {
        process: uptime - int(stat[19]) / ticks
        for process, stat in all_stats().items()
        if stat[0] not in DEAD and int(stat[2]) == group
    }


def _is_hidden(pid: int) -> bool:
    """Whether a process exists that /proc does not show: its mount option hidepid hides those of other users."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}").exists()
