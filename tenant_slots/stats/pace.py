"""How fast a tenant queue's jobs come to their turn, by what has become of the last ones.

Not by its limit: below it, jobs wait for workers, and how many of these a tenant gets is seen only in what it got.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from django.db.models import Subquery

from tenant_slots import rests
from tenant_slots.db import clock
from tenant_slots.models import ANY, READY_AT, TenantQueue
from tenant_slots.models.fields import Moment
from tenant_slots.stats.expressions import first_ready, ran_lately

MOST_ENDS = 50
"""Jobs that are looked at, the latest ones: what was before them says less about now."""

WINDOW = timedelta(hours=1)
"""What ended before that says nothing."""

SETS_THE_PACE = ("limit", "max_job_per_key", "paused", "rate", "share", "resting")
"""What is changed: what ended before that did so at another pace, or in spite of it."""

DEVIATIONS = 1.28
"""Of a normal distribution, to both sides of its mean: eight of ten values are nearer."""

Interval = tuple[datetime, datetime]
Wanted = tuple[datetime, datetime, datetime | None, datetime | None]


@dataclass(frozen=True)
class Pace:
    ended: int
    """Jobs of the tenant queue that ended lately, and since it was last allowed more or less than before."""
    seconds: float
    """For how long it had something to run meanwhile: time in which it wanted nothing says nothing about its pace."""
    deviation: float
    """Seconds by which the times from one end to the next differ from their mean: how evenly they came."""

    def seconds_for(self, jobs: int) -> tuple[float, float] | None:
        """The fewest and the most in which so many will start, as a rule; None where nobody knows.

        As many end as start, while more wait. The fewer have ended, and the less evenly, the wider it is: so many more
        times differ by themselves, and their mean is as uncertain as that of those that were seen.
        """
        if not self.ended:
            return None
        expected = jobs * self.seconds / self.ended
        differs = self.deviation * math.sqrt(jobs + jobs**2 / self.ended)
        factor = math.exp(DEVIATIONS * math.sqrt(math.log1p((differs / expected) ** 2))) if expected else 1.0
        return expected / factor, expected * factor


def pace_of(row: TenantQueue, now: datetime | None = None, rq_queue: str | None = None) -> Pace | None:
    """None when none of its jobs has ended lately. One query, and one more unless `now` is given.

    Args:
        row: of which tenant queue.
        now: by the database's clock.
        rq_queue: as jobs' rows have it, whose workers come to its jobs at a pace of their own. None for all together.
    """
    now = now or clock.now()
    found = list(_last_wanted(row, rq_queue))
    if not found:
        return None
    wanted: list[Interval] = [(ready, end) for ready, end, _, _ in found]
    _, _, oldest, changed = found[0]
    since = max([now - WINDOW, *_let_go_again(row, changed, now)])
    if len(wanted) == MOST_ENDS:  # what was wanted before the first of these ended, those before it were busy with
        since = max(since, wanted[-1][1])
    wanted = [(ready, end) for ready, end in wanted if end > since]
    ends = sorted(end for _, end in wanted)
    if oldest is not None and not rests.seconds_left(row, now):  # it waits for the end of the rest, at no pace
        wanted.append((oldest, now))
    seconds = _covered(wanted, since, now)
    between = [after - before for before, after in pairwise([0.0, *(_covered(wanted, since, end) for end in ends)])]
    return Pace(len(ends), seconds, _deviation(between, seconds))


def _let_go_again(row: TenantQueue, changed: datetime | None, now: datetime) -> Iterable[datetime]:
    """When what it may do was changed last, and when its last rest was over."""
    return (at for at in (changed, row.rested_until, row.rests_until) if at is not None and at <= now)


def _last_wanted(row: TenantQueue, rq_queue: str | None) -> Iterable[Wanted]:
    """From when each of the last jobs could have started to its end, the latest first.

    With each, as they are read together: from when the first of those that wait could have started, and when what the
    tenant queue may do was changed last.
    """
    jobs = row.jobs.all() if rq_queue is None else row.jobs.filter(rq_queue=rq_queue)
    oldest = Subquery(first_ready(jobs.waiting().filter(ANY)), output_field=Moment())
    changed = row.kept_changes.filter(what__in=SETS_THE_PACE).order_by("-pk").values("at")[:1]
    ran = ran_lately(jobs.ended(), WINDOW.total_seconds())
    found = ran.order_by("-ended_at").values_list(READY_AT, "ended_at", oldest, Subquery(changed))
    latest: Iterable[Wanted] = found[:MOST_ENDS]
    return latest


def _covered(intervals: Iterable[Interval], since: datetime, until: datetime) -> float:
    """The seconds between these moments that at least one of the intervals covers."""
    seconds, reached = 0.0, since
    for begin, end in sorted(intervals):
        begin, end = max(begin, reached), min(end, until)
        if end > begin:
            seconds += (end - begin).total_seconds()
            reached = end
    return seconds


def _deviation(between: Sequence[float], seconds: float) -> float:
    """As if there had been one more that was off by all of the mean: a few that are alike may be so by chance."""
    if not between:
        return 0.0
    mean = seconds / len(between)
    return math.sqrt((sum((one - mean) ** 2 for one in between) + mean**2) / len(between))
