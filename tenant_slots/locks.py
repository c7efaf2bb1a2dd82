"""A transaction that holds one tenant queue: whoever admits, releases or changes a limit does it inside.

No transaction holds the rows of two tenants, and nothing but the database is talked to while one is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import OperationalError, connections, transaction

from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import TenantQueue
from tenant_slots.statements import LOCK

LOCK_TIMEOUT_SECONDS = 5
"""How long to wait for a tenant queue. We lock it for milliseconds; only a stuck foreign transaction takes longer."""

LOCKED_OUT = ("55P03", "40P01")
"""PostgreSQL's SQLSTATE of a lock_timeout that ran out, and of a deadlock, which is found a second after it began."""

patience: ContextVar[float] = ContextVar("tenant_slots_patience", default=LOCK_TIMEOUT_SECONDS)
"""Seconds to wait for a tenant queue here. A sweep waits less: it comes again and has other tenants to see to."""


@contextmanager
def locked(tenant_queue_id: int) -> Iterator[TenantQueue]:
    """A transaction that holds the tenant queue, or a part of the caller's own, which then holds it to its end.

    NO KEY, because enqueue's foreign key takes a share lock on the key and must never wait for this.

    Raises:
        TenantQueue.DoesNotExist: the row was deleted.
        TenantQueueLocked: somebody else keeps it, or one of its jobs, for longer than our patience.
    """
    alias = app_settings.DATABASE
    try:
        with _own_transaction(alias) as rules:
            found = LOCK.rows(rules, pk=tenant_queue_id)
            if not found:
                raise TenantQueue.DoesNotExist(f"TenantQueue {tenant_queue_id} was deleted")
            yield found[0]
    except OperationalError as error:
        if isinstance(error, TenantQueueLocked) or not _is_locked_out(error):
            raise
        raise TenantQueueLocked(pk=tenant_queue_id, seconds=patience.get()) from error


@contextmanager
def _own_transaction(alias: str) -> Iterator[tuple[str, ...]]:
    """A transaction or a savepoint, with the statements to send before its first query.

    A caller's transaction keeps its isolation level, and its lock_timeout if it has one: else ours, while we are in it.
    """
    inner = transactions.is_open(alias)
    with transaction.atomic(using=alias):
        if connections[alias].vendor != "postgresql":
            yield ()
        elif not inner:
            yield _READ_COMMITTED, _lock_timeout()
        elif _answer(alias, "SHOW lock_timeout") != "0":
            yield ()
        else:
            yield (_lock_timeout(),)
            _answer(alias, "SELECT set_config('lock_timeout', '0', true)")


_READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""A stricter level fails where waiting for the lock is what we want."""


def _lock_timeout() -> str:
    return f"SET LOCAL lock_timeout = '{int(patience.get() * 1000)}ms'"


def _answer(alias: str, query: str) -> Any:
    with connections[alias].cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def _is_locked_out(error: OperationalError) -> bool:
    return getattr(error.__cause__, "sqlstate", None) in LOCKED_OUT
