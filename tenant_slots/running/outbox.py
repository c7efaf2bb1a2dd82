"""How a job ended, left by its work-horse for the worker that records it."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from typing import Any


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
