"""How a job ended, as long as the database does not have it."""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tenant_slots.memory_file import SharedFile


class Outbox:
    """A file in memory that a worker shares with its work-horse, which leaves the outcome there before it records it.

    An outcome counts whole or not at all: the header, which names the run's token, the length and a checksum, is
    written last. What a work-horse left when it was killed halfway, or that ran another job, does not count.
    """

    header = struct.Struct("=QII")

    def __init__(self) -> None:
        self._file = SharedFile("tenant_slots_outbox")

    def put(self, token: int, outcome: dict[str, Any]) -> None:
        """Raises OSError where that is impossible: a job has closed the file, or has given up to write any."""
        content = json.dumps(outcome).encode()
        with self._file.opened() as file, _files_of_any_size():
            written = os.pwrite(file, content, self.header.size)
            if written != len(content):
                raise OSError(errno.ENOSPC, f"{written} of {len(content)} bytes could be written")
            os.pwrite(file, self.header.pack(token, len(content), zlib.crc32(content)), 0)

    def clear(self) -> None:
        """Nobody has left anything. Raises OSError as `put`."""
        with self._file.opened() as file:
            os.pwrite(file, self.header.pack(0, 0, 0), 0)

    def take(self, token: int) -> dict[str, Any] | None:
        """The outcome of the run with this token; None when its process ended without one."""
        with self._file.opened() as file:
            header = os.pread(file, self.header.size, 0)
            if len(header) < self.header.size:
                return None
            named, length, checksum = self.header.unpack(header)
            content = os.pread(file, length, self.header.size)
        if named != token or zlib.crc32(content) != checksum:
            return None
        outcome: dict[str, Any] = json.loads(content)
        return outcome


@contextmanager
def _files_of_any_size() -> Iterator[None]:
    """Whatever limit a job has set itself, as far as it can be lifted."""
    import resource  # not on Windows

    soft, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == hard:
        yield
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
