"""What ran, waited and ended of one tenant queue, minute by minute; of a longer period the minute with the most.

So a burst shows in a week too, where a look at one moment in two hours would miss it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from django.db.models import Case, Count, Exists, F, OuterRef, Q, Value, When
from django.db.models.functions import Greatest, Least
from django.db.models.lookups import LessThanOrEqual
from django.utils import timezone

from tenant_slots.conf import app_settings
from tenant_slots.db.clock import PeriodsAgo, ago
from tenant_slots.models import READY_AT, JobDependency, Stage, State, TenantQueue
from tenant_slots.stats.expressions import ran_lately

MINUTE = 60

EVENTS = STARTED, ENDED, FAILED, READY, GAVE_UP = range(5)
"""What happened to a job in a minute. It gave up when it was canceled while it waited."""


@dataclass(frozen=True)
class Levels:
    """Of each period, the oldest first, the last one up to now; None where nothing is known."""

    running: Sequence[int | None]
    """Jobs that ran at the end of a minute. One that was put back counts from its last start only."""
    waiting: Sequence[int | None]
    """Jobs that waited then: from when they could start to when they did, or were canceled without a start."""
    ended: Sequence[int | None]
    """Runs that ended in a minute."""
    failed: Sequence[int | None]


def most_by_period(row: TenantQueue, periods: int, seconds: int) -> Levels:
    """The most of each period. One query, whose answer has some lines a minute at most, however many jobs there were.

    Args:
        seconds: whole minutes.
    """
    together = seconds // MINUTE
    oldest = (periods + 1) * together - 1
    happened = _happened(row, oldest)
    known = _known_periods(row, periods, seconds)

    def most(values: Sequence[int]) -> list[int | None]:
        latest_first = [max(values[back * together : (back + 1) * together]) for back in range(known)]
        return _after_gap(latest_first, periods)

    return Levels(
        running=most(_levels(happened[STARTED], happened[ENDED] + happened[FAILED], oldest)),
        waiting=most(_levels(happened[READY], happened[STARTED] + happened[GAVE_UP], oldest)),
        ended=most([happened[ENDED][back] + happened[FAILED][back] for back in range(oldest + 1)]),
        failed=most([happened[FAILED][back] for back in range(oldest + 1)]),
    )


def highest_limits(row: TenantQueue, periods: int, seconds: int) -> list[int | None]:
    """The highest limit of each period, from the changes that the row keeps: what ran was never above it. No query."""
    now = timezone.now().timestamp()
    changes = [(max(0.0, now - moment) // seconds, int(before)) for moment, before in row.limit_history or ()]
    latest_first, limit = [], row.max_job
    for back in range(_periods_since_made(row, periods, seconds)):
        within = [before for period, before in changes if period == back]
        latest_first.append(max([limit, *within]))
        limit = within[0] if within else limit
    return _after_gap(latest_first, periods)


def _after_gap(latest_first: list[int], periods: int) -> list[int | None]:
    """In the order of time, after those of which nothing is known."""
    return [*[None] * (periods + 1 - len(latest_first)), *latest_first[::-1]]


def _happened(row: TenantQueue, oldest: int) -> Mapping[int, Counter[int]]:
    """How many jobs, by what happened and how many minutes ago. What is older counts as the oldest.

    Where a clock was set back nothing ends before it began: it would count as one less of the others that ran then.
    """
    seconds = (oldest + 1) * MINUTE
    ran, gave_up = ran_lately(row.jobs.all(), seconds).order_by(), _gave_up(row, seconds)
    ended = ran.filter(stage=Stage.ENDED)
    how_it_ended = Case(When(state=State.FAILED, then=Value(FAILED)), default=Value(ENDED))
    parts = [
        _by_minute(ran, Value(STARTED), "started_at"),
        _by_minute(ended, how_it_ended, Greatest("ended_at", "started_at")),
        _by_minute(ran, Value(READY), Least(READY_AT, "started_at")),
        _by_minute(row.jobs.waiting().order_by(), Value(READY), READY_AT),
        _by_minute(gave_up, Value(READY), READY_AT),
        _by_minute(gave_up, Value(GAVE_UP), "ended_at"),
    ]
    found: dict[int, Counter[int]] = {what: Counter() for what in EVENTS}
    for what, back, jobs in parts[0].union(*parts[1:], all=True):
        found[what][min(back, oldest)] += jobs
    return found


def _gave_up(row: TenantQueue, seconds: float) -> Any:
    """Canceled before they began, but not before they could: those that were scheduled have not waited."""
    canceled = row.jobs.filter(stage=Stage.ENDED, state=State.CANCELED, started_at=None, ended_at__gt=ago(seconds))
    waited_for_others = Q(run_after=None) & Exists(JobDependency.objects.filter(job=OuterRef("pk")))
    return canceled.filter(LessThanOrEqual(READY_AT, F("ended_at"))).exclude(waited_for_others).order_by()


def _by_minute(jobs: Any, what: Any, time: Any) -> Any:
    return jobs.values_list(what, PeriodsAgo(time, MINUTE)).annotate(jobs=Count("pk"))


def _levels(begun: Counter[int], over: Counter[int], oldest: int) -> list[int]:
    """How many at the end of each minute, the last one first: what had begun and was not over."""
    backwards = accumulate(begun[back] - over[back] for back in range(oldest, -1, -1))
    return [max(0, jobs) for jobs in backwards][::-1]


def _known_periods(row: TenantQueue, periods: int, seconds: int) -> int:
    """How many of the last ones: there was no tenant queue before it was made, and ended jobs are deleted."""
    return min(_periods_since_made(row, periods, seconds), math.ceil(app_settings.RETENTION / seconds))


def _periods_since_made(row: TenantQueue, periods: int, seconds: int) -> int:
    age: float = (timezone.now() - row.created_at).total_seconds()
    return max(1, math.ceil(min(age, (periods + 1) * seconds) / seconds))
