"""What a project sets in every session by its receivers of `connection_created`.

In the sessions that a worker keeps to itself no receiver is called: that is the project's code, and may hang. But row
policies may read what it has set there, or our tables be on a `search_path` of it: without these, a worker would see no
rows, and take its own jobs for lost. So the receivers are called once in a session like the project's, where they may
take their time, and the settings that they make there are made in our own sessions too.
"""

from __future__ import annotations

import re
from typing import Any

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

SETS = re.compile(r"\s*(SET\s+(?!LOCAL\s|TRANSACTION\s)|SELECT\s+set_config\s*\()", re.IGNORECASE)
"""What is made again. Whatever else receivers ask is for their own knowledge."""

_known: list[str] | None = None
"""The statements, in their order; None before they were learnt."""


def are_known() -> bool:
    """Where there are no receivers by now there are no settings, whatever a job connects later."""
    if _known is None and not connection_created.receivers:
        learn([])
    return _known is not None


def learn(statements: list[str]) -> None:
    global _known
    _known = statements


def made_by_receivers(connection: BaseDatabaseWrapper) -> list[str]:
    """Connect, and give the statements by which receivers have made settings. It is closed afterwards.

    Raises:
        Error: the database is away.
        Exception: a receiver's own.
    """
    made: list[str] = []

    def note(execute: Any, sql: Any, parameters: Any, many: bool, context: Any) -> Any:
        text = sql.as_string(connection.connection) if hasattr(sql, "as_string") else sql
        if SETS.match(text):
            made.append(connection.ops.compose_sql(text, parameters))  # type: ignore[attr-defined]
        return execute(sql, parameters, many, context)

    try:
        with connection.execute_wrapper(note):
            connection.connect()
    finally:
        connection.close()
    return made


def make(connection: BaseDatabaseWrapper) -> None:
    """In a session of our own. Raises OperationalError where they are not known yet."""
    if not are_known():
        raise OperationalError("what the project sets in its sessions is not known yet")
    if _known:
        with connection.connection.cursor() as cursor:
            for statement in _known:
                cursor.execute(statement)
