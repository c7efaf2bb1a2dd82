"""What a project sets in every session by its receivers of `connection_created`.

In the sessions that a worker keeps to itself no receiver is called: that is the project's code, and may hang. But row
policies may read what it has set there, or our tables be on a `search_path` of it: without these, a worker would see no
rows, and take its own jobs for lost. So the receivers are called once in a session like the project's, where they may
take their time, and the settings that they make there are made in our own sessions too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from tenant_slots.db.leftovers import OURS

COMMENTS = r"\s*(?:(?:--[^\n]*\n|/\*(?:(?!\*/).)*\*/)\s*)*"
"""What may stand before a statement. A comment ends where it first can: with a choice, many would take for ever."""

SETS = re.compile(
    rf"(?:^|;){COMMENTS}(?:SET\s+(?!LOCAL\s|TRANSACTION\s)|(?:SELECT|VALUES|WITH)\b.*\bset_config\s*\()",
    re.IGNORECASE | re.DOTALL,
)
"""In what is made again, of one statement or several. Whatever else receivers ask is for their own knowledge."""

Ask = Callable[[], list[str] | None]
"""Gives the statements; None where no session of the project can be made now."""

_known: list[str] | None = None
"""The statements, in their order; None before they were learnt."""

_ask: Ask = lambda: None  # noqa: E731 - until somebody says how


def ask_by(ask: Ask) -> None:
    """How this process learns them. It is asked again, for each session of our own, until it gives an answer."""
    global _ask
    _ask = ask


def ensure_known() -> bool:
    """Whether they are, after asking for them where they were not. Without receivers by now nothing is set, whatever a
    job connects later.
    """
    if _known is None:
        statements = _ask() if _has_receivers() else []
        if statements is not None:
            learn(statements)
    return _known is not None


def _has_receivers() -> bool:
    return any(key[0] != OURS for key, *_ in connection_created.receivers)


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
        parameters = list(parameters) if many else parameters
        answer = execute(sql, parameters, many, context)  # or it has failed, and set nothing
        text = _text_of(sql, connection)
        if SETS.search(text):
            compose = connection.ops.compose_sql  # type: ignore[attr-defined]
            made.extend(compose(text, one) for one in (parameters if many else [parameters]))
        return answer

    try:
        with connection.execute_wrapper(note):
            connection.ensure_connection()
    finally:
        connection.close()
    return made


def _text_of(sql: Any, connection: BaseDatabaseWrapper) -> str:
    """Django hands on whatever the driver takes."""
    if hasattr(sql, "as_string"):
        return str(sql.as_string(connection.connection))
    return sql.decode() if isinstance(sql, bytes) else str(sql)


def make(connection: BaseDatabaseWrapper) -> None:
    """In a session of our own. Raises OperationalError where they are not known yet."""
    if not ensure_known():
        raise OperationalError("what the project sets in its sessions is not known yet")
    if _known:
        with connection.connection.cursor() as cursor:
            for statement in _known:
                cursor.execute(statement)
