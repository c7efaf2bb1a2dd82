"""What the live pages show of some tenant queues at one moment: numbers only, texts are the admin's."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import accumulate
from typing import Any

from django.db.models import (
    Case,
    CharField,
    Count,
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    IntegerField,
    Max,
    Q,
    QuerySet,
    Subquery,
    Sum,
    TextChoices,
    Value,
    When,
    Window,
)
from django.db.models.functions import Coalesce, RowNumber
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from tenant_slots import dispatch, stats
from tenant_slots.compiled import IsOneOf, Keys, Statement
from tenant_slots.conf import app_settings
from tenant_slots.models import ENDED, READY_AT, State, TenantJob, TenantJobQuerySet, TenantQueue
from tenant_slots.time_buckets import PeriodsAgo, ago

MINUTES = 60
"""What a row's little chart shows, a point a minute."""

DELAY_WINDOW = 15 * 60
"""Seconds of starts that the start delay is measured over."""


PKS = Keys("pks")
"""Of the tenant queues that a compiled statement is asked about."""


class QueueState(TextChoices):
    """One word for a row; where several apply, the first of `state_of_row`."""

    STALE = "stale", _("Stale")
    PAUSED = "paused", _("Paused")
    OVER = "over", _("Over limit – draining")  # noqa: RUF001  a dash, as printed
    BACKLOGGED = "backlogged", _("Backlogged")
    AT_LIMIT = "at_limit", _("At limit")
    ACTIVE = "active", _("Active")
    IDLE = "idle", _("Idle")


@dataclass(frozen=True)
class Row:
    """One tenant queue. Times are in seconds; None where there is nothing to measure."""

    pk: int
    state: str
    max_job: int
    current_job: int
    version: int
    running: int
    queued: int
    waiting: int
    failed: int
    """In the last hour."""
    stale: int
    oldest_wait: float | None
    limit_source: str
    limit_set_by: str
    limit_before_override: int | None
    override_until: datetime | None
    override_by: str
    paused: bool
    resume_at: datetime | None
    limit_history: list[tuple[float, int]] | None
    start_delay: float | None = None
    """95 % of the first starts of the last 15 minutes came within this time."""
    activity: tuple[int, ...] = ()
    """Running jobs a minute apart, the oldest first, the last one now."""
    limits: tuple[int, ...] = ()
    """The limit at the same moments."""


@dataclass(frozen=True)
class Tiles:
    """All tenant queues together."""

    in_use: int
    capacity: int
    """Of those that are not paused; calls without a tenant, which nobody limits, are left out."""
    waiting: int
    oldest_wait: float | None
    at_limit: int
    stale: int
    workers: int | None
    """None when Redis cannot be asked."""


class CountInOneProcess(Subquery):
    """A count that PostgreSQL does not share out: to start parallel workers takes longer than to count 200,000 rows.

    It is the LIMIT that keeps it from that. No table has so many rows.
    """

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted)"

    def __init__(self, jobs: TenantJobQuerySet) -> None:
        super().__init__(jobs.order_by().values(one=Value(1))[: 2**62], output_field=IntegerField())


def rows(pks: Sequence[int]) -> dict[int, Row]:
    """These tenant queues by primary key. Three queries, however many rows."""
    found = {row["pk"]: row for row in _measured(pks)}
    delays, running = start_delays(pks), activity(pks)
    for pk, row in found.items():
        row["start_delay"] = delays.get(pk)
        row["activity"] = running[pk]
        row["limits"] = limits_back(row["max_job"], row["limit_history"])
    return {pk: Row(**row) for pk, row in found.items()}


def tiles(queues: QuerySet[TenantQueue] | None = None) -> Tiles:
    """All tenant queues together, or these ones. One query."""
    if queues is None:
        found = dict(zip(SUMMED, _compiled_sums(app_settings.LEASE_TTL).lists()[0], strict=True))
    else:
        jobs = TenantJob.objects.filter(tenant_queue__in=queues.order_by().values("pk"))
        found = queues.order_by().aggregate(**_sums(jobs, oldest_among=stats.jobs_of_row()))
    return Tiles(
        **{**found, "oldest_wait": stats.seconds(found["oldest_wait"])},
        workers=dispatch.workers_alive(),
    )


SUMMED = [field.name for field in fields(Tiles) if field.name != "workers"]


@functools.cache
def _compiled_sums(lease_ttl: float) -> Statement:
    """One for each ``LEASE_TTL``, which `silent` puts into it."""
    return Statement(sums_of_all)


def sums_of_all() -> QuerySet[Any]:
    """One row with the values of `SUMMED`. The constant makes all tenant queues one group."""
    jobs = TenantJob.objects.all()
    sums = TenantQueue.objects.order_by().values(all=Value(1)).annotate(**_sums(jobs, oldest_among=jobs))
    return sums.values_list(*SUMMED)


def _sums(jobs: Any, oldest_among: Any) -> dict[str, Any]:
    """What the tiles add up.

    Args:
        jobs: those of the rows.
        oldest_among: where to look for the one that waits longest: among all it is the first of an index; among those
            of some rows it is looked for row by row.
    """
    limited = ~Q(tenant="")
    # Max, because what does not depend on the row has one answer for all; the database asks for it once.
    return {
        "in_use": Coalesce(Sum("current_job", filter=limited), 0),
        "capacity": Coalesce(Sum("max_job", filter=limited & Q(paused=False)), 0),
        "at_limit": Count("pk", filter=Q(current_job__gte=F("max_job"), current_job__gt=0)),
        "waiting": Coalesce(Max(CountInOneProcess(jobs.waiting())), 0),
        "stale": Coalesce(Max(stats.count_of(jobs.silent())), 0),
        "oldest_wait": Max(stats.oldest_wait(oldest_among)),
    }


def with_state(rows: QuerySet[Any]) -> QuerySet[Any]:
    """The rows with `state`, to filter by."""
    named: QuerySet[Any] = rows.annotate(state=state_of_row())
    return named


def state_of_row() -> Any:
    """The `QueueState` of a TenantQueue, in SQL, so that filter and page can never differ."""
    jobs = stats.jobs_of_row()
    words: list[tuple[Any, QueueState]] = [
        (Exists(jobs.silent()), QueueState.STALE),
        (Q(paused=True), QueueState.PAUSED),
        (Q(current_job__gt=F("max_job")), QueueState.OVER),
        (Exists(jobs.waiting()), QueueState.BACKLOGGED),
        (Q(current_job=F("max_job"), current_job__gt=0), QueueState.AT_LIMIT),
        (Q(current_job__gt=0), QueueState.ACTIVE),
    ]
    return Case(
        *(When(condition, then=Value(word.value)) for condition, word in words),
        default=Value(QueueState.IDLE.value),
        output_field=CharField(),
    )


def start_delays(pks: Sequence[int], percent: int = 95) -> dict[int, float]:
    """Seconds from ready to first start by tenant queue, nearest rank, over `DELAY_WINDOW`. One query."""
    return {pk: stats.seconds(time) or 0.0 for pk, time in _start_delays(percent).lists(pks=pks)}


@functools.cache
def _start_delays(percent: int) -> Statement:
    jobs = ran_lately(TenantJob.objects.filter(IsOneOf("tenant_queue", PKS)), DELAY_WINDOW)
    started = jobs.filter(attempt=1, started_at__gt=ago(DELAY_WINDOW))
    rank = Window(RowNumber(), partition_by=F("tenant_queue_id"), order_by=F("delay").asc())
    count = Window(Count("pk"), partition_by=F("tenant_queue_id"))
    ranked = started.annotate(delay=delay(), rank=rank, count=count)
    return Statement(lambda: ranked.filter(rank=nearest_rank(percent)).values_list("tenant_queue_id", "delay"))


def delay() -> Any:
    """From when a job could start to when it did."""
    return ExpressionWrapper(F("started_at") - READY_AT, output_field=DurationField())


def nearest_rank(percent: int) -> Any:
    """The rank of a percentile among `count` values: rounded up, in whole numbers as databases divide them."""
    return ExpressionWrapper((F("count") * percent + 99) / 100, output_field=IntegerField())


def lately(pks: Sequence[int], seconds: float) -> Any:
    """Jobs of these tenant queues that ran within the last `seconds`."""
    return ran_lately(TenantJob.objects.filter(tenant_queue__in=pks), seconds)


def ran_lately(jobs: Any, seconds: float) -> Any:
    """Those that ran within the last `seconds`: running ones, and ended ones by the index of their row."""
    ended = Q(state__in=ENDED, ended_at__gt=ago(seconds))
    return jobs.filter(Q(state=State.RUNNING) | ended, started_at__isnull=False)


def activity(pks: Sequence[int], periods: int = MINUTES, seconds: int = 60) -> dict[int, tuple[int, ...]]:
    """Jobs that ran at moments `seconds` apart, the oldest first. One query.

    A job that was put back counts from its last start only, as its row keeps no other.
    """
    changes: dict[int, Counter[int]] = defaultdict(Counter)
    for pk, started, ended, jobs in _activity(periods, seconds).lists(pks=pks):
        # It ran at the moments from `started` periods ago to the last one before it ended.
        changes[pk][min(started, periods)] += jobs
        changes[pk][-1 if ended is None else ended] -= jobs
    return {pk: _summed(changes[pk], periods) for pk in pks}


@functools.cache
def _activity(periods: int, seconds: int) -> Statement:
    jobs = ran_lately(TenantJob.objects.filter(IsOneOf("tenant_queue", PKS)), periods * seconds).order_by()
    moments = jobs.values_list("tenant_queue_id", PeriodsAgo("started_at", seconds), PeriodsAgo("ended_at", seconds))
    return Statement(lambda: moments.annotate(jobs=Count("pk")))


def limits_back(
    max_job: int, history: Iterable[Sequence[float]] | None, periods: int = MINUTES, seconds: int = 60
) -> tuple[int, ...]:
    """The limit at the moments of `activity`, from the changes that the row keeps."""
    if not history:
        return (max_job,) * (periods + 1)
    now = timezone.now().timestamp()
    changes = [(now - moment, int(before)) for moment, before in history]
    moments = range(periods, -1, -1)
    return tuple(next((before for age, before in changes if age < moment * seconds), max_job) for moment in moments)


def _summed(changes: Mapping[int, int], periods: int) -> tuple[int, ...]:
    running = accumulate(changes.get(moment, 0) for moment in range(periods, -1, -1))
    return tuple([max(0, jobs) for jobs in running])


MEASURED = [field.name for field in fields(Row) if field.name not in ("start_delay", "activity", "limits")]


def _measured(pks: Sequence[int]) -> list[dict[str, Any]]:
    rows = _figures(app_settings.LEASE_TTL).lists(pks=pks)
    measured = [dict(zip(MEASURED, row, strict=True)) for row in rows]
    return [{**row, "oldest_wait": stats.seconds(row["oldest_wait"])} for row in measured]


@functools.cache
def _figures(lease_ttl: float) -> Statement:
    """One for each ``LEASE_TTL``, which `silent` puts into it."""
    jobs = stats.jobs_of_row()
    measured = with_state(stats.with_waiting(TenantQueue.objects.filter(IsOneOf("pk", PKS)))).annotate(
        running=stats.count_of(jobs.running()),
        queued=stats.count_of(jobs.queued()),
        failed=stats.count_of(jobs.filter(state=State.FAILED, ended_at__gt=ago(3600)).ended()),
        stale=stats.count_of(jobs.silent()),
        oldest_wait=stats.oldest_wait(jobs),
    )
    return Statement(lambda: measured.values_list(*MEASURED))
