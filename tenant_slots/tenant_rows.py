"""Tenant queues as those who enqueue read them: kept, in a transaction, from being deleted before its end.

A new job's foreign key is checked when its transaction commits, and PostgreSQL takes its lock on the tenant queue only
then. By that time somebody may have deleted the row, in which nobody saw a job, and all that the caller has done in his
transaction would be undone. So the row is locked as the foreign key does it, for those who delete and nobody else,
before a job is stored. Whoever enqueues by a single statement is told of a deletion by that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from django.db import connections
from django.db.models import CharField, QuerySet

from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.db.compiled import IsOneOf, Keys, Parameter, Statement
from tenant_slots.models import TenantQueue

KEPT = "FOR KEY SHARE"
"""Nobody deletes the rows, nor locks them FOR UPDATE, before the end of the transaction; all others go on."""

KEPT_IF_FREE = "FOR KEY SHARE SKIP LOCKED"


def _of_one(lock: str = "") -> Statement:
    return Statement(_by_name, lock=lock)


def _by_name() -> QuerySet[TenantQueue]:
    return TenantQueue.objects.filter(tenant=Parameter("tenant", CharField()), queue=Parameter("queue", CharField()))


def _of_many(lock: str = "") -> Statement:
    """In one order, whoever locks them."""
    among, queue = IsOneOf("tenant", Keys("tenants")), Parameter("queue", CharField())
    return Statement(lambda: TenantQueue.objects.filter(among, queue=queue).order_by("tenant"), lock=lock)


def _by_keys(lock: str) -> Statement:
    rows = TenantQueue.objects.filter
    return Statement(lambda: rows(IsOneOf("pk", Keys("pks"))).order_by("tenant", "queue").values_list("pk"), lock=lock)


ROW, ROW_IF_FREE, KEPT_ROW = _of_one(), _of_one(KEPT_IF_FREE), _of_one(KEPT)
UNBOUNDED = Statement(lambda: _by_name().filter(max_waiting=None).values_list("pk"))
"""The primary key of a tenant queue that takes any number of jobs."""

ROWS, ROWS_IF_FREE = _of_many(), _of_many(KEPT_IF_FREE)
KEYS_IF_FREE, KEPT_KEYS = _by_keys(KEPT_IF_FREE), _by_keys(KEPT)


def found(tenant: str, queue: str) -> TenantQueue | None:
    """The row of a tenant on a queue, if there is one; `kept` in a transaction.

    Raises:
        TenantQueueLocked: somebody else deletes it, or locks it FOR UPDATE, for longer than our patience.
    """
    by_name = {"tenant": tenant, "queue": queue}
    if not _are_kept():
        rows = ROW.rows(**by_name)
    elif not (rows := ROW_IF_FREE.rows(**by_name)):
        with transactions.bounded(app_settings.DATABASE, f"of {tenant!r} on {queue}") as rules:
            rows = KEPT_ROW.rows(rules, **by_name)
    return next(iter(rows), None)


def named(**known: Any) -> TenantQueue:
    """A row of which this much is known, by attribute; whatever else is asked of it is read then."""
    names = [field.attname for field in TenantQueue._meta.concrete_fields if field.attname in known]
    row: TenantQueue = TenantQueue.from_db(app_settings.DATABASE, names, [known[name] for name in names])
    return row


def found_among(tenants: Iterable[str], queue: str) -> dict[str, TenantQueue]:
    """The rows that there are, by tenant. In a transaction those that nobody else deletes, or locks; and `kept`."""
    rows = (ROWS_IF_FREE if _are_kept() else ROWS).rows(tenants=[*tenants], queue=queue)
    return {row.tenant: row for row in rows}


def keep(pks: Collection[int]) -> None:
    """Keep the rows, as far as they are there, to the end of the transaction.

    Raises:
        TenantQueueLocked: as `found`.
    """
    if _are_kept() and len(KEYS_IF_FREE.lists(pks=pks)) < len(pks):
        with transactions.bounded(app_settings.DATABASE, f"of {len(pks)} tenants") as rules:
            KEPT_KEYS.lists(rules, pks=pks)


def is_locked(pk: int) -> bool:
    """Whether somebody is about to delete the row, or locks it FOR UPDATE."""
    return not KEYS_IF_FREE.lists(pks=[pk]) and TenantQueue.objects.filter(pk=pk).exists()


def _are_kept() -> bool:
    """On SQLite nobody else writes once the caller has read."""
    alias = app_settings.DATABASE
    return connections[alias].vendor == "postgresql" and transactions.is_open(alias)
