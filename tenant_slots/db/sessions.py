"""Database sessions of our own, and what forked children do with those of their parents: nothing."""

from __future__ import annotations

import copy
import functools
import math
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DatabaseErrorWrapper, OperationalError, load_backend

from tenant_slots import garbage
from tenant_slots.conf import app_settings
from tenant_slots.db import prepared, session_settings

T = TypeVar("T")

_private: weakref.WeakSet[BaseDatabaseWrapper] = weakref.WeakSet()
"""Connections of threads: only their own thread finds them in Django's `connections`."""

NOT_PRIVATE = ("pool", "server_side_binding")
"""Options that our own sessions do without. With the second one each statement would be a round trip of its own."""

ACTIVE = 1
"""Of PostgreSQL's transaction status, as psycopg says it: a statement is under way."""

CANCEL_SECONDS = 0.5
"""For the server to hear that nobody waits for the answer any more."""

_has_left_block = False
"""See `take_left_block`."""

_forgotten: list[Any] = []
"""What a child has inherited. It is kept, so that nothing is closed when it is collected."""


class PrivateConnection:
    """A connection to our database that no pool has a part in, and nobody but its maker uses.

    Args:
        connect_seconds: how long to wait for the server, unless the project says so.
        is_silent: whether receivers of `connection_created` are not to hear of it. They are the project's code.
            What they set there is made all the same, see ``session_settings``. And as none of that is called at all,
            the statements that run often are ``prepared`` in it.
    """

    def __init__(self, connect_seconds: float, *, is_silent: bool = False) -> None:
        self._connect_seconds, self._is_silent = connect_seconds, is_silent
        self._connection: BaseDatabaseWrapper | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """In the block it is the connection of this thread."""
        alias = app_settings.DATABASE
        before = connections[alias]
        if self._connection is None:
            self._connection = _without_pool(before, self._connect_seconds, self._is_silent)
            _private.add(self._connection)
            if self._is_silent:
                prepared.allow(self._connection)
        close_if_ended(self._connection)
        connections[alias] = self._connection
        try:
            yield
        finally:
            connections[alias] = before

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def cut(self) -> None:
        """Let whoever waits for an answer in another thread get an error."""
        if self._connection is not None:
            cut(self._connection)


@contextmanager
def private_connection(connect_seconds: float, *, is_silent: bool = False) -> Iterator[None]:
    """In the block this thread has a `PrivateConnection`, which ends with it."""
    connection = PrivateConnection(connect_seconds, is_silent=is_silent)
    with connection.used():
        try:
            yield
        finally:
            connection.close()


def outside(function: Callable[[], T]) -> T:
    """What the function gives in a session of its own, which has nothing to do with the caller's transaction.

    Nor with a pool: where all its sessions are of callers like this one, each would wait for the others.
    """

    def call_and_close() -> T:
        try:
            with private_connection(app_settings.LEASE_TTL / 4):
                return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(call_and_close).result()


def settings_of_project(connect_seconds: float) -> list[str]:
    """What receivers set in a new session of our database, see `session_settings.made_by_receivers`."""
    before = connections[app_settings.DATABASE]
    connection = _without_pool(before, connect_seconds, is_silent=False)
    _private.add(connection)
    connections[before.alias] = connection  # a receiver may ask Django for it
    try:
        return session_settings.made_by_receivers(connection)
    finally:
        connections[before.alias] = before


def _without_pool(like: BaseDatabaseWrapper, connect_seconds: float, is_silent: bool) -> BaseDatabaseWrapper:
    settings = copy.deepcopy(like.settings_dict)
    settings["OPTIONS"] = {name: value for name, value in settings["OPTIONS"].items() if name not in NOT_PRIVATE}
    if like.vendor == "postgresql":
        settings["OPTIONS"].setdefault("connect_timeout", math.ceil(connect_seconds))
    wrapper = _own(load_backend(settings["ENGINE"]).DatabaseWrapper)
    connection: BaseDatabaseWrapper = (_silent(wrapper) if is_silent else wrapper)(settings, like.alias)
    return connection


class _OwnErrors(DatabaseErrorWrapper):
    """Where no more files can be opened the driver has an error that is none of a database: it is out of reach."""

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if isinstance(exc_value, OSError):
            raise OperationalError(str(exc_value)).with_traceback(traceback) from exc_value
        super().__exit__(exc_type, exc_value, traceback)


@functools.cache
def _own(wrapper: Any) -> Any:
    class Own(wrapper):  # type: ignore[misc]
        @functools.cached_property
        def wrap_database_errors(self) -> _OwnErrors:
            return _OwnErrors(self)

    return Own


@functools.cache
def _silent(wrapper: Any) -> Any:
    """A class of connections whose `connect` ends before the signal, which Django sends as its last step but one."""

    class Silent(wrapper):  # type: ignore[misc]
        def connect(self) -> None:
            with suppress(_Connected):
                super().connect()
            self.run_on_commit: list[Any] = []

        def init_connection_state(self) -> None:
            super().init_connection_state()
            if self.vendor == "postgresql":
                self._make_settings()
            raise _Connected

        def _make_settings(self) -> None:
            """Without them it is not used."""
            try:
                session_settings.make(self)
            except BaseException:
                self.connection.close()
                self.connection: Any = None
                raise

    return Silent


class _Connected(Exception):
    """There is nothing left to do but to tell."""


def backend_pid() -> int | None:
    """PostgreSQL's number for this thread's session, which others may ask the server about; None on SQLite."""
    connection = connections[app_settings.DATABASE]
    if connection.vendor != "postgresql":
        return None
    connection.ensure_connection()
    pid: int = connection.connection.info.backend_pid
    return pid


def renew(connection: BaseDatabaseWrapper) -> None:
    """Close a connection in whatever state it is, and forget the transactions that were open on it.

    What was left in a block of ``atomic()``, such as a generator that nobody has gone through, ends it when it is
    collected: here, and not in the midst of another transaction, which would be rolled back in its place.
    """
    global _has_left_block
    _has_left_block |= connection.in_atomic_block
    if connection.vendor == "postgresql" and connection.connection is not None:
        connection.connection.close()  # for good, which a pool would give to somebody else
    connection.close()
    connection.connection = None
    garbage.collect()
    try:
        connection.connect()
    except Exception:  # of a receiver too; the state is forgotten, and whoever uses it next tries again
        connection.close()


def take_left_block() -> bool:
    """Whether code of the project has left a block of ``atomic()``, since this was last asked, that may end yet."""
    global _has_left_block
    has_left, _has_left_block = _has_left_block, False
    return has_left


def forget_inherited_sessions() -> None:
    """In a forked child: neither use nor close the sessions of the parent, and do not keep them open either.

    A session that is still open in a child outlives the parent that was killed, and with it the locks of its
    transaction. To close it in the ordinary way would end it for the parent as well.
    """
    inherited = {*connections.all(initialized_only=True), *_private}
    pools = _pools()
    for session in [wrapper.connection for wrapper in inherited] + [s for p in pools.values() for s in _pooled(p)]:
        _detach(session)
    _forgotten.extend((*inherited, *pools.values()))
    pools.clear()
    _private.clear()
    for wrapper in connections.all(initialized_only=True):
        del connections[wrapper.alias]


def close_if_ended(connection: BaseDatabaseWrapper) -> None:
    """Where the server has ended it while nobody used it: its last word is there to be read. Asks it nothing.

    Not in the midst of a transaction, which whoever has begun it is to hear of.
    """
    is_idle = connection.connection is not None and not connection.in_atomic_block
    if is_idle and connection.vendor == "postgresql" and _has_ended(connection.connection):
        end(connection)


def end(connection: BaseDatabaseWrapper) -> None:
    """Close the session for good, which a pool would give to somebody else."""
    connection.connection.close()
    connection.close()


def _has_ended(session: Any) -> bool:
    if session.closed:
        return True
    incoming = select.poll()
    incoming.register(session.fileno(), select.POLLIN)
    return bool(incoming.poll(0))


def cut(connection: BaseDatabaseWrapper) -> None:
    """Let whoever waits for an answer on it get an error. Does nothing where it is not open."""
    with suppress(Exception), socket.socket(fileno=os.dup(connection.connection.fileno())) as link:
        link.shutdown(socket.SHUT_RDWR)


def cancel(connection: BaseDatabaseWrapper) -> None:
    """Have the server end the statement for whose answer somebody waits, who is about to give the session up.

    It would go on, with all the locks of its transaction, after its client is gone. Not where libpq is older than 17,
    which might wait for the server for minutes.
    """
    with suppress(Exception):  # whatever comes of it, the session is given up
        from psycopg import capabilities  # not installed where there is another driver

        if capabilities.has_cancel_safe():
            connection.connection.cancel_safe(timeout=CANCEL_SECONDS)


def leave_statements() -> None:
    """Cancel those for whose answers this thread waits, and close their sessions: nothing else can be asked there.

    For a handler of a signal, after which the thread does something else. It is not Django that closes them: the thread
    may have the lock of its pool. Another signal may interrupt it: the driver would then wait for the answer once more.
    """
    for connection in connections.all(initialized_only=True):
        if _is_busy(connection):
            try:
                cancel(connection)
            finally:
                connection.connection.close()


def _is_busy(connection: BaseDatabaseWrapper) -> bool:
    is_open = connection.vendor == "postgresql" and connection.connection is not None
    return bool(is_open and connection.connection.info.transaction_status == ACTIVE)


def _detach(session: Any) -> None:
    """Put nothing in the place of its socket, so that what is sent at its end goes nowhere."""
    with suppress(Exception):
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, session.fileno(), inheritable=False)
        os.close(nothing)


def threads_of_pools() -> int:
    """How many of this process' threads look after Django's pools: they stay as long as those."""
    names = tuple(f"{pool.name}-" for pool in _pools().values())
    return sum(thread.name.startswith(names) for thread in threading.enumerate()) if names else 0


def _pools() -> dict[str, Any]:
    """Django's pools by alias; it keeps them for all connections of the process (Django 5.1 and later)."""
    found: dict[str, Any] = {}
    for wrapper in connections.all(initialized_only=True):
        if isinstance(kept := getattr(type(wrapper), "_connection_pools", None), dict):
            found = kept
    return found


def _pooled(pool: Any) -> list[Any]:
    return list(getattr(pool, "_pool", ()))


def schema_of(alias: str) -> str:
    """Where queries to this database find their tables: django-tenants has it on the connection. Empty without it."""
    return getattr(connections[alias], "schema_name", None) or ""
