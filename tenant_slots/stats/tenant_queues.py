"""The slots and jobs of every tenant queue, counted: what the commands and a project's own pages show."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Coalesce

from tenant_slots import rests
from tenant_slots.models import TenantQueue
from tenant_slots.stats.expressions import NO_TIME, count_of, in_seconds, jobs_of_row, oldest_wait
from tenant_slots.validation import name_text, text_problem

BUSIEST_FIRST = ("-waiting", "-current_job", "tenant", "queue")
"""Largest backlog first, then most slots in use. For rows of `with_waiting`."""


@dataclass(frozen=True)
class QueueUsage:
    """One tenant's slots and jobs on one queue, all as of one moment."""

    tenant: str
    queue: str
    max_job: int
    current_job: int
    share: int
    paused: bool
    rests_for: float | None
    """Seconds until its rest is over; None when it does not rest."""
    rest_reason: str
    """Of its last rest, which may be over."""
    running: int
    queued: int
    waiting: int
    scheduled: int
    oldest_wait: float | None
    """Seconds, by the database's clock, that the job has waited that became ready first; None when none waits."""


def usage(*, tenant: str | None = None, queue: str | None = None) -> list[QueueUsage]:
    """Every tenant queue, or those of a tenant or a queue, busiest first. One query."""
    rows: QuerySet[TenantQueue] = TenantQueue.objects.all()
    if text_problem(tenant or "") or text_problem(queue or ""):
        return []  # no row has a name that cannot be stored
    if tenant is not None:
        rows = rows.filter(tenant=name_text(tenant))
    if queue is not None:
        rows = rows.filter(queue=name_text(queue))
    jobs = jobs_of_row()
    counted = with_waiting(rows).annotate(
        running=count_of(jobs.running()),
        queued=count_of(jobs.queued()),
        scheduled=count_of(jobs.scheduled()),
        oldest_wait=oldest_wait(jobs),
        rests_for=rests.left(),
    )
    names = [field.name for field in fields(QueueUsage)]
    return [
        QueueUsage(**{**row, **{name: in_seconds(row[name]) for name in ("oldest_wait", "rests_for")}})
        for row in counted.order_by(*BUSIEST_FIRST).values(*names)
    ]


def with_in_use(rows: QuerySet[Any]) -> QuerySet[Any]:
    """The rows with `in_use`, the number of their running jobs."""
    counted: QuerySet[Any] = rows.annotate(in_use=count_of(jobs_of_row().running()))
    return counted


def with_waiting(rows: QuerySet[TenantQueue]) -> QuerySet[Any]:
    """The rows with `waiting`, the size of the backlog."""
    return rows.annotate(waiting=count_of(jobs_of_row().waiting()))


def with_longest_wait(rows: QuerySet[Any]) -> QuerySet[Any]:
    """The rows with `longest_wait`, to order by: of the job that could have started first, nothing where none waits."""
    timed: QuerySet[Any] = rows.alias(longest_wait=Coalesce(oldest_wait(jobs_of_row()), NO_TIME))
    return timed
