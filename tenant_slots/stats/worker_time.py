"""Worker time: for how long workers ran a tenant's jobs lately. It is what fair order divides by share.

Reservations have slots and no worker, so they are left out. A job that was put back counts from its last start only, as
its row keeps no other.
"""

from __future__ import annotations

import functools
from typing import Any

from django.db.models import (
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    Func,
    QuerySet,
    Subquery,
    Sum,
)
from django.db.models.functions import Coalesce, Greatest, Least, Now

from tenant_slots.db.clock import ago
from tenant_slots.db.compiled import Statement
from tenant_slots.models import Kind, TenantJob
from tenant_slots.stats.expressions import NO_TIME, in_seconds, jobs_of_row, ran_lately

HOUR = 3600


def time_within(seconds: float) -> Any:
    """How much of the last `seconds` a job ran, that has started."""
    until, since = _within(Coalesce("ended_at", Now()), seconds), _within("started_at", seconds)
    return ExpressionWrapper(until - since, output_field=DurationField())


def _within(time: Any, seconds: float) -> Any:
    """Cut off at both ends: before PostgreSQL 17, an infinite time has no distance from another one."""
    return Greatest(Least(time, Now()), ago(seconds), output_field=DateTimeField())


def of_queues() -> dict[str, float]:
    """The seconds of the last hour, by queue, of all tenants together. One query."""
    return {queue: in_seconds(time) or 0.0 for queue, time in _by_queue().lists()}


def with_worker_time(rows: QuerySet[Any]) -> QuerySet[Any]:
    """The rows with `worker_time`, that of the last hour, to order by."""
    jobs = ran_lately(jobs_of_row().filter(kind=Kind.JOB), HOUR).order_by()
    total = Func(time_within(HOUR), function="SUM", output_field=DurationField())
    timed: QuerySet[Any] = rows.alias(worker_time=Coalesce(Subquery(jobs.values(total=total)), NO_TIME))
    return timed


@functools.cache
def _by_queue() -> Statement:
    jobs = ran_lately(TenantJob.objects.filter(kind=Kind.JOB), HOUR).order_by()
    return Statement(lambda: jobs.values_list("tenant_queue__queue").annotate(time=Sum(time_within(HOUR))))
