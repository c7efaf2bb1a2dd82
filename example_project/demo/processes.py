"""The processes of the demo: started together, watched, and ended whatever happens."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from example_project.demo.environment import STOP_SIGNALS
from example_project.demo.errors import DemoFailed, Stopped

ROOT = Path(__file__).resolve().parent.parent.parent

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: the signal that a process gets when its parent dies."""

GRACE = 10.0
"""Seconds for a process to end before it is killed; a worker finishes its import first."""


class StopRequest:
    """Notes that a signal asked to stop. Raising inside a handler could tear any library's state apart."""

    def __init__(self) -> None:
        self.number: int | None = None
        signal.signal(signal.SIGINT, self._note)
        signal.signal(signal.SIGTERM, self._note)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under nohup
            signal.signal(signal.SIGHUP, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number

    def check(self) -> None:
        """Raises Stopped after the first signal."""
        if self.number is not None:
            raise Stopped(self.number)


@dataclass(frozen=True)
class Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def obituary(self) -> str:
        return f"{self.name} ended with code {self.process.returncode}. {self.last_words()}"


class Processes:
    """Children in sessions of their own, so that a Ctrl-C reaches only the demo, which ends them in order."""

    def __init__(self, directory: Path, stop: StopRequest) -> None:
        self.directory = directory
        self.stop_request = stop
        self.children: list[Child] = []

    def start(self, name: str, *arguments: str) -> Child:
        """Run this Python with these arguments."""
        path = self.directory / f"{name}.log"
        with path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_ends_with(os.getpid()),
            )
        child = Child(name, process, path)
        self.children.append(child)
        return child

    def check(self) -> None:
        """Raises DemoFailed when a child has ended, Stopped when the demo is to end."""
        self.stop_request.check()
        if self._ended():
            time.sleep(1.0)  # the first one noticed may have ended because another one did
            raise DemoFailed("\n".join(child.obituary() for child in self._ended()))

    def _ended(self) -> list[Child]:
        return [child for child in self.children if child.process.poll() is not None]

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        """Raises DemoFailed when it does not come true in time, and as `check`."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                logs = "\n".join(f"{child.name}: {child.last_words()}" for child in self.children)
                raise DemoFailed(f"{what} within {seconds:.0f} s.\n{logs}")
            time.sleep(0.05)

    def stop(self, children: Iterable[Child] | None = None) -> None:
        """End these children, or all, and return when they are gone."""
        ending = list(self.children if children is None else children)
        self.children = [child for child in self.children if child not in ending]
        for child in ending:
            child.process.terminate()
        deadline = time.monotonic() + GRACE
        for child in ending:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait()


def _ends_with(parent: int) -> Callable[[], None] | None:
    """Has the kernel end a child when the demo is killed and cannot do it (Linux only)."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)

    def in_child() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)  # it died between the fork and the line above

    return in_child
