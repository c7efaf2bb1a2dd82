"""Deleting many tenant queues at once: those that nobody uses, each of which is refused otherwise.

The one transaction that holds several tenants' rows. It waits for none of them: what somebody else has is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Exists, OuterRef, Q
from django.db.models.deletion import Collector

from tenant_slots.conf import app_settings
from tenant_slots.db.compiled import among
from tenant_slots.models import JobDependency, TenantJob, TenantQueue


class Unused(list[TenantQueue]):
    """Locked tenant queues without work: the origin of a deletion that has nothing more to look at."""


def has_work() -> Q:
    """Condition: jobs of the tenant queue hold its slots or have still to start. Read from the index of each stage."""
    jobs = TenantJob.objects.filter(tenant_queue=OuterRef("pk"))
    return Q(Exists(jobs.holding())) | Q(Exists(jobs.waiting())) | Q(Exists(jobs.scheduled()))


def lock_free(pks: Sequence[int]) -> list[TenantQueue]:
    """Those of them that nobody else holds, nor keeps for a job that is not committed yet. In a transaction."""
    free = TenantQueue.objects.select_for_update(skip_locked=True).filter(among(pks))
    return list(free.order_by("pk"))


def with_work(rows: Sequence[TenantQueue]) -> set[int]:
    """The primary keys of those of the rows that cannot be deleted."""
    found = TenantQueue.objects.filter(has_work(), among([row.pk for row in rows])).order_by()
    return set(found.values_list("pk", flat=True))


def delete_unused(rows: Unused) -> int:
    """Django's, of all of them together. In the transaction in which they were locked and found to be unused.

    Returns:
        How many jobs were deleted with them.
    """
    JobDependency.objects.filter(among([row.pk for row in rows], "job__tenant_queue")).delete()
    collector: Any = Collector(using=app_settings.DATABASE, origin=rows)  # type: ignore[arg-type]
    collector.collect(rows)
    _, deleted = collector.delete()
    jobs: int = deleted.get(TenantJob._meta.label, 0)
    return jobs
