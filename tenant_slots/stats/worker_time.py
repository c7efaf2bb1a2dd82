"""Worker time: for how long workers ran a tenant's jobs lately. It is what fair order divides by share.

Reservations have slots and no worker, so they are left out. A job that was put back counts from its last start only, as
its row keeps no other.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import (
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    QuerySet,
    Sum,
)
from django.db.models.functions import Coalesce, Greatest, Least, Now

from tenant_slots.db.at_hand import AtHand
from tenant_slots.db.clock import ago
from tenant_slots.db.compiled import Statement
from tenant_slots.models import Kind, TenantJob
from tenant_slots.stats.expressions import NO_TIME, in_seconds, ran_lately

HOUR = 3600


def time_within(seconds: float) -> Any:
    """How much of the last `seconds` a job ran, that has started; 0 if it ended before that: the clock was set back."""
    until, since = _within(Coalesce("ended_at", Now()), seconds), _within("started_at", seconds)
    return Greatest(ExpressionWrapper(until - since, output_field=DurationField()), NO_TIME)


def _within(time: Any, seconds: float) -> Any:
    """Cut off at both ends: before PostgreSQL 17, an infinite time has no distance from another one."""
    return Greatest(Least(time, Now()), ago(seconds), output_field=DateTimeField())


@dataclass(frozen=True)
class WorkerTime:
    """The seconds of the last hour."""

    of_rows: Mapping[int, float]
    """By primary key, of those that had any."""
    of_queues: Mapping[str, float]
    """Of all their tenants together."""


def of_all() -> WorkerTime:
    """One query, that reads each job of the hour once."""
    of_rows: dict[int, float] = {}
    of_queues: defaultdict[str, float] = defaultdict(float)
    for pk, queue, time in _by_row().lists():
        of_rows[pk] = in_seconds(time) or 0.0
        of_queues[queue] += of_rows[pk]
    return WorkerTime(of_rows, of_queues)


def with_worker_time(rows: QuerySet[Any], of_rows: Callable[[], Mapping[int, float]]) -> QuerySet[Any]:
    """The rows with `worker_time`, to order by: adding up each row's own jobs takes ten thousand rows a second.

    Args:
        of_rows: that of `of_all`, asked for by a query that orders by it.
    """
    timed: QuerySet[Any] = rows.alias(worker_time=AtHand(of_rows))
    return timed


@functools.cache
def _by_row() -> Statement:
    jobs = ran_lately(TenantJob.objects.filter(kind=Kind.JOB), HOUR).order_by()
    by = jobs.values_list("tenant_queue_id", "tenant_queue__queue")
    return Statement(lambda: by.annotate(time=Sum(time_within(HOUR))))
