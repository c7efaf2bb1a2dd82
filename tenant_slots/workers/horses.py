"""What a forked work-horse does and does not share with its worker: its end, and no database session."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from typing import Any

from django.db import connections

from tenant_slots.conf import app_settings

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: the signal that this process gets when its parent dies."""


def wait_for_exit(pid: int) -> None:
    if not pid or not hasattr(os, "pidfd_open"):
        return
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        exited = select.poll()
        exited.register(descriptor, select.POLLIN)
        while not exited.poll(1000):
            pass
    finally:
        os.close(descriptor)


_inherited: list[Any] = []


def close_what_cannot_be_inherited() -> None:
    """Only PostgreSQL's client can be left alone in a child; SQLite keeps locks and maps by process."""
    for connection in connections.all(initialized_only=True):
        if connection.vendor != "postgresql" or connection.alias != app_settings.DATABASE:
            connection.close()


def forget_inherited_connections() -> None:
    """A horse must not use, and above all not close, its worker's session: that would end it for the worker too.

    The objects are kept, so that nothing is closed when they are collected either.
    """
    for connection in connections.all(initialized_only=True):
        _inherited.append(connection)
        del connections[connection.alias]


def die_with(parent: int | None) -> None:
    """Have the kernel kill this horse when its worker dies, so that no job runs unseen (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it died between the fork and the line above
