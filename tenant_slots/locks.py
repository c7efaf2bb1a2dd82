"""A transaction that holds one tenant queue: whoever admits, releases or changes a limit does it inside.

No transaction holds the rows of two tenants, and nothing but the database is talked to while one is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.db import Error, connections, transaction

from tenant_slots.conf import app_settings
from tenant_slots.models import TenantQueue
from tenant_slots.statements import LOCK

LOCK_TIMEOUT_SECONDS = 5
"""How long to wait for a tenant queue. We lock it for milliseconds; only a stuck foreign transaction takes longer."""

LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's SQLSTATE of a lock_timeout that ran out."""

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
        found = LOCK.rows(rules, pk=tenant_queue_id)
        if not found:
            raise TenantQueue.DoesNotExist(f"TenantQueue {tenant_queue_id} was deleted")
        yield found[0]


def is_locked_out(error: Error) -> bool:
    """Whether it means that somebody kept the tenant queue locked for longer than our patience."""
    return getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE


def impatient(seconds: float) -> tuple[str, ...]:
    """What goes before a single statement outside of a transaction that must not wait long for a row.

    PostgreSQL runs both in one transaction. SQLite has no locks on rows.
    """
    connection = connections[app_settings.DATABASE]
    if connection.vendor != "postgresql" or connection.in_atomic_block:
        return ()
    return (_lock_timeout(seconds),)


def _transaction_rules(alias: str) -> tuple[str, ...]:
    """READ COMMITTED, because a stricter level fails where waiting for the lock is what we want."""
    if connections[alias].vendor != "postgresql":
        return ()
    return "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", _lock_timeout(patience.get())


def _lock_timeout(seconds: float) -> str:
    return f"SET LOCAL lock_timeout = '{int(seconds * 1000)}ms'"
