"""Our transactions and those of our callers: which is open, how long it waits for a lock, and work outside of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from django.db import DatabaseError, Error, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from tenant_slots.conf import app_settings
from tenant_slots.exceptions import TenantQueueLocked

T = TypeVar("T")

LOCK_TIMEOUT_SECONDS = 5
"""How long to wait for a tenant queue. We lock it for milliseconds; only a stuck foreign transaction takes longer."""

STANDSTILL_SHARE = 1 / 2
"""Of a lease, after which PostgreSQL ends a session that stands still in the midst of a transaction of ours.

Its host may be gone, or its process stopped: what it has locked would stay so until TCP notices, after hours. A process
that stops for less loses nothing.
"""

DEADLOCK = "40P01"
"""PostgreSQL's SQLSTATE of a deadlock, which is found a second after it began."""

LOCK_TIMEOUT = "55P03"
"""The one of a lock_timeout that ran out."""

LOCKED_OUT = (LOCK_TIMEOUT, DEADLOCK)

CANCELED = "57014"
"""The one of a statement that has taken longer than statement_timeout, or that somebody has canceled.

PostgreSQL also gives it for a lock_timeout that runs out just as one lock is had and the next one waited for, as a row
that many want takes two: the timer of the second wait clears the flag that says which timer rang (ProcSleep, 14 to 18).
"""

UNDONE = (DEADLOCK, "40001")
"""The one of a deadlock, and of a strict isolation level that cannot be kept to: what was undone can be tried anew."""

READ_ONLY = "25006"
"""The one of a server that takes no writes: a standby, perhaps the primary of a minute ago."""

SEES_OTHERS = ("read committed", "read uncommitted")
"""Isolation levels whose every statement looks anew. The second one is the first one in PostgreSQL, by another name."""

READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""A stricter level fails where waiting for the lock is what we want."""

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Together with the first statement, which saves a round trip in every transaction of ours."""

IDLE = 0
"""Of PostgreSQL's transaction status, as psycopg says it: no transaction is open."""

patience: ContextVar[float] = ContextVar("tenant_slots_patience", default=LOCK_TIMEOUT_SECONDS)
"""Seconds to wait for a tenant queue here. A sweep waits less: it comes again and has other tenants to see to."""


@contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """Wait for tenant queues no longer than this in the block."""
    token = patience.set(seconds)
    try:
        yield
    finally:
        patience.reset(token)


def is_locked_out(error: Error) -> bool:
    """Whether it means that somebody held a row for longer than we wait for one."""
    return isinstance(error, TenantQueueLocked) or sqlstate(error) in LOCKED_OUT


def sqlstate(error: Error) -> object:
    """PostgreSQL's code of an error; None if it is not one of its."""
    return getattr(error.__cause__, "sqlstate", None)


def is_undone(error: Error) -> bool:
    """Whether PostgreSQL has undone a transaction because of others that ran beside it."""
    return sqlstate(error) in UNDONE


def is_read_only(error: Error) -> bool:
    """Whether nothing can be written to the database that a session is connected to."""
    return sqlstate(error) == READ_ONLY


def impatient(alias: str, seconds: float) -> tuple[str, ...]:
    """What goes before a single statement outside of a transaction that must not wait long for a row, nor fail where
    that has changed meanwhile.

    PostgreSQL runs all of it in one transaction. SQLite has no locks on rows.
    """
    if connections[alias].vendor != "postgresql" or is_open(alias):
        return ()
    return READ_COMMITTED, _lock_timeout(seconds)


def impatient_by_default(alias: str, seconds: float) -> tuple[str, ...]:
    """The same where the project has set no lock_timeout of its own."""
    if not impatient(alias, seconds):
        return ()
    return (
        f"SELECT set_config('lock_timeout', '{int(seconds * 1000)}', true) WHERE current_setting('lock_timeout') = '0'",
    )


def has_lock_timeout(alias: str) -> bool:
    """Whether the project has set one, outside of a transaction. On PostgreSQL."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return str(cursor.fetchone()[0]) != "0"


def is_open(alias: str) -> bool:
    """Whether what is written now becomes visible with a commit of the caller: an atomic block, or no autocommit."""
    connection = connections[alias]
    return bool(connection.in_atomic_block or not connection.get_autocommit())


def has_begun(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open in a session of PostgreSQL, whether or not Django knows of it."""
    return bool(connection.connection.info.transaction_status != IDLE)


@contextmanager
def bounded(alias: str, tenant_queue: object) -> Iterator[tuple[str, ...]]:
    """A transaction, or a part of the caller's, that waits for others no longer than our `patience`.

    Args:
        alias: the database.
        tenant_queue: which one it is about, for the error.

    Yields:
        As `within_patience`.

    Raises:
        TenantQueueLocked: nothing of the block was done.
    """
    try:
        with within_patience(alias) as rules:
            yield rules
    except OperationalError as error:
        if isinstance(error, TenantQueueLocked) or not (is_locked_out(error) or _was_canceled(alias, error)):
            raise
        raise TenantQueueLocked(tenant_queue=tenant_queue, seconds=patience.get()) from error


@contextmanager
def bounded_at_once(alias: str, tenant_queue: object) -> Iterator[None]:
    """As `bounded`, for a block whose queries need not be few."""
    with bounded(alias, tenant_queue) as rules:
        send(alias, rules)
        yield


def _was_canceled(alias: str, error: OperationalError) -> bool:
    """Whether the server ended a statement early though none has a time-out of its own: no row is to blame for that.

    A trigger of the project may raise the same code.
    """
    if sqlstate(error) != CANCELED or connections[alias].needs_rollback:
        return False
    if error.__cause__.diag.source_function != "ProcessInterrupts":  # type: ignore[union-attr]  # it is psycopg's
        return False
    with connections[alias].cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        return bool(cursor.fetchone()[0] == "0")


@contextmanager
def within_patience(alias: str) -> Iterator[tuple[str, ...]]:
    """As `bounded`, of no tenant queue: a wait that is too long is an OperationalError, of which `is_locked_out` tells.

    A caller's transaction keeps its isolation level, and its lock_timeout if it has one. Where it has none, ours is
    taken back at the end, to the value that a parameter of our own keeps meanwhile: without a further question.

    Yields:
        Statements to send before the first query of the block, perhaps together with it: see `send`.
    """
    is_part = is_open(alias)
    with transaction.atomic(using=alias):
        if connections[alias].vendor != "postgresql":
            yield ()
        elif not is_part:
            connections[alias].connection.autocommit = True  # psycopg would send a BEGIN of its own first
            yield BEGIN, _lock_timeout(patience.get()), _standstill_timeout()
        else:
            kept = f"tenant_slots.lock_timeout_{len(connections[alias].savepoint_ids)}"
            yield (
                f"SELECT set_config('{kept}', current_setting('lock_timeout'), true)",
                f"SELECT set_config('lock_timeout', '{_milliseconds()}', true) WHERE current_setting('{kept}') = '0'",
            )
            send(alias, [f"SELECT set_config('lock_timeout', current_setting('{kept}'), true)"])


def send(alias: str, statements: Sequence[str]) -> None:
    with connections[alias].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def check_deferred(alias: str) -> None:
    """Have constraints and triggers that the project has deferred object now, and not to the commit."""
    if connections[alias].vendor == "postgresql":
        send(alias, ["SET CONSTRAINTS ALL IMMEDIATE"])


def can_be_left(alias: str) -> bool:
    """Whether there is a transaction of the caller, and it sees what is committed outside of it meanwhile.

    Not on SQLite, where nobody else can write during it; not with a strict isolation level, which shows the past; and
    not in a test that is to leave nothing behind: what another session commits no rollback takes back.
    """
    connection = connections[alias]
    if connection.vendor != "postgresql" or not is_open(alias):
        return False
    # Set by Django's TestCase on the blocks that it rolls back, Django 4.2 to 6.1.
    if any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
        return False
    return sees_others(alias)


def sees_others(alias: str) -> bool:
    """Whether each statement sees what others have committed before it: not in a caller's stricter transaction."""
    connection = connections[alias]
    if connection.vendor != "postgresql" or not is_open(alias):
        return True
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return cursor.fetchone()[0] in SEES_OTHERS


@contextmanager
def seeing_others(alias: str) -> Iterator[None]:
    """A transaction, or a part of the caller's if it `sees_others`, that does so for each of its statements."""
    is_part = is_open(alias)
    with transaction.atomic(using=alias):
        if connections[alias].vendor == "postgresql" and not is_part:
            send(alias, [READ_COMMITTED])
        yield


@contextmanager
def kept_unbroken() -> Iterator[None]:
    """Have an error of the database undo what the block has done in transactions that were open before, and no more.

    Such an error breaks a transaction. Whatever else the block ends with, what it has done stays. What was undone is
    not told after the commit either.
    """
    opened = [one for one in connections.all(initialized_only=True) if one.in_atomic_block and not one.needs_rollback]
    savepoints = [(connection, connection.savepoint(), len(connection.run_on_commit)) for connection in opened]
    try:
        yield
    finally:
        for connection, savepoint, told_before in savepoints:
            is_open = connection.in_atomic_block and not connection.closed_in_transaction
            if is_open and _release(connection, savepoint):
                del connection.run_on_commit[told_before:]


def _release(connection: BaseDatabaseWrapper, savepoint: Any) -> bool:
    """Or go back there; whether it was that.

    Not with `atomic`, in which the block's own ``atomic(durable=True)`` would be refused.
    """
    is_broken, connection.needs_rollback = connection.needs_rollback, False
    with suppress(Error):
        try:
            if not is_broken:
                connection.savepoint_commit(savepoint)
        except DatabaseError:
            is_broken = True
        if is_broken:
            connection.savepoint_rollback(savepoint)
            connection.savepoint_commit(savepoint)
    return is_broken


def _lock_timeout(seconds: float) -> str:
    return f"SET LOCAL lock_timeout = '{int(seconds * 1000)}ms'"


def _standstill_timeout() -> str:
    milliseconds = int(app_settings.LEASE_TTL * STANDSTILL_SHARE * 1000)
    return f"SET LOCAL idle_in_transaction_session_timeout = '{milliseconds}ms'"


def _milliseconds() -> int:
    return int(patience.get() * 1000)
