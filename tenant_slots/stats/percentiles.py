"""Percentiles by nearest rank, computed in the database: how long jobs waited for their start."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.db.models import Count, ExpressionWrapper, F, IntegerField, Q, QuerySet, Window
from django.db.models.functions import RowNumber

from tenant_slots.db.at_hand import AtHand
from tenant_slots.db.clock import PeriodsAgo, ago
from tenant_slots.db.compiled import Statement
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.stats.expressions import in_seconds, jobs_of_rows, ran_lately, start_delay

WINDOW = 15 * 60
"""Seconds of starts that the start delay of a row is measured over, and the rate of starts."""


def start_delays(pks: Sequence[int], percent: int = 95) -> dict[int, float]:
    """Seconds from ready to first start by tenant queue, over `WINDOW`. One query."""
    return _in_seconds(_start_delays(percent).lists(pks=pks))


def start_delays_of_all(percent: int = 95) -> dict[int, float]:
    """As `start_delays`, of every tenant queue that has had a start. One query, that reads each start once."""
    return _in_seconds(_start_delays_of_all(percent).lists())


def with_start_delay(rows: QuerySet[Any], of_rows: Callable[[], Mapping[int, float]]) -> QuerySet[Any]:
    """The rows with `delay_of_starts`, to order by: ranking each row's own starts takes ten thousand rows 0.3 s.

    Args:
        of_rows: `start_delays_of_all`, asked for by a query that orders by it.
    """
    timed: QuerySet[Any] = rows.alias(delay_of_starts=AtHand(of_rows))
    return timed


def start_delays_by_period(row: TenantQueue, periods: int, seconds: int) -> dict[int, list[float | None]]:
    """The p50 and p95 of each of so many periods of so many seconds, the oldest first, in seconds. One query."""
    period = PeriodsAgo("started_at", seconds)
    started = first_starts(row.jobs.all(), periods * seconds).annotate(period=period)
    with_ranks = ranked(started, by="period", value=start_delay())
    chosen = with_ranks.filter(Q(rank=nearest_rank(50)) | Q(rank=nearest_rank(95)))
    found: dict[int, list[float]] = {}
    for moment, _rank, delay in chosen.order_by("period", "rank").values_list("period", "rank", "value"):
        found.setdefault(moment, []).append(round(in_seconds(delay) or 0.0, 3))
    moments = range(periods, -1, -1)
    # Of one job both are the same row.
    return {
        50: [found[moment][0] if moment in found else None for moment in moments],
        95: [found[moment][-1] if moment in found else None for moment in moments],
    }


def first_starts(jobs: Any, seconds: float) -> Any:
    """Those that started for the first time within the last `seconds`."""
    return ran_lately(jobs, seconds).filter(attempt=1, started_at__gt=ago(seconds))


def nearest_rank(percent: int) -> Any:
    """The rank of a percentile among `count` values: rounded up, in whole numbers as databases divide them."""
    return ExpressionWrapper((F("count") * percent + 99) / 100, output_field=IntegerField())


@functools.cache
def _start_delays(percent: int) -> Statement:
    return _start_delays_of(jobs_of_rows(), percent)


@functools.cache
def _start_delays_of_all(percent: int) -> Statement:
    return _start_delays_of(TenantJob.objects.order_by(), percent)


def _start_delays_of(jobs: Any, percent: int) -> Statement:
    with_ranks = ranked(first_starts(jobs, WINDOW), by="tenant_queue_id", value=start_delay())
    chosen = with_ranks.filter(rank=nearest_rank(percent))
    return Statement(lambda: chosen.values_list("tenant_queue_id", "value"))


def _in_seconds(delays: Iterable[Any]) -> dict[int, float]:
    return {pk: in_seconds(time) or 0.0 for pk, time in delays}


def ranked(jobs: Any, by: str, value: Any) -> Any:
    """The jobs with a `value`, its `rank` among those of the same group, and how many those are: `count`."""
    rank = Window(RowNumber(), partition_by=F(by), order_by=F("value").asc())
    return jobs.annotate(value=value, rank=rank, count=Window(Count("pk"), partition_by=F(by)))
