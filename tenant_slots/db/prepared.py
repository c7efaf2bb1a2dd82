"""Statements that PostgreSQL plans once for a session: to plan one takes it as long as to carry it out.

Only those that have one plan for ever, see `Statement`: it is made before anybody knows how many rows there will be.
And only in sessions that are nobody else's, see `allow`. Django's own is the project's: a ``DISCARD ALL`` there would
take our statements along. Nor behind a pooler that lends sessions to transactions, see `_begins`.

They are prepared by SQL, and not by the driver, which sends each prepared statement in a round trip of its own.
"""

from __future__ import annotations

import logging
from collections import Counter
from hashlib import blake2s
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from django.db import DatabaseError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from tenant_slots.db.transactions import LOCK_TIMEOUT, has_begun

logger = logging.getLogger("tenant_slots")

USES = 5
"""From which on a statement is prepared, as the driver has it. A session that lives for one long job prepares none."""

BY_INDEX = "SET enable_seqscan = off; SET enable_sort = off; SET jit = off"
"""A table that is empty when a statement is planned would be read as a whole, which is the best plan by then. For the
others see ``locks.AS_INDEXED``."""

IMPATIENTLY = "SET LOCAL lock_timeout = '10ms'; "
"""Before what prepares a statement outside of a transaction: that waits for no table, and is only to save time."""

NAME_BYTES = 12
"""Of the digest by which a statement is named. Where a pooler cannot be told from the server, one name is to be one
statement whoever has prepared it."""

LOST = ("26000", "42P05")
"""PostgreSQL's SQLSTATEs of a statement that the session does not know, and of one that it knew already."""

OTHER_TYPE = "RevalidateCachedQuery"
"""Where PostgreSQL finds that a column has another type than when the statement was prepared, as after a migration. Its
SQLSTATE is also that of much that cannot be done at all."""

MOST_LOSSES = 3
"""After which a process prepares nothing any more: there seems to be a pooler that cannot be told from the server."""


class Session:
    """What we know of one connection of the driver."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """By text."""
        self.uses: Counter[str] = Counter()
        """Of those that are not prepared yet."""
        self.prepares: bool | None = None
        """None until it is asked for."""


_allowed: WeakSet[BaseDatabaseWrapper] = WeakSet()

_losses = 0

_sessions: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()


def allow(connection: BaseDatabaseWrapper) -> None:
    """Nobody but us uses the sessions of this connection."""
    if connection.vendor == "postgresql":
        _allowed.add(connection)


def name_of(connection: BaseDatabaseWrapper, text: str) -> str | None:
    """By which ``EXECUTE`` finds a statement in the session of this connection. None where it is sent as a text.

    Args:
        text: with $1 and so on for what is given each time.

    Raises:
        OperationalError: as `tell_of_loss`.
    """
    session = _sessions.get(connection.connection)
    if session is None:
        session = _sessions[connection.connection] = Session()
    name = session.names.get(text)
    if name is not None or session.prepares is False:
        return name
    session.uses[text] += 1
    return _prepared(connection, session, text) if session.uses[text] >= USES else None


def is_read_by_index(connection: BaseDatabaseWrapper) -> bool:
    """Whether `BY_INDEX` holds in the session of this connection."""
    session = _sessions.get(connection.connection) if may_prepare(connection) else None
    return session is not None and bool(session.prepares)


def may_prepare(connection: BaseDatabaseWrapper) -> bool:
    """Whether there is a session by now, of which `name_of` may be asked."""
    return connection in _allowed and connection.connection is not None


def _prepared(connection: BaseDatabaseWrapper, session: Session, text: str) -> str | None:
    """Not now where it is too early for that, or somebody holds the table as for a migration."""
    is_idle = not has_begun(connection)
    if session.prepares is None:
        if not is_idle:
            return None  # a rollback would take the settings back
        session.prepares = _losses < MOST_LOSSES and _begins(connection)
    if not session.prepares:
        return None
    name = f"tenant_slots_{blake2s(text.encode(), digest_size=NAME_BYTES).hexdigest()}"
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"{IMPATIENTLY if is_idle else ''}PREPARE {name} AS {text}")
    except DatabaseError as error:
        if is_idle and getattr(error.__cause__, "sqlstate", None) == LOCK_TIMEOUT:
            return None
        tell_of_loss(connection, error)
        raise
    session.names[text] = name
    return name


def tell_of_loss(connection: BaseDatabaseWrapper, error: DatabaseError) -> None:
    """To be asked about an error of what executes prepared statements.

    Raises:
        OperationalError: the session has other ones than we think. It is used as any other from now on, and what was to
            be done can be done again: the error is about the session, and no row.
    """
    session = _sessions.get(connection.connection) if may_prepare(connection) else None
    if session is not None and _is_loss(error.__cause__):
        _note_loss(session)
        raise OperationalError("this session has lost what was prepared in it") from error


def _note_loss(session: Session) -> None:
    global _losses
    _losses += 1
    session.names.clear()
    session.prepares = False


def _is_loss(error: Any) -> bool:
    """Of the driver's error."""
    diagnosis = getattr(error, "diag", None)
    return diagnosis is not None and (diagnosis.sqlstate in LOST or diagnosis.source_function == OTHER_TYPE)


def _begins(connection: BaseDatabaseWrapper) -> bool:
    """Whether the session is to keep statements: where it is one process of the server all the time.

    A pooler gives its clients numbers of its own in place of that of the process.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        if cursor.fetchone()[0] != connection.connection.info.backend_pid:
            logger.info("there is a pooler before the database, so that each statement is planned anew")
            return False
        cursor.execute(BY_INDEX)
    return True
