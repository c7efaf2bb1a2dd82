"""Cuts a database connection on which an answer takes too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tenant_slots.conf import app_settings
from tenant_slots.db.sessions import cut


class Watchdog(threading.Thread):
    """One thread for all questions: a system that is short of processes may have no room for another one later.

    A signal reaches only the main thread, and the server's own limits are no help when it does not answer at all.
    """

    def __init__(self) -> None:
        super().__init__(name="tenant_slots watchdog", daemon=True)
        self._changed = threading.Condition()
        self._watched: BaseDatabaseWrapper | None = None
        self._deadline = 0.0
        self._is_over = False

    @contextmanager
    def cutting_after(self, seconds: float) -> Iterator[None]:
        """Cut this thread's connection to our database if the block takes longer: it gets an error then."""
        self._watch(connections[app_settings.DATABASE], time.monotonic() + seconds)
        try:
            yield
        finally:
            self._watch(None, 0)

    def stop(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def run(self) -> None:
        with self._changed:
            while not self._is_over:
                rest = None if self._watched is None else self._deadline - time.monotonic()
                if rest is None or rest > 0:
                    self._changed.wait(rest)
                elif self._watched is not None:
                    cut(self._watched)
                    self._watched = None

    def _watch(self, connection: BaseDatabaseWrapper | None, deadline: float) -> None:
        with self._changed:
            self._watched, self._deadline = connection, deadline
            self._changed.notify()
