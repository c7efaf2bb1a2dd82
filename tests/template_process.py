"""A process that has set Django up, and forks itself for each ``manage.py`` command that it is asked for.

To import Django, RQ and this app takes a process a second of CPU, which is most of what a test of workers takes. What
begins here is where ``manage.py`` is once Django is set up, with what every worker imports, and `tests.warm_start` asks
only for processes of which the environment says the same to the settings. A connection is a process: the caller sends
arguments, environment and its standard streams, and is told the process's number, and how it ended. At the end of
standard input nobody asks any more.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import selectors
import socket
import struct
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import django
from django.conf import settings

from tests.settings import read_later

MOST = 128 * 1024
"""Bytes of arguments and environment, of which there are some 10,000."""

NUMBER = struct.Struct("i")

OF_EVERY_WORKER = ("django_rq.management.commands.rqworker", "tenant_slots.workers")
"""What each of them imports, whatever its settings."""


def main(path: str) -> None:
    django.setup()
    for name in OF_EVERY_WORKER:
        import_module(name)
    gc.collect()
    gc.freeze()  # no fork has to look at it again
    asked = _next(path)
    sys.argv = asked["arguments"]
    os.environ.clear()
    os.environ.update(asked["environment"])
    for name, value in read_later().items():
        setattr(settings, name, value)
    runpy.run_path(sys.argv[0], run_name="__main__")


def _next(path: str) -> dict[str, Any]:
    """Returns in each process that was asked for, and never in the template, which tells of their ends."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen()
    ready = selectors.DefaultSelector()
    ready.register(listening, selectors.EVENT_READ)
    ready.register(sys.stdin.fileno(), selectors.EVENT_READ)
    while ready.get_map():
        for key, _ in ready.select():
            if key.data is not None:
                ready.unregister(key.fd)
                _tell_of_end(key.fd, *key.data)
            elif key.fd == listening.fileno():
                if (asked := _fork(listening.accept()[0], ready)) is not None:
                    listening.close()
                    return asked
            else:
                ready.unregister(key.fd)
                ready.unregister(listening)
    raise SystemExit


def _fork(caller: socket.socket, ready: selectors.BaseSelector) -> dict[str, Any] | None:
    message, streams, _, _ = socket.recv_fds(caller, MOST, 3)
    if pid := os.fork():
        for stream in streams:
            os.close(stream)
        _tell(caller, pid)
        ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (caller, pid))
        return None
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for key in [key for key in ready.get_map().values() if key.data is not None]:
        key.data[0].close()  # of a process that was asked for before
        os.close(key.fd)
    ready.close()
    caller.close()
    asked: dict[str, Any] = json.loads(message)
    return asked


def _tell_of_end(pidfd: int, caller: socket.socket, pid: int) -> None:
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    with caller:
        _tell(caller, os.waitstatus_to_exitcode(status))


def _tell(caller: socket.socket, number: int) -> None:
    with suppress(BrokenPipeError):  # its test is over
        caller.sendall(NUMBER.pack(number))


if __name__ == "__main__":
    main(sys.argv[1])
