"""A transaction that holds one tenant queue: whoever admits, releases or changes a limit does it inside.

No transaction holds the rows of two tenants, and nothing but the database is talked to while one is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tenant_slots.conf import app_settings
from tenant_slots.db.transactions import bounded
from tenant_slots.models import TenantQueue
from tenant_slots.statements import LOCK


@contextmanager
def locked(tenant_queue_id: int) -> Iterator[TenantQueue]:
    """A transaction that holds the tenant queue, or a part of the caller's own, which then holds it to its end.

    NO KEY, because enqueue's foreign key takes a share lock on the key and must never wait for this.

    Raises:
        TenantQueue.DoesNotExist: the row was deleted.
        TenantQueueLocked: somebody else keeps it, or one of its jobs, for longer than our patience.
    """
    with bounded(app_settings.DATABASE, tenant_queue_id) as rules:
        found = LOCK.rows(rules, pk=tenant_queue_id)
        if not found:
            raise TenantQueue.DoesNotExist(f"TenantQueue {tenant_queue_id} was deleted")
        yield found[0]
