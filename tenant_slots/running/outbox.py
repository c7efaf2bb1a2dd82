"""How a job ended, left by its work-horse for the worker that records it."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import weakref
import zlib
from typing import Any


class Outbox:
    """A file without a name that a worker shares with its work-horses: in memory where there is ``memfd``, as on Linux.

    An outcome counts whole or not at all: the header, which names the run's token, the length and a checksum, is
    written last. What a work-horse left when it was killed halfway, or that ran another job, does not count.
    """

    header = struct.Struct("=QII")

    def __init__(self) -> None:
        self._file = _nameless_file()
        weakref.finalize(self, os.close, self._file)

    def empty(self) -> None:
        os.ftruncate(self._file, 0)

    def put(self, token: int, outcome: dict[str, Any]) -> None:
        content = json.dumps(outcome).encode()
        written = os.pwrite(self._file, content, self.header.size)
        if written == len(content):
            os.pwrite(self._file, self.header.pack(token, len(content), zlib.crc32(content)), 0)

    def take(self, token: int) -> dict[str, Any] | None:
        """The outcome of the run with this token; None when its horse ended without one."""
        header = os.pread(self._file, self.header.size, 0)
        if len(header) < self.header.size:
            return None
        named, length, checksum = self.header.unpack(header)
        content = os.pread(self._file, length, self.header.size)
        if named != token or zlib.crc32(content) != checksum:
            return None
        outcome: dict[str, Any] = json.loads(content)
        return outcome


def _nameless_file() -> int:
    """A descriptor that children inherit by fork and lose by exec. No full disk can keep an outcome from memory."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tenant_slots")
    descriptor, path = tempfile.mkstemp(prefix="tenant_slots_")
    os.unlink(path)
    return descriptor
