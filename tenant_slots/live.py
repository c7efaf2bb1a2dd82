"""What the live pages show of some tenant queues at one moment: numbers only, texts are the admin's."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
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
from tenant_slots.models import ENDED, READY_AT, State, TenantJob, TenantQueue
from tenant_slots.time_buckets import PeriodsAgo, ago

MINUTES = 60
"""What a row's little chart shows, a point a minute."""

DELAY_WINDOW = 15 * 60
"""Seconds of starts that the start delay is measured over."""


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


def rows(pks: Sequence[int]) -> dict[int, Row]:
    """These tenant queues by primary key. Three queries, however many rows."""
    found = {row["pk"]: row for row in _measured(TenantQueue.objects.filter(pk__in=pks))}
    delays, running = start_delays(pks), activity(pks)
    for pk, row in found.items():
        row["start_delay"] = delays.get(pk)
        row["activity"] = running[pk]
        row["limits"] = limits_back(row["max_job"], row["limit_history"])
    return {pk: Row(**row) for pk, row in found.items()}


def tiles(queues: QuerySet[TenantQueue] | None = None) -> Tiles:
    """All tenant queues together, or these ones. One query."""
    limited = ~Q(tenant="")
    jobs = TenantJob.objects.all()
    if queues is None:
        queues = TenantQueue.objects.all()
    else:
        jobs = jobs.filter(tenant_queue__in=queues.order_by().values("pk"))
    # Max, because `waiting` and `stale` have one answer for all rows; the database asks for it once.
    found = queues.order_by().aggregate(
        in_use=Coalesce(Sum("current_job", filter=limited), 0),
        capacity=Coalesce(Sum("max_job", filter=limited & Q(paused=False)), 0),
        at_limit=Count("pk", filter=Q(current_job__gte=F("max_job"), current_job__gt=0)),
        waiting=Coalesce(Max(stats.count_of(jobs.waiting())), 0),
        stale=Coalesce(Max(stats.count_of(jobs.silent())), 0),
        oldest_wait=Max(stats.oldest_wait(stats.jobs_of_row())),
    )
    return Tiles(
        **{**found, "oldest_wait": stats.seconds(found["oldest_wait"])},
        workers=dispatch.workers_alive(),
    )


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
    started = lately(pks, DELAY_WINDOW).filter(attempt=1, started_at__gt=ago(DELAY_WINDOW))
    rank = Window(RowNumber(), partition_by=F("tenant_queue_id"), order_by=F("delay").asc())
    count = Window(Count("pk"), partition_by=F("tenant_queue_id"))
    ranked = started.annotate(delay=delay(), rank=rank, count=count)
    chosen = ranked.filter(rank=nearest_rank(percent))
    return {pk: stats.seconds(time) or 0.0 for pk, time in chosen.values_list("tenant_queue_id", "delay")}


def delay() -> Any:
    """From when a job could start to when it did."""
    return ExpressionWrapper(F("started_at") - READY_AT, output_field=DurationField())


def nearest_rank(percent: int) -> Any:
    """The rank of a percentile among `count` values: rounded up, in whole numbers as databases divide them."""
    return ExpressionWrapper((F("count") * percent + 99) / 100, output_field=IntegerField())


def lately(pks: Sequence[int], seconds: float) -> Any:
    """Jobs that ran within the last `seconds`: running ones, and ended ones by the index of their row."""
    ended = Q(state__in=ENDED, ended_at__gt=ago(seconds))
    return TenantJob.objects.filter(Q(state=State.RUNNING) | ended, tenant_queue__in=pks, started_at__isnull=False)


def activity(pks: Sequence[int], periods: int = MINUTES, seconds: int = 60) -> dict[int, tuple[int, ...]]:
    """Jobs that ran at moments `seconds` apart, the oldest first. One query.

    A job that was put back counts from its last start only, as its row keeps no other.
    """
    counted = (
        lately(pks, periods * seconds)
        .order_by()
        .values_list("tenant_queue_id", PeriodsAgo("started_at", seconds), PeriodsAgo("ended_at", seconds))
        .annotate(jobs=Count("pk"))
    )
    changes: dict[int, Counter[int]] = defaultdict(Counter)
    for pk, started, ended, jobs in counted:
        # It ran at the moments from `started` periods ago to the last one before it ended.
        changes[pk][min(started, periods)] += jobs
        changes[pk][-1 if ended is None else ended] -= jobs
    return {pk: _summed(changes[pk], periods) for pk in pks}


def limits_back(
    max_job: int, history: Iterable[Sequence[float]] | None, periods: int = MINUTES, seconds: int = 60
) -> tuple[int, ...]:
    """The limit at the moments of `activity`, from the changes that the row keeps."""
    now = timezone.now().timestamp()
    changes = [(now - moment, int(before)) for moment, before in history or ()]
    moments = range(periods, -1, -1)
    return tuple(next((before for age, before in changes if age < moment * seconds), max_job) for moment in moments)


def _summed(changes: Mapping[int, int], periods: int) -> tuple[int, ...]:
    running, points = 0, []
    for moment in range(periods, -1, -1):
        running += changes.get(moment, 0)
        points.append(max(0, running))
    return tuple(points)


def _measured(queues: QuerySet[Any]) -> list[dict[str, Any]]:
    jobs = stats.jobs_of_row()
    measured = with_state(stats.with_waiting(queues)).annotate(
        running=stats.count_of(jobs.running()),
        queued=stats.count_of(jobs.queued()),
        failed=stats.count_of(jobs.filter(state=State.FAILED, ended_at__gt=ago(3600)).ended()),
        stale=stats.count_of(jobs.silent()),
        oldest_wait=stats.oldest_wait(jobs),
    )
    names = [field.name for field in fields(Row) if field.name not in ("start_delay", "activity", "limits")]
    return [{**row, "oldest_wait": stats.seconds(row["oldest_wait"])} for row in measured.values(*names)]
