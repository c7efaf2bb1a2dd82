"""What code of the project leaves in a database session that is used after it, as Django and the driver know it.

Nothing of this asks the server. What the server keeps of a session is put back elsewhere: see ``workers/sessions.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from tenant_slots.db.transactions import has_begun

_registered_for: WeakKeyDictionary[Any, tuple[object, ...]] = WeakKeyDictionary()
"""By session, before any code of the project but its receivers of `connection_created` has used it."""

OURS = "tenant_slots.db.leftovers"
"""What Django knows our own receiver of `connection_created` by, which sets nothing."""

QueryWrappers = tuple[Callable[..., Any], ...]
"""What each query of a connection of Django is sent through: see Django's ``execute_wrapper()``."""


class Way(NamedTuple):
    """How queries of a connection of Django come to their tables."""

    wrappers: QueryWrappers = ()
    tenant: Any = None
    """Whose schema they ask, as django-tenants has it on the connection; None for the public one, and without it."""
    asks_public: bool = True
    """Whether they go on to the public schema, where our tables are."""


AS_MADE = Way()
"""That of a new connection."""


@dataclass(frozen=True)
class Found:
    """How a function of the project found a connection."""

    transactions: int = 0
    """How many blocks of ``atomic()`` were open."""
    has_begun: bool = False
    """Whether its caller has begun a transaction that Django knows nothing of."""
    way: Way = AS_MADE
    session: object = None
    registered: tuple[object, ...] = ()
    """With the driver for this session, by whoever calls the function in it."""


def found(connection: BaseDatabaseWrapper) -> Found:
    way, session = way_of(connection), connection.connection
    return Found(open_transactions(connection), has_begun_by_itself(connection), way, session, _registered(session))


def open_transactions(connection: BaseDatabaseWrapper) -> int:
    """How many transactions and savepoints Django has open."""
    return connection.in_atomic_block + len(connection.savepoint_ids)


def has_left_transaction(connection: BaseDatabaseWrapper, before: Found) -> bool:
    """Whether one is open that was not: by ``atomic()``, by SQL, or as long as the driver reads or writes a COPY."""
    has_begun_one = has_begun_by_itself(connection) and not before.has_begun
    return open_transactions(connection) > before.transactions or has_begun_one


def has_begun_by_itself(connection: BaseDatabaseWrapper) -> bool:
    """Whether the driver is in a transaction where Django believes that there is none."""
    return _is_between_transactions(connection) and not connection.connection.closed and has_begun(connection)


def is_as_made(connection: BaseDatabaseWrapper, before: Found | None = None) -> bool:
    """Whether the driver does what Django has made it do. Who closes a session that is not so gets one that is.

    What its caller had registered with the session that was found before is meant to be there.

    The lock is held as long as rows are streamed, and whoever wants it in the same thread waits for ever.
    """
    session: Any = connection.connection
    if not _is_between_transactions(connection) or not hasattr(session, "row_factory"):  # as psycopg2's have none
        return True
    from psycopg.rows import tuple_row  # not installed where there is another database

    made = (True, connection.settings_dict["OPTIONS"].get("isolation_level"), None, None, tuple_row)
    now = (session.autocommit, session.isolation_level, session.read_only, session.deferrable, session.row_factory)
    return now == made and not session.lock.locked() and _has_registered_nothing(session, before)


def note_sessions() -> None:
    """From now on, what is registered with the driver for each session, before a job may register more.

    For a new one the project's receivers do so: this is the last one of them.
    """
    connection_created.disconnect(dispatch_uid=OURS)  # or it would keep its place before those that came since
    # Not weakly: Django has Python note for each such call what is to be done once the receiver is gone, and keep that.
    connection_created.connect(_note_what_is_registered, weak=False, dispatch_uid=OURS)
    for connection in connections.all(initialized_only=True):
        _note_what_is_registered(connection)


def _note_what_is_registered(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Once: a session of a pool comes here again, with what a job has registered meanwhile."""
    session: Any = connection.connection
    if hasattr(session, "adapters") and session not in _registered_for:  # as psycopg2's have none
        _registered_for[session] = _registered(session)


def forget_what_is_registered(connection: BaseDatabaseWrapper) -> None:
    """The project's receivers of `connection_created` are about to do so anew. Handlers of notices would pile up.

    Nor are notifications kept that nobody has read: the next one to listen would get them with its own.
    """
    _registered_for.pop(connection.connection, None)
    for name in ("_notice_handlers", "_notify_handlers", "_notifies_backlog"):
        kept = getattr(connection.connection, name, None)
        if isinstance(kept, list | deque):  # as psycopg has them (3.2, 3.3)
            kept.clear()


def _has_registered_nothing(session: Any, before: Found | None) -> bool:
    """Since it was found, or was made, as far as that was noted."""
    now = _registered(session)
    if before is not None and session is before.session:
        return before.registered == now
    return bool(_registered_for.get(session, now) == now)


def _registered(session: Any) -> tuple[object, ...]:
    """How values are adapted in this session, who hears of its notices, how it executes, and in which blocks it is.

    Those of psycopg: of a transaction, which SQL may have ended without its knowing, of a pipeline, in which no
    statement is answered, and of a commit in two phases. psycopg tells few of these (3.2, 3.3). What it shares with a
    cursor, or with other sessions, it copies before it changes it.
    """
    adapters: Any = getattr(session, "adapters", None)
    if not hasattr(adapters, "_own_loaders"):  # another version, or another driver
        return ()
    own = [*adapters._own_loaders, *adapters._own_dumpers_by_oid, *adapters._own_dumpers.values()]
    maps = [*adapters._loaders, *adapters._dumpers_by_oid, *adapters._dumpers.values()]
    adapts = [dict(one) if is_own else one for one, is_own in zip(maps, own, strict=True)]
    executes = session.cursor_factory, session.server_cursor_factory, session.prepare_threshold, session.prepared_max
    handlers = [*map(id, session._notice_handlers)], [*map(id, session._notify_handlers)]  # which may hold the session
    blocks = session._num_transactions, session._pipeline is not None, session._tpc
    return adapts, *handlers, executes, blocks


def ways_of_all() -> dict[str, Way]:
    """What is to be put back after a job, by alias."""
    return {connection.alias: way_of(connection) for connection in connections.all(initialized_only=True)}


def put_ways_back(before: dict[str, Way]) -> None:
    """To what `ways_of_all` gave: another wrapper may refuse whatever is asked from now on, and another schema is that
    of another tenant, or has none of our tables.
    """
    for connection in connections.all(initialized_only=True):
        put_way_back(connection, before.get(connection.alias, AS_MADE))


def way_of(connection: BaseDatabaseWrapper) -> Way:
    tenant, asks_public = getattr(connection, "tenant", None), getattr(connection, "include_public_schema", True)
    return Way(tuple(connection.execute_wrappers), tenant, asks_public)


def put_way_back(connection: BaseDatabaseWrapper, way: Way) -> None:
    connection.execute_wrappers[:] = way.wrappers
    _ask_schema(connection, way.tenant, way.asks_public)


def ask_same_schema(connection: BaseDatabaseWrapper) -> None:
    """In a session that was reset: with ``TENANT_LIMIT_SET_CALLS`` django-tenants believes that it has told it."""
    _, tenant, asks_public = way_of(connection)
    _ask_schema(connection, tenant, asks_public)


def _ask_schema(connection: Any, tenant: Any, asks_public: bool) -> None:
    """From the next query on. Nothing without django-tenants."""
    if not hasattr(connection, "set_tenant"):
        return
    if tenant is None:
        connection.set_schema_to_public()
    else:
        connection.set_tenant(tenant, asks_public)


def forget_queries() -> None:
    """What Django notes of them for who debugs, as a job may have it do."""
    for connection in connections.all(initialized_only=True):
        connection.force_debug_cursor = False
        connection.queries_log.clear()


def _is_between_transactions(connection: BaseDatabaseWrapper) -> bool:
    """As Django believes, of a session of PostgreSQL that is there."""
    is_there = connection.vendor == "postgresql" and connection.connection is not None
    return is_there and connection.autocommit and not connection.in_atomic_block
