"""Who is next: the backlog of a tenant queue in its order, and where a job stands in it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import OuterRef, QuerySet

from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.stats.expressions import LARGE, count_of


def position_in_backlog(job: TenantJob) -> int | None:
    """1 for the tenant's next job; None when the job does not wait now, whatever the given object says. One query."""
    position: int | None = with_position(job).values_list("position", flat=True).first()
    return position


def with_position(job: TenantJob) -> QuerySet[Any]:
    """The job's row with its `position`; no row unless it waits.

    Two counts instead of one with OR, as each is one range of the index of the backlog.
    """
    ahead = TenantJob.objects.waiting().filter(tenant_queue=OuterRef("tenant_queue"))
    more_urgent = ahead.filter(priority__gt=OuterRef("priority"))
    earlier = ahead.filter(priority=OuterRef("priority"), pk__lt=OuterRef("pk"))
    position = 1 + count_of(more_urgent) + count_of(earlier)
    rows: QuerySet[Any] = TenantJob.objects.waiting().filter(pk=job.pk).annotate(position=position)
    return rows


def first_waiting(row: TenantQueue, most: int) -> list[tuple[int, TenantJob]]:
    """Position and job of the first in the backlog. Its index has them in their order by RQ queue."""
    names = ("", *getattr(settings, "RQ_QUEUES", {}))
    jobs = [job for name in names for job in row.jobs.backlog().filter(rq_queue=name).defer(*LARGE)[:most]]
    jobs.sort(key=lambda job: (-job.priority, job.pk))
    return list(enumerate(jobs[:most], start=1))
