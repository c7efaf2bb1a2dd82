"""Questions to the database for those who wait a few seconds for what comes of them: monitoring and autoscalers.

They are to be told that the database is away by the time when they would give up themselves, and know nothing then. A
host that takes connections and says nothing, or is cut off without a word, keeps psycopg waiting for two minutes, and
for ever on a session that was open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Event, Thread
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from tenant_slots.conf import app_settings
from tenant_slots.db.sessions import cancel, close_if_ended, cut, private_connection

CONNECT_SECONDS = 2
"""For each address of the server; psycopg takes no less. A ``connect_timeout`` of the project's goes before."""

CHECK_SECONDS = 1
"""For a sign of life of an open session, and for what Django sets in a new one."""

ANSWER_SECONDS = 4
"""For all answers together. With a check in vain, and what Redis is given, it is less than Prometheus' ten."""


@contextmanager
def answered_in_time() -> Iterator[None]:
    """In the block what the database is asked fails with an Error where it does not answer in time.

    It is asked in the session that this thread has. Where there is none, a new one is ended again: a server's threads
    may live for one scrape. It is from no pool, which may wait for longer. In a transaction of the caller's, answers
    take as long as they take: to cut its session would undo what others have done in it. So would an error of ours,
    which whoever swallows it has to leave behind in a savepoint.
    """
    connection = connections[app_settings.DATABASE]
    if connection.in_atomic_block:
        with transaction.atomic(using=connection.alias):
            yield
        return
    connection.health_check_done = False  # type: ignore[attr-defined]  # else the next one is due in Django's next request
    with _Patience(CHECK_SECONDS).cutting(connection):
        connection.close_if_health_check_failed()  # as Django does, which would wait for a new one as long as psycopg
    close_if_ended(connection)
    is_open = connection.connection is not None
    with nullcontext() if is_open else _new_session(), _asked_in_time(connections[app_settings.DATABASE]):
        yield


@contextmanager
def _new_session() -> Iterator[None]:
    """It is opened with a patience of its own: what Django sets in it may get no answer either.

    That has `CHECK_SECONDS` from the end of the time to connect, or from when psycopg has connected later than that.
    """
    with private_connection(CONNECT_SECONDS):
        connection = connections[app_settings.DATABASE]
        with _Patience(CONNECT_SECONDS).cutting(connection):
            connection.ensure_connection()
        yield


@contextmanager
def _asked_in_time(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """A session that was cut is left to nobody, also where its last answer came just before that."""
    try:
        with connection.execute_wrapper(_Patience(ANSWER_SECONDS)):
            yield
    finally:
        close_if_ended(connection)


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
        """After the block nothing is cut any more: the session is somebody else's then."""
        began, is_over = time.monotonic(), Event()
        is_open = connection.connection is not None
        looks = Thread(target=_look_after, args=[max(0.0, self._left), connection, is_open, is_over], daemon=True)
        looks.start()
        try:
            yield
        finally:
            is_over.set()
            looks.join()
            self._left -= time.monotonic() - began


def _look_after(seconds: float, connection: BaseDatabaseWrapper, is_open: bool, is_over: Event) -> None:
    """Give up a session after these seconds. While psycopg still connects there is none; when to give that up is its
    own matter.
    """
    while not is_over.wait(seconds):
        if is_open:
            _give_up(connection)
            return
        is_open, seconds = connection.connection is not None, CHECK_SECONDS


def _give_up(connection: BaseDatabaseWrapper) -> None:
    """A server that is only slow would go on with a statement after its client is gone, and be asked the next one."""
    cancel(connection)
    cut(connection)
