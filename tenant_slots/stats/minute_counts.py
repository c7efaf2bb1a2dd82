"""What happened in some minutes, and what is now, by queue of RQ: what a `QueueMinute` is made of.

Of jobs only: a reservation takes no worker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any

from django.db.models import Case, Count, DurationField, F, IntegerField, Q, Sum, Value, When

from tenant_slots import rates, rests
from tenant_slots.db.clock import MinuteOf, start_of
from tenant_slots.models import State, TenantJob, TenantQueue, rq_queue_of
from tenant_slots.models.queue_minute import DELAY_BOUNDS, DELAYS, RUN_BOUNDS, RUNS
from tenant_slots.stats.expressions import in_seconds, run_time, start_delay
from tenant_slots.stats.key_limits import jobs_below_key_limit, lanes_apart

Counts = Mapping[tuple[int, str], Counter[str]]
"""By minute and queue of RQ, how many by column."""

LONGEST = timedelta(days=366)
"""The most that a row is believed. A sum of times that SQL from outside has put out of the calendar is no time."""

QUEUE_OF_JOB = ("rq_queue", "tenant_queue__queue")


def counts_of(first: int, end: int) -> Counts:
    """Of the minutes from `first` to before `end`. Three queries, that read what has ended since the first of them."""
    found: defaultdict[tuple[int, str], Counter[str]] = defaultdict(Counter)
    for minute, rq_queue, queue, state, run, jobs, time in ends(first, end):
        counts = found[minute, rq_queue_of(rq_queue, queue)]
        counts[state] += jobs
        if run is not None:
            counts[RUNS[run]] += jobs
            counts["run_ms"] += _milliseconds(time)
    for minute, rq_queue, queue, delay, jobs, time in chain(*starts(first, end)):
        counts = found[minute, rq_queue_of(rq_queue, queue)]
        counts["started"] += jobs
        if delay is not None:
            counts[DELAYS[delay]] += jobs
            counts["delay_ms"] += _milliseconds(time)
    return found


def gauges() -> dict[str, Counter[str]]:
    """By queue of RQ: how many jobs run, could run, and are held back. Three queries.

    As many could run of a tenant queue as it has slots free and its limit per concurrency key allows, unless it is
    paused or rests, or its rate is used up.
    """
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    running = TenantJob.objects.running().jobs().order_by().values_list(*QUEUE_OF_JOB)
    for rq_queue, queue, jobs in running.annotate(jobs=Count("pk")):
        found[rq_queue_of(rq_queue, queue)]["running"] += jobs
    waiting = TenantJob.objects.waiting().jobs().order_by().values_list("tenant_queue_id", "rq_queue")
    by_lane = list(waiting.annotate(jobs=Count("pk")))
    lanes = lanes_apart(rq_queue for _, rq_queue, _ in by_lane)
    (free, of_lane), names = _free_slots(lanes), dict(TenantQueue.objects.order_by().values_list("pk", "queue"))
    for row, rq_queue, jobs in by_lane:
        runnable = min(jobs, free.get(row, 0), of_lane.get((row, rq_queue), jobs))
        free[row] = free.get(row, 0) - runnable
        counts = found[rq_queue_of(rq_queue, names.get(row, ""))]
        counts["runnable"] += runnable
        counts["held_back"] += jobs - runnable
    return found


def _free_slots(lanes: list[str]) -> tuple[dict[int, int], dict[tuple[int, str], int]]:
    """Of each row, and what its limit per concurrency key allows of that in each of these RQ queues."""
    rows = TenantQueue.objects.filter(rates.allows(1), rests.is_over()).with_free(1).order_by()
    found = rows.values_list("pk", F("max_job") - F("current_job"), *map(jobs_below_key_limit, [None, *lanes]))
    free: dict[int, int] = {}
    of_lane: dict[tuple[int, str], int] = {}
    for pk, slots, below, *below_in_lanes in found:
        free[pk] = slots if below is None else min(slots, below)
        by_lane = zip(lanes, below_in_lanes, strict=True)
        of_lane |= {(pk, lane): below for lane, below in by_lane if below is not None}
    return free, of_lane


def ends(first: int, end: int) -> Any:
    """By minute, queue, state and the place of their run time in `RUNS`, None for a job that was canceled."""
    ended = TenantJob.objects.ended().jobs().filter(ended_at__gte=start_of(first), ended_at__lt=start_of(end))
    by = (
        ended.order_by()
        .annotate(run=run_time())
        .values_list(MinuteOf("ended_at"), *QUEUE_OF_JOB, "state", _place_of_run())
    )
    return by.annotate(jobs=Count("pk"), time=Sum(_believed("run")))


def starts(first: int, end: int) -> list[Any]:
    """By minute, queue and the place of their delay in `DELAYS`, None for a job that had started before.

    One of what runs, and one of what has ended since: no index has the times of starts.
    """
    within = Q(started_at__gte=start_of(first), started_at__lt=start_of(end))
    running, ended = TenantJob.objects.running(), TenantJob.objects.ended().filter(ended_at__gte=start_of(first))
    return [
        jobs.jobs()
        .filter(within)
        .order_by()
        .annotate(delay=start_delay())
        .values_list(MinuteOf("started_at"), *QUEUE_OF_JOB, _place_of_delay())
        .annotate(jobs=Count("pk"), time=Sum(_believed("delay")))
        for jobs in (running, ended)
    ]


def _place_of_delay() -> Any:
    again = When(~Q(attempt=1), then=Value(None))
    return _place(again, "delay", DELAY_BOUNDS)


def _place_of_run() -> Any:
    never_ran_to_its_end = When(Q(started_at=None) | Q(state=State.CANCELED), then=Value(None))
    return _place(never_ran_to_its_end, "run", RUN_BOUNDS)


def _place(left_out: When, time: str, bounds: Sequence[float]) -> Any:
    places = [
        When(**{f"{time}__lte": timedelta(seconds=bound)}, then=Value(place)) for place, bound in enumerate(bounds)
    ]
    return Case(left_out, *places, default=Value(len(bounds)), output_field=IntegerField())


def _believed(time: str) -> Any:
    too_short = When(**{f"{time}__lt": timedelta(0)}, then=Value(timedelta(0)))
    too_long = When(**{f"{time}__gt": LONGEST}, then=Value(LONGEST))
    return Case(too_short, too_long, default=F(time), output_field=DurationField())


def _milliseconds(time: timedelta | None) -> int:
    """Of times that two clocks have made none is negative."""
    return round(1000 * (in_seconds(time) or 0.0))
