"""How fast a tenant queue's jobs come to their turn, by what has become of the last ones.

Not by its limit: below it, jobs wait for workers, and how many of these a tenant gets is seen only in what it got.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenant_slots.db import clock
from tenant_slots.db.clock import ago
from tenant_slots.models import ANY, READY_AT, TenantQueue
from tenant_slots.stats.expressions import first_ready

MOST_ENDS = 50
"""Jobs that are looked at, the latest ones: what was before them says less about now."""

WINDOW = timedelta(hours=1)
"""What ended before that says nothing."""

Interval = tuple[datetime, datetime]


@dataclass(frozen=True)
class Pace:
    ended: int
    """Jobs of the tenant queue that ended lately."""
    seconds: float
    """For how long it had something to run meanwhile: time in which it wanted nothing says nothing about its pace."""

    def seconds_for(self, jobs: int) -> float:
        """In which so many will start. As many end as start, while more wait."""
        return jobs * self.seconds / self.ended


def pace_of(row: TenantQueue, now: datetime | None = None) -> Pace | None:
    """None when none of its jobs has ended lately. Two queries, and one more unless `now` is given."""
    now = now or clock.now()
    wanted = list(_last_wanted(row))
    if not wanted:
        return None
    ended, since = len(wanted), now - WINDOW
    if ended == MOST_ENDS:  # what was wanted before the first of these ended, those before it were busy with
        ended, since = ended - 1, wanted[-1][1]
    (oldest,) = first_ready(row.jobs.waiting().filter(ANY))
    if oldest is not None:
        wanted.append((oldest, now))
    return Pace(ended, _covered(wanted, since))


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
