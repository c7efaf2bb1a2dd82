"""Processes of ``manage.py`` that import nothing anew: forks of one that has set Django up already."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tests.template_process import NUMBER

READ_LATER = {
    "PYTEST_CURRENT_TEST",
    "RECEIVER",
    "SENTRY_DSN",
    "SENTRY_LOGS",
    "SENTRY_WITHOUT_RQ",
    "SPANS",
    "TEST_SABOTAGE",
    "TEST_SABOTAGE_FILE",
    "TEST_TENANT_SLOTS",
    "TEST_WORKER_CLASS",
}
"""Variables of which nothing depends that is there once Django is set up; the settings by them are made anew."""

Key = frozenset[tuple[str, str]]

ROOT = Path(__file__).parent.parent

MANAGE = [sys.executable, "-W", "ignore", "manage.py"]

CAN_FORK = hasattr(os, "pidfd_open")
"""The system tells a template of the ends of its forks as of what it is asked for: Linux."""

TEMPLATES = 6
"""At once, for each process of pytest: a template takes 70 MB. Tests use few environments, and one at a time."""


class Process(Protocol):
    """What tests use of a `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start(arguments: Sequence[str], environment: Mapping[str, str]) -> Process:
    """``manage.py`` with these arguments. The first process with such settings begins by itself.

    With the second one they are worth a template, of which that and all further ones are forks.
    """
    key = key_of(environment)
    if key not in _asked_for or not CAN_FORK:
        _asked_for.add(key)
        return subprocess.Popen([*MANAGE, *arguments], cwd=ROOT, env=environment)
    template = _templates.pop(key, None) or Template(dict(key))
    _templates[key] = template  # the latest one is the last one
    if len(_templates) > TEMPLATES:
        _templates.pop(next(iter(_templates))).end()
    return template.fork(arguments, environment)


def key_of(environment: Mapping[str, str]) -> Key:
    """What two processes have to have in common to be forks of one template."""
    return frozenset((name, value) for name, value in environment.items() if name not in READ_LATER)


class Template:
    """A `tests.template_process`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        directory = tempfile.mkdtemp(prefix="tenant_slots_template_")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        self.path = str(Path(directory, "socket"))
        command = [sys.executable, "-W", "ignore", "-m", "tests.template_process", self.path]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE)
        atexit.register(self.process.wait, 10)
        atexit.register(self.end)  # before that: the last one first

    def end(self) -> None:
        """As soon as its forks have ended, which no test leaves behind."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Fork:
        return Fork(self._connected(), arguments, environment)

    def _connected(self) -> socket.socket:
        """It listens as soon as Django is set up."""
        deadline = time.monotonic() + 60
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(self.path)
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the template did not start: {self.process.returncode}") from None
                time.sleep(0.01)
            else:
                return connection


class Fork:
    """Of a template, which tells over the connection how it ended."""

    def __init__(self, connection: socket.socket, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        self._connection, self._listens = connection, threading.Lock()
        asked = {"arguments": ["manage.py", *arguments], "environment": {**environment}}
        socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
        self.pid = self._told()

    def poll(self) -> int | None:
        if self._listens.acquire(blocking=False):  # else another thread waits for its end
            try:
                with suppress(subprocess.TimeoutExpired):
                    self._wait(0)
            finally:
                self._listens.release()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._listens:
            return self._wait(timeout)

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = self._told()
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            self._connection.close()
        return self.returncode

    def _told(self) -> int:
        number: int = NUMBER.unpack(self._connection.recv(NUMBER.size))[0]
        return number

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_asked_for: set[Key] = set()
_templates: dict[Key, Template] = {}
