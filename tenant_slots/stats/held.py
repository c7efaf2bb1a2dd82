"""Who has the slots of a tenant queue."""

from __future__ import annotations

from django.db.models import Exists, F, OuterRef

from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.stats.expressions import LARGE


def running(row: TenantQueue) -> int:
    """How many of its slots are in use. A job that was admitted and has not begun holds one that nobody uses yet."""
    count: int = row.jobs.running().count()
    return count


def holding(row: TenantQueue, most: int) -> list[TenantJob]:
    """The jobs that hold a slot, those that run first; `is_stale` where the heartbeat is too old."""
    stale = Exists(TenantJob.objects.stale().filter(pk=OuterRef("pk")))
    jobs = row.jobs.holding().defer(*LARGE).annotate(is_stale=stale)
    return list(jobs.order_by(F("started_at").asc(nulls_last=True), "pk")[:most])


def holding_the_key(job: TenantJob, most: int) -> list[TenantJob]:
    """The jobs that hold a slot and have the concurrency key of this one."""
    jobs = job.tenant_queue.jobs.holding().filter(key=job.key).order_by("pk")
    return list(jobs.only("tenant_queue", "task", "uuid", "worker", "beats")[:most])


def stale(row: TenantQueue, most: int) -> list[TenantJob]:
    """Running jobs whose heartbeat is too old, the oldest first."""
    return list(row.jobs.stale().defer(*LARGE).order_by("beat_at")[:most])
