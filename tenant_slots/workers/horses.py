"""A work-horse as its worker sees it: a child that is told which job to run, and says when it has done so."""

from __future__ import annotations

import errno
import json
import os
import pickle
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tenant_slots.conf import app_settings
from tenant_slots.memory_file import identity
from tenant_slots.models import TenantJob
from tenant_slots.news import News
from tenant_slots.workers.children import Child


@dataclass(frozen=True)
class Order:
    """Which job to run."""

    rq_id: str
    queue: str
    execution: tuple[str, float] | None = None
    """What RQ calls its execution, and since when: of a plain RQ job."""
    job: TenantJob | None = None
    """One of ours that the worker has marked as running."""
    rq_fields: dict[str, Any] | None = None
    """What RQ's job object holds of one of ours: the work-horse need not ask Redis."""
    began: float = 0.0
    """When the worker was about to mark it, by the clock of this host."""
    was_taken: bool = False
    """The worker has admitted it too, and the project's receivers are to hear of that."""


@dataclass(frozen=True)
class Tell:
    """What the project's receivers are to hear of a job that has ended, and that its end is recorded by now."""

    news: list[News]


@dataclass(frozen=True)
class RQEnd:
    """What RQ is to be told of the end of a job."""

    started_at: float
    ended_at: float
    error: str | None
    """The traceback; None for a success."""
    result: bytes = b""
    """As RQ's serializer has written it; empty for None."""


@dataclass(frozen=True)
class Report:
    """The work-horse has done what it was told."""

    ended: RQEnd | None = None
    """Of a job of ours: what RQ is to be told. Of any other the work-horse has told it."""
    is_fit: bool = True
    """Whether it can run another one."""
    met_outage: bool = False
    """Whether the database was out of reach in between."""
    hears: bool = False
    """Whether there are receivers of the project, as in a module that only jobs import, or of Django's Tasks."""
    lingers: bool = False
    """Whether it does something before it runs another job, or parts, which the end of this one must not wait for."""


class Reins:
    """The work-horse's end of the line to its worker."""

    def __init__(self, line: socket.socket, mark: bytes, first: Order | None) -> None:
        self._line, self._mark, self._first, self._orders = line, mark, first, Inbox(line, mark)
        self._identity = identity(line.fileno())

    def next_order(self) -> Order | Tell | None:
        """Waits for it; None when the worker has hung up."""
        if (first := self._first) is not None:
            self._first = None
            return first
        try:
            order: Order | Tell = pickle.loads(self._orders.next())  # type: ignore[arg-type]  # it waits for a whole one
        except (OSError, EOFError):
            return None
        return order

    def report(self, report: Report) -> None:
        """Raises OSError where a job has closed the line, or has another one under its number."""
        if identity(self._line.fileno()) != self._identity:
            raise OSError(errno.EBADF, "a job has closed the line to the worker")
        ended = vars(report.ended).copy() if report.ended else None
        result = ended.pop("result") if ended else b""
        _send(self._line, self._mark, json.dumps({**vars(report), "ended": ended}).encode(), result)


class Horse:
    """The worker's end. Raises OSError when the system has no room for another process.

    Args:
        life: what the work-horse does, with its end of the line.
        first: an order that it is born with.

    What it tells the work-horse is pickled. What comes from there is not: it comes from where the project's code runs.
    """

    def __init__(self, life: Callable[[Reins], object], first: Order | None = None) -> None:
        self._line, its_end = socket.socketpair()
        self._line.setblocking(False)
        self._mark = os.urandom(MARK_BYTES)
        self._inbox, self._parts = Inbox(self._line, self._mark), list[bytes]()
        self._has_hung_up = False
        self._owes_report = first is not None
        try:
            self.child = Child(lambda: life(self._reins(its_end, first)), self._is_through)
        except OSError:
            self._line.close()
            raise
        finally:
            its_end.close()

    @property
    def pid(self) -> int:
        return self.child.pid

    def _reins(self, its_end: socket.socket, first: Order | None) -> Reins:
        self._line.close()
        return Reins(its_end, self._mark, first)

    def can_take(self, order: Order | Tell) -> bool:
        """Tell it what to do.

        False when it has died since the last time, or was killed now because it stands still, or because the order
        cannot be written: arguments may be nested too deeply for that. Another one is born with it.
        """
        if not self.child.has_ended():
            try:
                self._line.settimeout(app_settings.LEASE_TTL / 2)  # it may still put its sessions back, but no longer
                _send(self._line, self._mark, pickle.dumps(order))
                self._line.setblocking(False)
                self._owes_report = True
                return True
            except (OSError, RecursionError, MemoryError):
                self.child.end()
        self._line.close()
        return False

    def report(self, seconds: float) -> Report | None:
        """What it says within so many seconds; None when it has nothing to say, dead or alive, or not all of it yet."""
        until = time.monotonic() + seconds
        while not self._has_reported():
            line = [] if self._has_hung_up else [self._line.fileno()]
            if not self.child.wait(max(0.0, until - time.monotonic()), *line):
                return None
            self._read()
            if self._has_hung_up and not self._has_reported():
                return None
        return self._whole_report()

    def _is_through(self) -> bool:
        """It may have said so right before its end."""
        self._read()
        return not self._owes_report or self._has_reported()

    def _has_reported(self) -> bool:
        return len(self._parts) == PARTS_OF_REPORT

    def _read(self) -> None:
        if self._has_hung_up:
            return
        try:
            self._parts.extend(iter(self._inbox.next, None))
        except (OSError, EOFError, MemoryError):
            self._hang_up()

    def _hang_up(self) -> None:
        """Its end is waited for. A job has closed all files, is another program, or has written to the line by mistake;
        or there is no room for its result. Where the work-horse goes on, it ends when it cannot report."""
        self._has_hung_up = True
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def _whole_report(self) -> Report:
        (message, result), self._parts = self._parts, []
        self._owes_report = False
        values = json.loads(message)
        if values["ended"]:
            values["ended"] = RQEnd(**values["ended"], result=result)
        return Report(**values)

    def part(self, seconds: float) -> None:
        """It is not needed any more: let it end by itself, or else."""
        with suppress(OSError):  # it has ended, perhaps; a child that was forked meanwhile keeps the line open
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()
        self.child.wait(seconds)
        if not self.child.has_ended():
            self.child.end()


MARK_BYTES = 8

HEADER = struct.Struct(f"!{MARK_BYTES}sI")
"""Of each message: the mark of the line, and the length. Whatever a job writes there by mistake has another mark."""

PARTS_OF_REPORT = 2
"""The report, and what RQ is to keep as the job's result."""


def _send(line: socket.socket, mark: bytes, *messages: bytes) -> None:
    """At once: whoever waits for them wakes up a single time."""
    line.sendall(b"".join(part for message in messages for part in (HEADER.pack(mark, len(message)), message)))


class Inbox:
    """The messages that come over a line, each whole in however many parts it comes.

    Where the line does not block, nobody waits for the rest of one: who sends it may die or be stopped in the midst,
    and a process that a job has forked may hold the other end open.
    """

    def __init__(self, line: socket.socket, mark: bytes) -> None:
        self._line, self._mark = line, mark
        self._expect(HEADER.size, is_header=True)

    def next(self) -> bytes | None:
        """None while it is not there, or not all of it.

        Raises:
            EOFError, OSError: the other end is closed, or something else was written there.
            MemoryError: there is no room for it.
        """
        if self._is_header and self._is_whole():
            self._expect(self._length(), is_header=False)
        if self._is_header or not self._is_whole():
            return None
        message = bytes(self._message)
        self._expect(HEADER.size, is_header=True)
        return message

    def _length(self) -> int:
        mark, length = HEADER.unpack(self._message)
        if mark != self._mark:
            raise OSError(errno.EBADMSG, "what was written to the line is no message")
        return int(length)

    def _expect(self, size: int, *, is_header: bool) -> None:
        """In one piece of memory: a result of a job may be large, and comes in small parts."""
        self._is_header, self._message = is_header, bytearray(size)
        self._rest = memoryview(self._message)

    def _is_whole(self) -> bool:
        while self._rest:
            try:
                received = self._line.recv_into(self._rest)
            except BlockingIOError:
                return False
            if not received:
                raise EOFError
            self._rest = self._rest[received:]
        return True
