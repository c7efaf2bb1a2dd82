"""A child of a worker: a forked process in a group of its own, which is watched, waited for and killed."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tenant_slots.workers import output
from tenant_slots.workers.inheritance import die_with

logger = logging.getLogger("tenant_slots")

POLL_SECONDS = 0.01
"""Between looks at a child where the system cannot tell when it ends."""


def _always() -> bool:
    return True


class Child:
    """A function in a forked process, which takes all that it has started along when it is killed.

    Args:
        is_through: whether the process has said that it has done what it was to do. One that ends before that has died,
            also where it calls its end a success.
    """

    def __init__(self, function: Callable[[], object], is_through: Callable[[], bool] = _always) -> None:
        """Raises OSError when the system has no room for another process."""
        self._is_through = is_through
        self.status: int | None = None
        """As of `os.wait`; None while the process lives."""
        self._ending = threading.RLock()
        """Nobody kills a number that the system may have given to another process meanwhile.

        A handler of a signal may kill while its own thread is just looking whether the child has ended.
        """
        self._descriptor: int | None = None
        """Tells when the child ends; None where the system has none to give."""
        parent = os.getpid()
        output.flush()
        self.pid = os.fork()
        if not self.pid:
            _live(function, parent)
        try:
            with suppress(OSError):  # the child does so too: whoever of the two comes first
                os.setpgid(self.pid, self.pid)
            self._descriptor = _descriptor_of(self.pid)
        except BaseException:  # a handler of a signal has raised it: nobody would know that there is a child
            self.end()
            raise

    def wait(self, seconds: float, *files: int) -> list[int]:
        """Wait until the child has ended, or one of these descriptors can be read; returns those that can be."""
        watched = select.poll()
        for file in files:
            watched.register(file, select.POLLIN)
        if self.status is not None:
            seconds = 0
        if self._descriptor is None:
            return self._look_again_and_again(watched, seconds)
        watched.register(self._descriptor, select.POLLIN)
        return [file for file, _ in watched.poll(seconds * 1000) if file in files]

    def _look_again_and_again(self, watched: select.poll, seconds: float) -> list[int]:
        until = time.monotonic() + seconds
        while not (ready := watched.poll(min(seconds, POLL_SECONDS) * 1000)):
            if self.has_ended() or time.monotonic() >= until:
                break
        return [file for file, _ in ready]

    def has_ended(self) -> bool:
        """Whether it has. If it has died, what it had started and left in its group is killed."""
        if self.status is not None:
            return True
        self._kill_leftovers()
        with self._ending:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                return False
            self.status = status
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        return True

    def _kill_leftovers(self) -> None:
        """Before the child is waited for: after that the system may give its number to another process."""
        if hasattr(os, "waitid"):
            end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end is not None and (end.si_code != os.CLD_EXITED or end.si_status or not self._is_through()):
                self.kill()

    def kill(self, number: int | None = None) -> None:
        """Send SIGKILL, or another signal, to the whole group, and to a child that has left it, unless it has ended.

        The default is no part of the signature: a system check imports the module on Windows, which has no SIGKILL.
        """
        with self._ending:
            if self.status is not None:
                return
            number = signal.SIGKILL if number is None else number
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(self.pid) != self.pid:
                    os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it, and wait until it is dead."""
        self.kill()
        while not self.has_ended():
            self.wait(1)


def _descriptor_of(pid: int) -> int | None:
    """None for an older system, in a sandbox that does not know of them, and where no more files may be open."""
    with suppress(OSError):
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    return None


def _live(function: Callable[[], object], parent: int) -> None:
    """Never returns: what this process has inherited of its parent's stack is not its own."""
    status = 1
    try:
        os.setpgid(0, 0)
        die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        function()
        output.flush()
        status = 0
    except BaseException:
        logger.exception("process %s, which did something aside for a worker, failed", os.getpid())
    finally:
        os._exit(status)
