"""Who is next: the backlog of a tenant queue in its order, and where a job stands in it.

Each RQ queue has an order of its own: workers of one take no job from another one, so nobody waits there for those that
overflow.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Exists, OuterRef, QuerySet

from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.queue_names import usable_queues
from tenant_slots.stats.expressions import UNLISTED, count_of


def position_in_backlog(job: TenantJob) -> int | None:
    """1 for the tenant's next job in its RQ queue; None when the job does not wait now, whatever the given object says.

    One query.
    """
    position: int | None = with_position(job).values_list("position", flat=True).first()
    return position


def with_position(job: TenantJob) -> QuerySet[Any]:
    """The job's row with its `position`; no row unless it waits.

    Two counts instead of one with OR, as each is one range of the index of the backlog.
    """
    ahead = TenantJob.objects.waiting().filter(tenant_queue=OuterRef("tenant_queue"), rq_queue=OuterRef("rq_queue"))
    more_urgent = ahead.filter(priority__gt=OuterRef("priority"))
    earlier = ahead.filter(priority=OuterRef("priority"), pk__lt=OuterRef("pk"))
    position = 1 + count_of(more_urgent) + count_of(earlier)
    rows: QuerySet[Any] = TenantJob.objects.waiting().filter(pk=job.pk).annotate(position=position)
    return rows


def first_waiting(row: TenantQueue, most: int) -> list[tuple[int, TenantJob]]:
    """Position and job of the first in the backlog, in each RQ queue. Its index has them in their order by that.

    One query where no job waits for an overflow queue; one more for each of these otherwise.
    """
    elsewhere = row.jobs.waiting().filter(rq_queue__gt="")
    jobs = list(_first(row, "").annotate(are_elsewhere=Exists(elsewhere))[:most])
    found = list(enumerate(jobs, start=1))
    if jobs[0].are_elsewhere if jobs else elsewhere.exists():
        for name in usable_queues():
            found += enumerate(_first(row, name)[:most], start=1)
        found.sort(key=lambda placed: placed[0])
    return found[:most]


def _first(row: TenantQueue, rq_queue: str) -> QuerySet[Any]:
    jobs: QuerySet[Any] = row.jobs.backlog().filter(rq_queue=rq_queue).defer(*UNLISTED)
    return jobs
