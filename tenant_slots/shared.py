"""What a worker shares with its work-horse: which slot it holds, the job itself, and how the job ended."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tenant_slots.models import TenantJob


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


class Outbox:
    """Where a work-horse leaves the outcome of its job for its worker, which has a connection to record it."""

    header = struct.Struct("=Q")

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the worker

    def empty(self) -> None:
        os.ftruncate(self._file.fileno(), 0)

    def put(self, outcome: dict[str, Any]) -> None:
        """The length comes last, so that a horse killed here has left nothing rather than a half."""
        content = json.dumps(outcome).encode()
        os.pwrite(self._file.fileno(), content, self.header.size)
        os.pwrite(self._file.fileno(), self.header.pack(len(content)), 0)

    def take(self) -> dict[str, Any] | None:
        """The outcome; None when the horse ended without one."""
        header = os.pread(self._file.fileno(), self.header.size, 0)
        if not header:
            return None
        (length,) = self.header.unpack(header)
        outcome: dict[str, Any] = json.loads(os.pread(self._file.fileno(), length, self.header.size))
        return outcome


@dataclass
class Process:
    """What the worker class has arranged for the process that runs jobs. Nothing, in a stock worker."""

    witness: Witness = field(default_factory=Witness)
    beats: bool = False
    started: TenantJob | None = None
    """The job that the worker has already marked as running for its horse."""
    outbox: Outbox | None = None


this = Process()
