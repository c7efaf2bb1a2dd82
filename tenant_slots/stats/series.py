"""Figures over time: what ran and what the limit was, at moments so many seconds apart.

A series of so many periods has one point more than that, the oldest first, the last one now.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from django.db.models import Count, Q, Sum
from django.db.models.functions import Least
from django.utils import timezone

from tenant_slots.db.clock import PeriodsAgo
from tenant_slots.db.compiled import Statement
from tenant_slots.models import Kind, State
from tenant_slots.stats.expressions import OF_ATTEMPT_BEFORE, in_seconds, jobs_of_rows, ran_or_failed_lately
from tenant_slots.stats.worker_time import time_within

MINUTES = 60
"""What a row's little chart shows, a point a minute."""


class Ran(NamedTuple):
    running: tuple[int, ...]
    """Jobs that ran. One that was put back counts from its last start only, as its row keeps no other."""
    worker_seconds: float
    """For how long workers were busy with them."""
    failed: int
    """How many have failed, those too that never started."""


def ran(pks: Sequence[int], periods: int = MINUTES, seconds: int = 60) -> dict[int, Ran]:
    """What ran, by tenant queue. One query."""
    changes: dict[int, Counter[int]] = defaultdict(Counter)
    taken: dict[int, float] = defaultdict(float)
    failures: Counter[int] = Counter()
    for pk, started, ended, jobs, failed, time in _ran(periods, seconds).lists(pks=pks):
        # It ran at the moments from `started` periods ago to the last one before it ended: at none, if a clock was set
        # back so that it ended earlier.
        over = -1 if ended is None else ended
        if jobs and started > over:
            changes[pk][started] += jobs
            changes[pk][over] -= jobs
        taken[pk] += in_seconds(time) or 0.0
        failures[pk] += failed
    return {pk: Ran(_summed(changes[pk], periods), taken[pk], failures[pk]) for pk in pks}


def limits(
    max_job: int, history: Iterable[Sequence[float]] | None, periods: int = MINUTES, seconds: int = 60
) -> tuple[int, ...]:
    """The limit, from the changes that the row keeps. No query."""
    if not history:
        return (max_job,) * (periods + 1)
    now = timezone.now().timestamp()
    changes = [(now - moment, int(before)) for moment, before in history]
    moments = range(periods, -1, -1)
    return tuple(next((before for age, before in changes if age < moment * seconds), max_job) for moment in moments)


@functools.cache
def _ran(periods: int, seconds: int) -> Statement:
    jobs = ran_or_failed_lately(jobs_of_rows(), periods * seconds).order_by()
    # What started before is one group, or a tenant with many jobs that run for long has nearly one for each of them.
    started = Least(PeriodsAgo("started_at", seconds), periods)
    moments = jobs.values_list("tenant_queue_id", started, PeriodsAgo("ended_at", seconds))
    has_started = Q(started_at__isnull=False) & ~OF_ATTEMPT_BEFORE
    figures = {
        "jobs": Count("pk", filter=has_started),
        "failed": Count("pk", filter=Q(state=State.FAILED)),
        "time": Sum(time_within(periods * seconds), filter=has_started & Q(kind=Kind.JOB)),
    }
    return Statement(lambda: moments.annotate(**figures))


def _summed(changes: Mapping[int, int], periods: int) -> tuple[int, ...]:
    totals = accumulate(changes.get(moment, 0) for moment in range(periods, -1, -1))
    return tuple([max(0, jobs) for jobs in totals])
