"""What the live pages show of some tenant queues at one moment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import QuerySet

from tenant_slots import rates
from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow, ago
from tenant_slots.db.compiled import IsOneOf, Statement
from tenant_slots.models import State, TenantQueue
from tenant_slots.stats import percentiles, series
from tenant_slots.stats.expressions import PKS, count_of, in_seconds, jobs_of_row, oldest_wait
from tenant_slots.stats.limit_reasons import reason_of_limit
from tenant_slots.stats.states import with_state
from tenant_slots.stats.tenant_queues import with_waiting


@dataclass(frozen=True)
class Row:
    """One tenant queue. Times are in seconds; None where there is nothing to measure."""

    pk: int
    queue: str
    state: str
    """A `states.QueueState`."""
    max_job: int
    current_job: int
    share: int
    rate_number: int | None
    rate_per: timedelta | None
    rate_burst: int | None
    rate_empty_at: int | None
    seen_at: datetime
    """The database's clock at this look at the row."""
    version: int
    running: int
    queued: int
    waiting: int
    stale: int
    oldest_wait: float | None
    limit_source: str
    limit_set_by: str
    limit_reason: str
    """"" where none was given, or is known."""
    limit_before_override: int | None
    override_until: datetime | None
    override_by: str
    paused: bool
    resume_at: datetime | None
    rests_until: datetime | None
    rest_reason: str
    limit_history: list[tuple[float, int]] | None
    failed: int = 0
    """In the last hour."""
    start_delay: float | None = None
    """95 % of the first starts of the last 15 minutes came within this time."""
    activity: tuple[int, ...] = ()
    """Running jobs a minute apart, the oldest first, the last one now."""
    limits: tuple[int, ...] = ()
    """The limit at the same moments."""
    worker_seconds: float = 0.0
    """For how long workers ran its jobs in the last hour."""

    @property
    def rate(self) -> rates.Rate | None:
        return rates.of(self)

    @property
    def bucket(self) -> rates.Bucket | None:
        """What the rate has left; None if there is no rate."""
        return rates.bucket(self, self.seen_at)


OF_ITS_JOBS = ("failed", "start_delay", "activity", "limits", "worker_seconds")
MEASURED = [field.name for field in fields(Row) if field.name not in OF_ITS_JOBS]


class LastHour(NamedTuple):
    """What has become of a tenant queue's jobs in the last hour, all of which are read for it. As in `Row`."""

    failed: int
    start_delay: float | None
    activity: tuple[int, ...]
    worker_seconds: float


def last_hours(pks: Sequence[int]) -> dict[int, LastHour]:
    """Of these tenant queues, by primary key. Two queries, however many."""
    delays, ran = percentiles.start_delays(pks), series.ran(pks)
    return {pk: LastHour(ran[pk].failed, delays.get(pk), ran[pk].running, ran[pk].worker_seconds) for pk in pks}


def measured(
    pks: Sequence[int], hours: Callable[[Sequence[int]], Mapping[int, LastHour]] = last_hours
) -> dict[int, Row]:
    """These tenant queues by primary key. One query, and those of `hours`.

    Args:
        pks: their primary keys.
        hours: where what is known of their jobs comes from. It may be some seconds old: what runs now is told anew.
    """
    found = [dict(zip(MEASURED, row, strict=True)) for row in _figures(app_settings.LEASE_TTL).lists(pks=pks)]
    of_jobs = hours([row["pk"] for row in found])
    return {row["pk"]: _row(row, of_jobs[row["pk"]]) for row in found}


def _row(figures: dict[str, Any], of_jobs: LastHour) -> Row:
    until_now = (*of_jobs.activity[:-1], figures["running"])
    return Row(
        **{**figures, "oldest_wait": in_seconds(figures["oldest_wait"])},
        **{**of_jobs._asdict(), "activity": until_now},
        limits=series.limits(figures["max_job"], figures["limit_history"]),
    )


@functools.cache
def _figures(lease_ttl: float) -> Statement:
    """One for each ``LEASE_TTL``, which is a part of it."""
    figures = _with_figures(with_waiting(TenantQueue.objects.filter(IsOneOf("pk", PKS))))
    return Statement(lambda: figures.values_list(*MEASURED))


def with_figures(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Rows of `with_waiting` with all that one look at them tells, for `row_of`."""
    failed = jobs_of_row().filter(state=State.FAILED, ended_at__gt=ago(3600)).ended()
    figures: QuerySet[Any] = _with_figures(rows).annotate(failed=count_of(failed))
    return figures


def _with_figures(rows: QuerySet[Any]) -> QuerySet[Any]:
    jobs = jobs_of_row()
    figures: QuerySet[Any] = with_state(rows).annotate(
        running=count_of(jobs.running()),
        queued=count_of(jobs.queued()),
        stale=count_of(jobs.stale()),
        oldest_wait=oldest_wait(jobs),
        limit_reason=reason_of_limit(),
        seen_at=DatabaseNow(),
    )
    return figures


def row_of(found: Any) -> Row:
    """A tenant queue of `with_figures` as `measured` gives it, without what takes queries of its own."""
    figures = {name: getattr(found, name) for name in (*MEASURED, "failed")}
    return Row(**{**figures, "oldest_wait": in_seconds(found.oldest_wait)})
