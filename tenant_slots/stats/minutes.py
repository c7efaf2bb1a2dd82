"""What the last periods brought, of one queue of RQ or of all: from the minutes that the sweeps have counted.

So a week costs the same whatever has become of the jobs, and however many there were.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import models
from django.db.models import Count, ExpressionWrapper, F, IntegerField, Max, Min, Q, Sum
from django.db.models.functions import Now

from tenant_slots.db.clock import MinuteOf, ago
from tenant_slots.db.compiled import Parameter, Statement
from tenant_slots.models import QueueMinute
from tenant_slots.models.queue_minute import ALL_QUEUES, COUNTS, DELAY_BOUNDS, DELAYS

QUEUE = Parameter("queue", models.CharField())
"""What the compiled statement is asked about."""

LEVELS = ("running", "runnable", "held_back")

ENDED = F("finished") + F("failed") + F("canceled")


@dataclass(frozen=True)
class Period:
    """Some minutes that were counted, one at least."""

    started: int
    finished: int
    failed: int
    canceled: int
    most_ended: int
    """In its busiest minute."""
    most_failed: int
    running: int | None
    """The most at the end of a minute, as with `runnable` and `held_back`. None where nobody has looked."""
    runnable: int | None
    held_back: int | None
    workers: int | None
    """The fewest."""
    delays: tuple[int, ...]
    """First starts by their delay, see `DELAY_BOUNDS`."""

    @property
    def ended(self) -> int:
        return self.finished + self.failed + self.canceled

    def start_delay(self, percent: int) -> float | None:
        return percentile(self.delays, percent)


def last_periods(queue: str, periods: int, seconds: int) -> list[Period | None]:
    """So many and one more, the oldest first; None for those in which no minute was counted. One query.

    Args:
        queue: of RQ, or `ALL_QUEUES`.
        seconds: whole minutes.
    """
    names = ("back", *_figures(QUEUE))
    rows = [dict(zip(names, row, strict=True)) for row in _last_periods(periods, seconds).lists(queue=queue)]
    found = {figures["back"]: _period(figures) for figures in rows}
    return [found.get(number) for number in range(periods, -1, -1)]


@functools.cache
def _last_periods(periods: int, seconds: int) -> Statement:
    back = (MinuteOf(Now()) - 1 - MinuteOf("minute")) / (seconds // 60)
    within = ago((periods + 2) * seconds), ago(0)  # an infinite time, of SQL from outside, is in no minute
    rows = QueueMinute.objects.filter(Q(queue=QUEUE) | Q(queue=ALL_QUEUES), minute__range=within)
    grouped = rows.order_by().values_list(ExpressionWrapper(back, output_field=IntegerField()))
    return Statement(lambda: grouped.annotate(**_figures(QUEUE)))


def percentile(delays: Sequence[int], percent: int) -> float | None:
    """In seconds, by nearest rank, evenly spread between the bounds; None where nothing has started."""
    rank = (sum(delays) * percent + 99) // 100
    for place, starts in enumerate(delays):
        if starts and rank <= starts:
            low = DELAY_BOUNDS[place - 1] if place else 0.0
            high = DELAY_BOUNDS[place] if place < len(DELAY_BOUNDS) else low
            return low + (high - low) * rank / starts
        rank -= starts
    return None


def added_up(periods: Sequence[Period | None]) -> Period:
    """All of them as one."""
    some = [period for period in periods if period]

    def known(name: str) -> list[Any]:
        return [value for period in some if (value := getattr(period, name)) is not None]

    figures: dict[str, Any] = {name: sum(known(name)) for name in COUNTS if name not in DELAYS}
    figures |= {name: max(known(name), default=0) for name in ("most_ended", "most_failed")}
    figures |= {name: max(known(name), default=None) for name in LEVELS}
    figures["workers"] = min(known("workers"), default=None)
    figures["delays"] = tuple(map(sum, zip(*known("delays"), strict=True))) or (0,) * len(DELAYS)
    return Period(**figures)


def _figures(queue: Parameter) -> dict[str, Any]:
    of_queue = Q(queue=queue)
    return {
        **{f"sum_{name}": Sum(name, filter=of_queue) for name in COUNTS},
        "most_ended": Max(ENDED, filter=of_queue),
        "most_failed": Max("failed", filter=of_queue),
        **{f"most_{name}": Max(name, filter=of_queue) for name in LEVELS},
        "fewest_workers": Min("workers", filter=of_queue),
        "looks": Count("running", filter=Q(queue=ALL_QUEUES)),
        "looks_of_queue": Count("running", filter=of_queue),
    }


def _period(figures: dict[str, Any]) -> Period:
    """A queue in which nothing happened has no row of that minute, where `ALL_QUEUES` has one."""
    sums = {name: figures[f"sum_{name}"] or 0 for name in COUNTS}
    looks = figures["looks"]
    levels: dict[str, Any] = {name: (figures[f"most_{name}"] or 0) if looks else None for name in LEVELS}
    return Period(
        **{name: sums[name] for name in COUNTS if name not in DELAYS},
        **levels,
        most_ended=figures["most_ended"] or 0,
        most_failed=figures["most_failed"] or 0,
        workers=0 if figures["looks_of_queue"] < looks else figures["fewest_workers"],
        delays=tuple(sums[name] for name in DELAYS),
    )
