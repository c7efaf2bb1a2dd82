"""The pieces of SQL that the figures are made of."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import (
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    Func,
    IntegerField,
    OuterRef,
    Q,
    Subquery,
    Value,
)

from tenant_slots.db.clock import DatabaseNow, InCalendar, ago
from tenant_slots.db.compiled import IsOneOf, Keys
from tenant_slots.models import ANY, READY_AT, Stage, State, TenantJob, TenantJobQuerySet
from tenant_slots.models.fields import Moment

PKS = Keys("pks")
"""Of the tenant queues that a compiled statement is asked about."""

NO_TIME = Value(timedelta(0), output_field=DurationField())

UNLISTED = ("args", "kwargs", "options", "context", "result", "error", "runs")
"""Fields of a job that a list of jobs has no use for and that may take long to read."""


def jobs_of_row() -> TenantJobQuerySet:
    """The jobs of the TenantQueue that a query is about, for its subqueries."""
    jobs: TenantJobQuerySet = TenantJob.objects.filter(tenant_queue=OuterRef("pk"))
    return jobs


def jobs_of_rows() -> Any:
    """The jobs of the tenant queues `PKS`, for a compiled statement."""
    return TenantJob.objects.filter(IsOneOf("tenant_queue", PKS))


def count_of(jobs: TenantJobQuerySet) -> Any:
    """COUNT as a plain function: Django's aggregate would add a GROUP BY and answer NULL for none."""
    count = Func(template="COUNT(*)", output_field=IntegerField())
    return Subquery(jobs.order_by().values(count=count))


def first_ready(jobs: Any) -> Any:
    """One row with the earliest time at which one of these could start, NULL for none.

    A MIN, which is read from the index of that time. An ORDER BY would be of the selected column, for which a `Moment`
    has another text.
    """
    return jobs.order_by().values_list(Func(READY_AT, function="MIN", output_field=Moment()), flat=True)


def oldest_wait(jobs: TenantJobQuerySet, whose: Q = ANY) -> Any:
    """For how long the job has waited that became ready first. `ANY_OF_ALL` for the jobs of all tenants."""
    oldest = Subquery(first_ready(jobs.waiting().filter(whose)), output_field=DateTimeField())
    return ExpressionWrapper(DatabaseNow() - oldest, output_field=DurationField())


def start_delay() -> Any:
    """From when a job was due to when it started, whatever has kept it."""
    return ExpressionWrapper(InCalendar("started_at") - InCalendar(READY_AT), output_field=DurationField())


def run_time() -> Any:
    """Of the last run of a job that has ended."""
    return ExpressionWrapper(InCalendar("ended_at") - InCalendar("started_at"), output_field=DurationField())


OF_ATTEMPT_BEFORE = Q(stage=Stage.ENDED, started_at__lt=F("admitted_at"))
"""Jobs that have ended between their last admission and the start that was to follow: they have an older one."""


def ran_lately(jobs: Any, seconds: float) -> Any:
    """Those that ran within the last `seconds`: running ones, and ended ones by the index of their row.

    One that was put back and canceled while it waited did not run to that end: nobody had to ask its run to stop.
    """
    return ran_or_failed_lately(jobs, seconds).filter(started_at__isnull=False).exclude(OF_ATTEMPT_BEFORE)


def ran_or_failed_lately(jobs: Any, seconds: float) -> Any:
    """As `ran_lately`, and those too that have failed without a start."""
    ended = Q(stage=Stage.ENDED, ended_at__gt=ago(seconds)) & ~Q(state=State.CANCELED, cancel_requested_at=None)
    return jobs.filter(Q(stage=Stage.HOLDING, state=State.RUNNING) | ended)


def in_seconds(time: timedelta | None) -> float | None:
    """Never negative: two clocks may differ a little."""
    return None if time is None else max(0.0, time.total_seconds())
