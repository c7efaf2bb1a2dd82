"""Which slot a process holds, in a few bytes that a worker shares with its work-horse."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any


class Phase(IntEnum):
    IDLE = 0
    TAKING = 1
    HOLDING = 2
    ENDING = 3


class Witness:
    """A few bytes in which a process notes which slot it holds.

    A worker shares them with its work-horse. So it knows which lease to renew, and whether a horse that ended still
    held a slot, without asking the database about every job.
    """

    layout = struct.Struct("=qqB")

    def __init__(self, memory: Any = None) -> None:
        self._memory: Any = bytearray(self.layout.size) if memory is None else memory

    def taking(self, job_id: int, token: int) -> None:
        """The run with this token may get the job's slot from now on."""
        self._write(job_id, token, Phase.TAKING)

    def holding(self) -> None:
        self._write(*self.run(), Phase.HOLDING)

    def ending(self) -> None:
        """The slot is being released: from now on a row that is not ours any more is no reason to die."""
        self._write(*self.run(), Phase.ENDING)

    def idle(self) -> None:
        self._write(0, 0, Phase.IDLE)

    def run(self) -> tuple[int, int]:
        """Primary key of the job and the token of its run; zeros while there is none."""
        job_id, token, _ = self.read()
        return job_id, token

    def read(self) -> tuple[int, int, Phase]:
        """As `run`, and where it stands."""
        job_id, token, phase = self.layout.unpack_from(self._memory)
        return job_id, token, Phase(phase)

    def _write(self, job_id: int, token: int, phase: Phase) -> None:
        self.layout.pack_into(self._memory, 0, job_id, token, phase)
