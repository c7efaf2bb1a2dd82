"""Questions to the database for those who wait a few seconds for what comes of them: monitoring and autoscalers.

They are to be told that the database is away by the time when they would give up themselves, and know nothing then. A
host that takes connections and says nothing, or is cut off without a word, keeps psycopg waiting for two minutes, and
for ever on a session that was open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Timer
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tenant_slots.conf import app_settings
from tenant_slots.db.sessions import close_if_ended, cut, private_connection

CONNECT_SECONDS = 2
"""For each address of the server; psycopg takes no less. A ``connect_timeout`` of the project's goes before."""

ANSWER_SECONDS = 4
"""For all answers together. With `CONNECT_SECONDS`, and what Redis is given, it is less than Prometheus' ten."""


@contextmanager
def answered_in_time() -> Iterator[None]:
    """In the block what the database is asked fails with an Error where it does not answer in time.

    It is asked in the session that this thread has. Where there is none, a new one is ended again: a server's threads
    may live for one scrape. It is from no pool, which may wait for longer.
    """
    patience = _Patience(ANSWER_SECONDS)
    connection = connections[app_settings.DATABASE]
    close_if_ended(connection)
    with patience.cutting(connection):
        connection.close_if_health_check_failed()  # as Django does, which would wait for a new one as long as psycopg
    is_open = connection.connection is not None
    with (
        nullcontext() if is_open else private_connection(CONNECT_SECONDS),
        connections[app_settings.DATABASE].execute_wrapper(patience),
    ):
        yield


class _Patience:
    """Cuts a session on which statements take too long together. What is done between them does not count: asking Redis
    has limits of its own.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        with self.cutting(context["connection"]):
            return execute(sql, params, many, context)

    @contextmanager
    def cutting(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        began = time.monotonic()
        timer = Timer(max(0.0, self._left), cut, [connection])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._left -= time.monotonic() - began
