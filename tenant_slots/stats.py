"""What the tables say now: the one read side for the admin, the commands and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import (
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    Func,
    IntegerField,
    OuterRef,
    QuerySet,
    Subquery,
)

from tenant_slots.models import READY_AT, DatabaseNow, TenantJob, TenantJobQuerySet, TenantQueue

BUSIEST_FIRST = ("-waiting", "-current_job", "tenant", "queue")
"""Longest line first, then most slots in use. For rows of `with_waiting`."""


@dataclass(frozen=True)
class QueueUsage:
    """One tenant's slots and jobs on one queue, all as of one moment."""

    tenant: str
    queue: str
    max_job: int
    current_job: int
    paused: bool
    running: int
    queued: int
    waiting: int
    scheduled: int
    oldest_wait: float | None
    """Seconds, by the database's clock, that the job has waited that became ready first; None when none waits."""


def usage(*, tenant: str | None = None, queue: str | None = None) -> list[QueueUsage]:
    """Every tenant queue, or those of a tenant or a queue, busiest first. One query."""
    rows: QuerySet[TenantQueue] = TenantQueue.objects.all()
    if tenant is not None:
        rows = rows.filter(tenant=tenant)
    if queue is not None:
        rows = rows.filter(queue=queue)
    jobs = jobs_of_row()
    counted = with_waiting(rows).annotate(
        running=count_of(jobs.running()),
        queued=count_of(jobs.queued()),
        scheduled=count_of(jobs.scheduled()),
        oldest_wait=oldest_wait(jobs),
    )
    fields = QueueUsage.__dataclass_fields__
    return [QueueUsage(**_in_seconds(row)) for row in counted.order_by(*BUSIEST_FIRST).values(*fields)]


def with_waiting(rows: QuerySet[TenantQueue]) -> QuerySet[Any]:
    """The rows with `waiting`, the number of jobs in line."""
    return rows.annotate(waiting=count_of(jobs_of_row().waiting()))


def position_in_line(job: TenantJob) -> int | None:
    """1 for the tenant's next job; None when the job does not wait now, whatever the given object says. One query."""
    position: int | None = placed(job).values_list("place", flat=True).first()
    return position


def placed(job: TenantJob) -> QuerySet[Any]:
    """The job's row with its `place` in line; no row unless it waits.

    Two counts instead of one with OR, as each is one range of the index of the line.
    """
    ahead = TenantJob.objects.waiting().filter(tenant_queue=OuterRef("tenant_queue"))
    more_urgent = ahead.filter(priority__gt=OuterRef("priority"))
    earlier = ahead.filter(priority=OuterRef("priority"), pk__lt=OuterRef("pk"))
    place = 1 + count_of(more_urgent) + count_of(earlier)
    rows: QuerySet[Any] = TenantJob.objects.waiting().filter(pk=job.pk).annotate(place=place)
    return rows


def jobs_of_row() -> TenantJobQuerySet:
    """The jobs of the TenantQueue that a query is about, for its subqueries."""
    jobs: TenantJobQuerySet = TenantJob.objects.filter(tenant_queue=OuterRef("pk"))
    return jobs


def count_of(jobs: TenantJobQuerySet) -> Any:
    """COUNT as a plain function: Django's aggregate would add a GROUP BY and answer NULL for none."""
    count = Func(template="COUNT(*)", output_field=IntegerField())
    return Subquery(jobs.order_by().values(count=count))


def oldest_wait(jobs: TenantJobQuerySet) -> Any:
    """For how long the job has waited that became ready first, read from an index."""
    oldest = Subquery(jobs.waiting().order_by(READY_AT).values(oldest=READY_AT)[:1], output_field=DateTimeField())
    return ExpressionWrapper(DatabaseNow() - oldest, output_field=DurationField())


def seconds(time: timedelta | None) -> float | None:
    """Never negative: two clocks may differ a little."""
    return None if time is None else max(0.0, time.total_seconds())


def _in_seconds(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "oldest_wait": seconds(row["oldest_wait"])}
