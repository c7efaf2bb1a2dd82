"""A work-horse as its worker sees it: a child that is told which job to run, and says when it has done so."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from tenant_slots.workers.children import Child


@dataclass(frozen=True)
class Order:
    """Which job to run: its RQ id, where it comes from, and what RQ calls its execution, if it has begun one."""

    rq_id: str
    queue: str
    execution: tuple[str, float] | None = None


@dataclass(frozen=True)
class Report:
    """The work-horse has run a job."""

    status: str
    """Of RQ."""
    is_fit: bool
    """Whether it can run another one; it ends otherwise."""
    met_outage: bool = False
    """Whether the database was out of reach in between."""


class Reins:
    """The work-horse's end of the line to its worker."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def next_order(self) -> Order | None:
        """Waits for it; None when the worker has hung up."""
        message = _received(self._line)
        return None if message is None else Order(**message)

    def report(self, report: Report) -> None:
        _send(self._line, report)


class Horse:
    """The worker's end. Raises OSError when the system has no room for another process."""

    def __init__(self, life: Callable[[Reins], object]) -> None:
        self._line, its_end = socket.socketpair()
        try:
            self.child = Child(lambda: life(self._reins(its_end)))
        except OSError:
            self._line.close()
            raise
        finally:
            its_end.close()

    @property
    def pid(self) -> int:
        return self.child.pid

    def _reins(self, its_end: socket.socket) -> Reins:
        self._line.close()
        return Reins(its_end)

    def can_take(self, order: Order) -> bool:
        """Tell it to run a job. False when it has died since the last one."""
        if self.child.has_ended():
            return False
        with suppress(OSError):
            _send(self._line, order)
            return True
        return False

    def report(self, seconds: float) -> Report | None:
        """What it says within so many seconds; None when it has nothing to say, dead or alive."""
        if not self.child.wait(seconds, self._line.fileno()):
            return None
        message = _received(self._line)
        return None if message is None else Report(**message)

    def part(self, seconds: float) -> None:
        """It is not needed any more: let it end by itself, or else."""
        self._line.close()
        self.child.wait(seconds)
        if not self.child.has_ended():
            self.child.end()


def _send(line: socket.socket, message: Order | Report) -> None:
    line.sendall(json.dumps(asdict(message)).encode() + b"\n")


def _received(line: socket.socket) -> dict[str, Any] | None:
    """One message; None when the other end is closed."""
    message = b""
    while not message.endswith(b"\n"):
        try:
            part = line.recv(4096)
        except OSError:
            return None
        if not part:
            return None
        message += part
    received: dict[str, Any] = json.loads(message)
    return received
