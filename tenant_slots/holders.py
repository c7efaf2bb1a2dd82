"""Which process holds a slot, and whether it is still alive."""

from __future__ import annotations

import functools
import os
import signal
import struct
from dataclasses import asdict, dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from tenant_slots.models import TenantJob


class Liveness(Enum):
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """It is on another host."""


@dataclass(frozen=True)
class Holder:
    """The process that runs a job, as the job's row keeps it."""

    worker: str
    host: str
    pid: int
    pid_started: int
    beats: bool
    """Another process or thread beats for it, so that silence means something."""

    def as_fields(self) -> dict[str, Any]:
        return asdict(self)


def this_process(worker: str, *, beats: bool) -> Holder:
    pid = os.getpid()
    return Holder(worker=worker, host=this_host(), pid=pid, pid_started=_started(pid) or 0, beats=beats)


@functools.cache
def this_host() -> str:
    """The same for processes that can see each other's pids: a host's name is not enough, containers share it.

    Empty where there is no /proc; then every holder counts as one of another host.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def liveness(job: TenantJob) -> Liveness:
    """Whether the process that started the job still exists, and has not turned to something else."""
    if not is_local(job):
        return Liveness.UNKNOWN
    if job.pid == os.getpid() and this.witness.read()[:2] != (job.pk, job.attempt):
        return Liveness.DEAD
    return Liveness.ALIVE if _started(job.pid) == job.pid_started else Liveness.DEAD


def is_local(job: TenantJob) -> bool:
    return bool(job.host) and job.host == this_host()


def kill(job: TenantJob) -> bool:
    """SIGKILL the process group of a local job's work-horse; False when that is not possible or not safe.

    Only a work-horse leads a group of its own. A process that shares its group, such as a SimpleWorker, is left.
    """
    if liveness(job) is not Liveness.ALIVE or job.pid == os.getpid():
        return False
    try:
        if os.getpgid(job.pid) != job.pid:
            return False
        os.killpg(job.pid, signal.SIGKILL)
    except (PermissionError, ProcessLookupError):
        return False
    return True


def _started(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process: with it a reused pid is not mistaken. None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, ValueError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


class Phase(IntEnum):
    IDLE = 0
    TAKING = 1
    HOLDING = 2
    ENDING = 3


class Witness:
    """A few bytes in which a process notes which slot it holds.

    A worker shares them with its work-horse. So it knows which lease to beat, and whether a horse that ended still held
    a slot, without asking the database about every job.
    """

    layout = struct.Struct("=qqB")

    def __init__(self, memory: Any = None) -> None:
        self._memory: Any = bytearray(self.layout.size) if memory is None else memory

    def taking(self, job: TenantJob) -> None:
        """The job may get its slot from now on."""
        self._write(job.pk, job.attempt, Phase.TAKING)

    def holding(self, job: TenantJob) -> None:
        self._write(job.pk, job.attempt, Phase.HOLDING)

    def ending(self) -> None:
        """The slot is being released: from now on a row that is not ours any more is no reason to die."""
        pk, attempt, _ = self.read()
        self._write(pk, attempt, Phase.ENDING)

    def idle(self) -> None:
        self._write(0, 0, Phase.IDLE)

    def read(self) -> tuple[int, int, Phase]:
        """Primary key and attempt of the job, and where it stands."""
        pk, attempt, phase = self.layout.unpack_from(self._memory)
        return pk, attempt, Phase(phase)

    def _write(self, pk: int, attempt: int, phase: Phase) -> None:
        self.layout.pack_into(self._memory, 0, pk, attempt, phase)


@dataclass
class Process:
    """What the worker class has arranged for the process that runs jobs."""

    witness: Witness = field(default_factory=Witness)
    beats: bool = False


this = Process()
