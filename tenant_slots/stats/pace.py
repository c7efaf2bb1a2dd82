"""How fast a tenant queue's jobs come to their turn, by what has become of the last ones.

Not by its limit: below it, jobs wait for workers, and how many of these a tenant gets is seen only in what it got.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenant_slots import rests
from tenant_slots.db import clock
from tenant_slots.db.clock import ago
from tenant_slots.models import ANY, READY_AT, TenantQueue
from tenant_slots.stats.expressions import first_ready

MOST_ENDS = 50
"""Jobs that are looked at, the latest ones: what was before them says less about now."""

WINDOW = timedelta(hours=1)
"""What ended before that says nothing."""

SETS_THE_PACE = ("limit", "paused", "rate", "share", "resting")
"""What is changed: what ended before that did so at another pace, or in spite of it."""

Interval = tuple[datetime, datetime]


@dataclass(frozen=True)
class Pace:
    ended: int
    """Jobs of the tenant queue that ended lately, and since it was last allowed more or less than before."""
    seconds: float
    """For how long it had something to run meanwhile: time in which it wanted nothing says nothing about its pace."""

    def seconds_for(self, jobs: int) -> float | None:
        """In which so many will start; None where nobody knows. As many end as start, while more wait."""
        return jobs * self.seconds / self.ended if self.ended else None


def pace_of(row: TenantQueue, now: datetime | None = None) -> Pace | None:
    """None when none of its jobs has ended lately. Three queries, and one more unless `now` is given."""
    now = now or clock.now()
    wanted = list(_last_wanted(row))
    if not wanted:
        return None
    since = max([now - WINDOW, *_let_go_again(row, now)])
    if len(wanted) == MOST_ENDS:  # what was wanted before the first of these ended, those before it were busy with
        since = max(since, wanted[-1][1])
    wanted = [(ready, end) for ready, end in wanted if end > since]
    ended = len(wanted)
    (oldest,) = first_ready(row.jobs.waiting().filter(ANY))
    if oldest is not None and not rests.seconds_left(row, now):  # it waits for the end of the rest, at no pace
        wanted.append((oldest, now))
    return Pace(ended, _covered(wanted, since))


def _let_go_again(row: TenantQueue, now: datetime) -> Iterable[datetime]:
    """When what it may do was changed last, and when its last rest was over."""
    changed = row.kept_changes.filter(what__in=SETS_THE_PACE).order_by("-pk").values_list("at", flat=True)
    return (at for at in (*changed[:1], row.rested_until, row.rests_until) if at is not None and at <= now)


def _last_wanted(row: TenantQueue) -> Iterable[Interval]:
    """From when each of the last jobs could have started to its end, the latest first."""
    ran = row.jobs.ended().filter(started_at__isnull=False, ended_at__gt=ago(WINDOW.total_seconds()))
    found: Iterable[Interval] = ran.order_by("-ended_at").values_list(READY_AT, "ended_at")[:MOST_ENDS]
    return found


def _covered(intervals: Iterable[Interval], since: datetime) -> float:
    """The seconds from `since` on that at least one of these covers."""
    seconds, reached = 0.0, since
    for begin, end in sorted(intervals):
        if end > reached:
            seconds += (end - max(begin, reached)).total_seconds()
            reached = end
    return seconds
