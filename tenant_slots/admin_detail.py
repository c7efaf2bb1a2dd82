"""The page of one tenant queue: charts, who holds the slots, who is next, what was changed; and why a job waits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Count, F, Q, Window
from django.db.models.functions import RowNumber
from django.utils import formats, timezone
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from tenant_slots import dispatch, live, stats
from tenant_slots.admin_cells import duration
from tenant_slots.charts import Chart, Series
from tenant_slots.models import READY_AT, State, TenantJob, TenantQueue
from tenant_slots.time_buckets import PeriodsAgo, ago

SHOWN_IN_LINE = 50
SHOWN_HOLDERS = 100
HOLDERS_NAMED = 5


@dataclass(frozen=True)
class Span:
    """A time that the charts may show: so many points, so many seconds apart."""

    key: str
    name: Any
    periods: int
    seconds: int


SPANS = {
    span.key: span
    for span in (
        Span("1h", _("1 hour"), 60, 60),
        Span("24h", _("24 hours"), 96, 900),
        Span("7d", _("7 days"), 84, 7200),
    )
}


def charts_of(row: TenantQueue, span: Span) -> list[Chart]:
    """Four queries, however many jobs: what ran, what waited and waits, how long."""
    moments = moments_of(span)
    ran = live.activity([row.pk], span.periods, span.seconds)[row.pk]
    limits = live.limits_back(row.max_job, row.limit_history, span.periods, span.seconds)
    delays = delays_of(row, span)
    return [
        Chart(
            gettext("Running, waiting and limit"),
            moments,
            [
                Series(gettext("running"), "slots-ran", ran),
                Series(gettext("waiting"), "slots-waiting", waited(row, span)),
                Series(gettext("limit"), "slots-limit", limits, stepped=True),
            ],
        ),
        Chart(
            gettext("Start delay"),
            moments,
            [
                Series(gettext("p50, seconds"), "slots-p50", delays[50]),
                Series(gettext("p95, seconds"), "slots-p95", delays[95]),
            ],
            unit="s",
        ),
    ]


def moments_of(span: Span) -> list[str]:
    now = timezone.localtime()
    style = "TIME_FORMAT" if span.periods * span.seconds <= 24 * 3600 else "SHORT_DATETIME_FORMAT"
    return [
        formats.date_format(now - timedelta(seconds=back * span.seconds), style) for back in range(span.periods, -1, -1)
    ]


def waited(row: TenantQueue, span: Span) -> list[int]:
    """Jobs that waited at each moment: from when they could start to when they did, or ended without."""
    back = span.periods * span.seconds
    left = (
        live.lately([row.pk], back)
        .order_by()
        .values_list(PeriodsAgo(READY_AT, span.seconds), PeriodsAgo("started_at", span.seconds))
    )
    changes: dict[int, int] = {}
    for ready, started, jobs in left.annotate(jobs=Count("pk")):
        _add(changes, min(ready, span.periods), jobs)
        _add(changes, min(started, span.periods), -jobs)
    waiting = row.jobs.waiting().order_by().values_list(PeriodsAgo(READY_AT, span.seconds))
    for ready, jobs in waiting.annotate(jobs=Count("pk")):
        _add(changes, min(ready, span.periods), jobs)
    count, points = 0, []
    for moment in range(span.periods, -1, -1):
        count += changes.get(moment, 0)
        points.append(max(0, count))
    return points


def delays_of(row: TenantQueue, span: Span) -> dict[int, list[float | None]]:
    """The p50 and p95 of the start delays of each period, nearest rank, in seconds. One query."""
    back = span.periods * span.seconds
    period = PeriodsAgo("started_at", span.seconds)
    started = live.lately([row.pk], back).filter(attempt=1, started_at__gt=ago(back)).annotate(period=period)
    ranked = started.annotate(
        delay=live.delay(),
        rank=Window(RowNumber(), partition_by=F("period"), order_by=F("delay").asc()),
        count=Window(Count("pk"), partition_by=F("period")),
    )
    chosen = ranked.filter(Q(rank=live.nearest_rank(50)) | Q(rank=live.nearest_rank(95)))
    found: dict[int, list[float]] = {}
    for moment, _rank, delay in chosen.order_by("period", "rank").values_list("period", "rank", "delay"):
        found.setdefault(moment, []).append(round(stats.seconds(delay) or 0.0, 3))
    moments = range(span.periods, -1, -1)
    # Of one job both are the same row.
    return {
        50: [found[moment][0] if moment in found else None for moment in moments],
        95: [found[moment][-1] if moment in found else None for moment in moments],
    }


def holders_of(row: TenantQueue) -> list[tuple[TenantJob, bool]]:
    """The jobs that hold the row's slots, those that run first, each with whether its lease has run out."""
    jobs = row.jobs.holding().defer("args", "kwargs", "options", "result", "error")
    held = list(jobs.order_by(F("started_at").asc(nulls_last=True), "pk")[:SHOWN_HOLDERS])
    silent = set(row.jobs.silent().values_list("pk", flat=True))
    return [(job, job.pk in silent) for job in held]


def line_of(row: TenantQueue) -> list[tuple[int, TenantJob]]:
    """Position and job of the first in line."""
    line = row.jobs.in_line().defer("args", "kwargs", "options", "result", "error")
    return list(enumerate(line[:SHOWN_IN_LINE], start=1))


def why_waiting(job: TenantJob) -> list[str]:
    """Why a job does not run yet, in sentences; none when it runs or has ended."""
    row = job.tenant_queue
    if job.state == State.SCHEDULED and job.run_after is not None:
        time = formats.date_format(timezone.localtime(job.run_after), "DATETIME_FORMAT")
        return [
            gettext("It joins the line at %(time)s: that is what was asked for, or its next retry.") % {"time": time}
        ]
    if job.state == State.QUEUED:
        return _why_queued(job.rq_queue_name)
    position = stats.position_in_line(job)
    if position is None:
        return []
    return [
        gettext("It is number %(position)d in the line of %(row)s.") % {"position": position, "row": row},
        *_what_is_ahead(row),
        _estimate(row, position),
    ]


def _why_queued(queue: str) -> list[str]:
    workers = dispatch.workers_listening(queue)
    if workers is None:
        return [gettext("It has a slot, but Redis cannot be asked; the sweep hands it to a worker when it answers.")]
    if not workers:
        text = gettext(
            "It has a slot, but no worker of queue %(queue)s is alive. Start one: manage.py rqworker %(queue)s."
        )
        return [text % {"queue": queue}]
    text = ngettext(
        "It has a slot and waits for a worker to be free; %(count)d is alive.",
        "It has a slot and waits for a worker to be free; %(count)d are alive.",
        workers,
    )
    return [text % {"count": workers}]


def _what_is_ahead(row: TenantQueue) -> list[str]:
    if row.paused:
        if row.resume_at is None:
            return [gettext("The tenant is paused: no job starts until somebody resumes it.")]
        time = formats.date_format(timezone.localtime(row.resume_at), "DATETIME_FORMAT")
        return [gettext("The tenant is paused until %(time)s.") % {"time": time}]
    if not row.max_job:
        return [gettext("The limit is 0: no job starts until it is raised.")]
    return [
        gettext("%(used)d of %(limit)d slots are in use.") % {"used": row.current_job, "limit": row.max_job},
        *_who_holds_them(row),
        gettext("It starts when those before it have started and a slot is free."),
    ]


def _who_holds_them(row: TenantQueue) -> list[str]:
    names = [f"{job} ({job.worker})" if job.worker else str(job) for job, _ in holders_of(row)[:HOLDERS_NAMED]]
    return [gettext("They are held by: %(jobs)s.") % {"jobs": ", ".join(names)}] if names else []


def _estimate(row: TenantQueue, position: int) -> str:
    """By the rate of the last 15 minutes: no job's length is known before it has run."""
    if row.paused or not row.max_job:
        return gettext("Nobody can say when it starts.")
    started = live.lately([row.pk], live.DELAY_WINDOW).filter(started_at__gt=ago(live.DELAY_WINDOW)).count()
    if not started:
        return gettext("There is no estimate: no job of this tenant has started in the last 15 minutes.")
    return gettext(
        "It starts in about %(time)s. This is estimated: %(started)d jobs started in the last 15 minutes, "
        "and with it %(position)d are to start."
    ) % {"time": duration(position * live.DELAY_WINDOW / started), "started": started, "position": position}


def _add(changes: dict[int, int], moment: int, jobs: int) -> None:
    changes[moment] = changes.get(moment, 0) + jobs
