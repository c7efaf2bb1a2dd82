"""A transaction that holds one tenant queue: whoever admits, releases or changes a limit does it inside.

No transaction holds the rows of two tenants, and nothing but the database is talked to while one is held.

PostgreSQL gives up a transaction's locks when its commit is on the disk, so a tenant could have no more transactions in
a second than the disk has flushes, however many workers it has. Whoever had to wait for the row therefore lets the next
one have it before the disk is done, and waits for the disk afterwards. Nobody is told anything before that, and nothing
that builds on such a commit can be on the disk without it, because the log is written in its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.db import DatabaseError, connections, transaction

from tenant_slots.conf import app_settings
from tenant_slots.models import TenantQueue
from tenant_slots.statements import LOCK, LOCK_IF_FREE

LOCK_TIMEOUT_SECONDS = 5
"""How long to wait for a tenant queue. We lock it for milliseconds; only a stuck foreign transaction takes longer."""

COMMIT_AT_ONCE = "SET LOCAL synchronous_commit = off"

WAIT_FOR_DISK = "SELECT pg_logical_emit_message(true, 'tenant_slots', '')"
"""The smallest transaction that writes: its commit waits until all of the log before it is safe, as configured."""

LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's SQLSTATE of a lock_timeout that ran out."""

patience: ContextVar[float] = ContextVar("tenant_slots_patience", default=LOCK_TIMEOUT_SECONDS)
"""Seconds to wait for a tenant queue here. A sweep waits less: it comes again and has other tenants to see to."""


@contextmanager
def locked(tenant_queue_id: int) -> Iterator[TenantQueue]:
    """A transaction that holds the tenant queue.

    NO KEY, because enqueue's foreign key takes a share lock on the key and must never wait for this.

    Raises:
        TenantQueue.DoesNotExist: the row was deleted.
    """
    alias = app_settings.DATABASE
    rules = () if connections[alias].in_atomic_block else _transaction_rules(alias)
    with transaction.atomic(using=alias):
        found = LOCK_IF_FREE.rows(rules, pk=tenant_queue_id) if rules else []
        is_contended = bool(rules) and not found
        found = found or LOCK.rows(pk=tenant_queue_id)
        if not found:
            raise TenantQueue.DoesNotExist(f"TenantQueue {tenant_queue_id} was deleted")
        yield found[0]
        if is_contended:
            _execute(alias, COMMIT_AT_ONCE)
    if is_contended:
        _execute(alias, WAIT_FOR_DISK)


def is_locked_out(error: DatabaseError) -> bool:
    """Whether it means that somebody kept the tenant queue locked for longer than our patience."""
    return getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE


def _transaction_rules(alias: str) -> tuple[str, ...]:
    """READ COMMITTED, because a stricter level fails where waiting for the lock is what we want."""
    if connections[alias].vendor != "postgresql":
        return ()
    limit = int(patience.get() * 1000)
    return "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", f"SET LOCAL lock_timeout = '{limit}ms'"


def _execute(alias: str, statement: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
