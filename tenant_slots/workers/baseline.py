"""What a job may have changed in a process that goes on to run another one, and putting that back."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone, translation

from tenant_slots.conf import app_settings

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

RESET = "RESET ALL; RESET SESSION AUTHORIZATION; UNLISTEN *; CLOSE ALL; SELECT pg_advisory_unlock_all(); DISCARD TEMP"
"""All that ``DISCARD ALL`` does, but for what the driver has prepared."""


class Baseline:
    """A process as it was before its first job: whatever a job changes of this the next one does not see."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._threads = threading.active_count()
        self._signals = {number: signal.getsignal(number) for number in _settable_signals()}
        self._directory = os.open(".", os.O_RDONLY)
        self._umask = os.umask(0o022)
        os.umask(self._umask)
        self._environment = dict(os.environ)

    def is_restorable(self) -> bool:
        """Not where a job has left a thread, which cannot be ended, or memory, of which the system gets little back."""
        limit = app_settings.HORSE_MAX_RSS
        is_small = limit is None or resident_bytes() <= limit
        return is_small and threading.active_count() <= self._threads

    def restore(self) -> None:
        signal.alarm(0)
        for number, handler in self._signals.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
        os.fchdir(self._directory)
        os.umask(self._umask)
        self._restore_environment()
        translation.deactivate()
        timezone.deactivate()
        restore_sessions()

    def _restore_environment(self) -> None:
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


def restore_sessions() -> None:
    """Keep the database sessions, without what a job left in them; one that cannot be cleaned is closed."""
    for connection in connections.all(initialized_only=True):
        try:
            _restore(connection)
        except Error:
            connection.close()
        if connection.alias != app_settings.DATABASE:
            connection.close_if_unusable_or_obsolete()


def _restore(connection: BaseDatabaseWrapper) -> None:
    if connection.connection is None:
        return
    if connection.in_atomic_block or not connection.autocommit or connection.vendor != "postgresql":
        connection.close()
        del connections[connection.alias]
        return
    with connection.cursor() as cursor:
        cursor.execute(RESET)
    connection.init_connection_state()


def resident_bytes() -> int:
    """How much memory this process takes; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def _settable_signals() -> set[int]:
    return {int(number) for number in signal.valid_signals()} - {signal.SIGKILL, signal.SIGSTOP}
