"""A transaction that holds one tenant queue: whoever admits, releases or changes a limit does it inside.

No transaction holds the rows of two tenants, but one that deletes unused ones and waits for none; and nothing but the
database is talked to while one is held.

PostgreSQL gives up a transaction's locks when its commit is on the disk, so a tenant could have no more transactions in
a second than the disk has flushes, however many workers it has. Whoever had to wait for the row therefore lets the next
one have it before the disk is done, and waits for the disk afterwards. Nobody is told anything before that, and nothing
that builds on such a commit can be on the disk without it, because the log is written in its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tenant_slots.conf import app_settings
from tenant_slots.db.compiled import Asked, together
from tenant_slots.db.transactions import bounded, is_open, send
from tenant_slots.models import TenantQueue
from tenant_slots.statements import LOCK, LOCK_IF_FREE

COMMIT_AT_ONCE = "SET LOCAL synchronous_commit = off"

WAIT_FOR_DISK = "SELECT pg_logical_emit_message(true, 'tenant_slots', '')"
"""The smallest transaction that writes: its commit waits until all of the log before it is safe, as configured."""


@contextmanager
def locked(tenant_queue_id: int) -> Iterator[TenantQueue]:
    """A transaction that holds the tenant queue, or a part of the caller's own, which then holds it to its end.

    NO KEY, because enqueue's foreign key takes a share lock on the key and must never wait for this.

    Raises:
        TenantQueue.DoesNotExist: the row was deleted.
        TenantQueueLocked: somebody else keeps it, or one of its jobs, for longer than our patience.
    """
    with locked_and_asked(tenant_queue_id) as (tenant_queue, _):
        yield tenant_queue


@contextmanager
def locked_and_asked(tenant_queue_id: int, *asked: Asked) -> Iterator[tuple[TenantQueue, list[Any]]]:
    """As `locked`, with what a question gives that was sent along and answered after the lock was there.

    No answer inside a transaction of the caller's, or where no two statements go together.
    """
    alias = app_settings.DATABASE
    is_part = is_open(alias)
    with bounded(alias, tenant_queue_id) as rules:
        asks = bool(rules) and not is_part
        values = {"pk": tenant_queue_id}
        found, *answers = together(rules, Asked(LOCK_IF_FREE, values), *asked) if asks else ([],)
        is_contended = asks and not found
        if is_contended:  # while we hold it others wait for each of our round trips
            found, *answers = together((COMMIT_AT_ONCE,), Asked(LOCK, values), *asked)
        elif not found:
            found, answers = LOCK.rows(rules, **values), []
        if not found:
            raise TenantQueue.DoesNotExist(f"TenantQueue {tenant_queue_id} was deleted")
        yield found[0], answers
    if is_contended:
        send(alias, [WAIT_FOR_DISK])
