"""Which run a process executes, in a few bytes that others can read: its worker, and whoever is about to kill it."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from tenant_slots.memory_file import memory_file_of_size

LABEL = "tenant_slots_witness"


class Phase(IntEnum):
    IDLE = 0
    TAKING = 1
    HOLDING = 2
    ENDING = 3


class Seen(NamedTuple):
    """What a witness says."""

    job_id: int
    token: int
    process: int
    """The pid that executes the run."""
    phase: Phase


LAYOUT = struct.Struct("=qqqB")
CHECKSUM = struct.Struct("=I")
SIZE = LAYOUT.size + CHECKSUM.size

PAUSES = (*[0.0] * 10, *[0.001] * 500)
"""Seconds between looks at a witness that is just being written. Only a writer that was killed takes longer."""


class Witness:
    """A few bytes in which a process notes which run it executes.

    A worker shares them with its work-horse. So it knows which lease to renew, and whether a horse that ended still
    held a slot, without asking the database about every job. Other processes of the host look there before they kill.
    """

    def __init__(self, memory: Any = None) -> None:
        self._memory: Any = bytearray(SIZE) if memory is None else memory
        self.idle()

    @classmethod
    def shared(cls) -> Witness:
        """One that forked children write to as well, and that `seen_in` finds.

        Its size stays: the system ends whoever looks at a part that is gone.
        """
        file = memory_file_of_size(LABEL, SIZE)
        try:
            return cls(mmap.mmap(file, SIZE))  # which has a descriptor of its own
        finally:
            os.close(file)

    def taking(self, job_id: int, token: int, process: int) -> None:
        """The run with this token, which this process executes, may get the job's slot from now on."""
        self._write(Seen(job_id, token, process, Phase.TAKING))

    def handed_to(self, process: int) -> None:
        """Another process executes the run from now on."""
        self._write(self.read()._replace(process=process))

    def holding(self) -> None:
        self._write(self.read()._replace(phase=Phase.HOLDING))

    def ending(self) -> None:
        """The slot is being released: from now on a row that is not ours any more is no reason to die."""
        self._write(self.read()._replace(phase=Phase.ENDING))

    def idle(self) -> None:
        self._write(Seen(0, 0, 0, Phase.IDLE))

    def read(self) -> Seen:
        return _settled(lambda: bytes(self._memory[:SIZE]))

    def _write(self, seen: Seen) -> None:
        content = LAYOUT.pack(*seen)
        self._memory[:SIZE] = content + _checksum(content)


def seen_in(process: int) -> Iterator[Seen]:
    """What the witnesses of another process of this host say. Raises OSError when they may not be looked at."""
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            if LABEL not in os.readlink(entry):
                continue
            file = os.open(entry, os.O_RDONLY)
        except FileNotFoundError:  # closed meanwhile
            continue
        try:
            yield _settled(partial(os.pread, file, SIZE, 0))
        finally:
            os.close(file)


def _settled(read: Callable[[], bytes]) -> Seen:
    """A reading that no write has torn: that two agree says little, the writer may have been stopped halfway."""
    for pause in PAUSES:
        content = read()
        if content[LAYOUT.size :] == _checksum(content[: LAYOUT.size]):
            break
        time.sleep(pause)
    job_id, token, process, phase = LAYOUT.unpack(content[: LAYOUT.size])
    return Seen(job_id, token, process, Phase(phase))


def _checksum(content: bytes) -> bytes:
    return CHECKSUM.pack(crc32(content))
