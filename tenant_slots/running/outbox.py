"""How a job ended, as long as the database does not have it."""

from __future__ import annotations

import json
import os
import struct
import weakref
import zlib
from typing import Any

from tenant_slots.memory_file import memory_file


class Outbox:
    """A file in memory that a worker shares with its work-horse, which leaves the outcome there before it records it.

    An outcome counts whole or not at all: the header, which names the run's token, the length and a checksum, is
    written last. What a work-horse left when it was killed halfway, or that ran another job, does not count.
    """

    header = struct.Struct("=QII")

    def __init__(self) -> None:
        self._file = memory_file("tenant_slots_outbox")
        weakref.finalize(self, os.close, self._file)

    def put(self, token: int, outcome: dict[str, Any]) -> None:
        content = json.dumps(outcome).encode()
        written = os.pwrite(self._file, content, self.header.size)
        if written == len(content):
            os.pwrite(self._file, self.header.pack(token, len(content), zlib.crc32(content)), 0)

    def take(self, token: int) -> dict[str, Any] | None:
        """The outcome of the run with this token; None when its process ended without one."""
        header = os.pread(self._file, self.header.size, 0)
        if len(header) < self.header.size:
            return None
        named, length, checksum = self.header.unpack(header)
        content = os.pread(self._file, length, self.header.size)
        if named != token or zlib.crc32(content) != checksum:
            return None
        outcome: dict[str, Any] = json.loads(content)
        return outcome
