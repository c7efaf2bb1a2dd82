"""Who keeps a tenant queue's row locked, as PostgreSQL tells it: to find out nobody has to wait."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from django.db import Error, connections, transaction

from tenant_slots.conf import app_settings
from tenant_slots.models import TenantQueue

LONG = 2
"""Seconds of a transaction; ours take milliseconds."""

HOLDER = """
SELECT holder.pid, EXTRACT(EPOCH FROM CLOCK_TIMESTAMP() - holder.xact_start)
FROM {table} AS held
JOIN pg_stat_activity AS holder ON holder.backend_xid = held.xmax
WHERE held.id = %s AND holder.xact_start < CLOCK_TIMESTAMP() - MAKE_INTERVAL(secs => %s)
"""
"""A row has the number of the transaction that changes or locks it. Behind a savepoint that is another one, as it is of
several that share a lock; and of other users' sessions PostgreSQL tells nothing to who may not see them.
"""


@dataclass(frozen=True)
class RowLock:
    """A transaction keeps the row."""

    process: int
    """PostgreSQL's number of the session's process."""
    seconds: float
    """Since the transaction began."""


def lock_of(row: TenantQueue) -> RowLock | None:
    """None where no transaction is known to have kept it for long. One query, and one more where one may have."""
    connection = connections[app_settings.DATABASE]
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute(HOLDER.format(table=connection.ops.quote_name(row._meta.db_table)), [row.pk, LONG])
        found = cursor.fetchone()
    return RowLock(found[0], float(found[1])) if found and not _is_free(row) else None


def _is_free(row: TenantQueue) -> bool:
    """Whoever enqueues in a transaction keeps the row from being deleted, and that alone: nobody waits for it.

    So it is where this cannot be asked, as in a session that may only read.
    """
    with suppress(Error), transaction.atomic(using=app_settings.DATABASE):
        unlocked = TenantQueue.objects.select_for_update(no_key=True, skip_locked=True).filter(pk=row.pk)
        return unlocked.values_list("pk").first() is not None
    return True
