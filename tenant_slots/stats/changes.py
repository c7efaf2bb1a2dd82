"""The changes of tenant queues within a time: the latest ones, and those between two points of a chart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, F, Q, Value, Window
from django.db.models.functions import Greatest, RowNumber

from tenant_slots.db.clock import PeriodsAgo, ago
from tenant_slots.models import KeptChange
from tenant_slots.models.queue_minute import ALL_QUEUES


@dataclass
class Together:
    """The changes of one period."""

    number: int
    """However many are named."""
    named: list[KeptChange] = field(default_factory=list)
    """The latest one first."""


@dataclass(frozen=True)
class Changes:
    latest: list[KeptChange]
    """The last one first."""
    by_period: Mapping[int, Together]
    """By how many periods ago."""


def last_changes(queue: str, periods: int, seconds: int, most: int, most_named: int) -> Changes:
    """Those of so many periods. Two queries, however many changes there were.

    A change of ten thousand tenant queues at once leaves none of another queue or moment out.

    Args:
        queue: of RQ, or `ALL_QUEUES`.
        most: of the latest ones.
        most_named: of each period.
    """
    ranked = _ranked(queue, periods, seconds).filter(rank__lte=most_named)
    places = {pk: (period, number) for pk, period, number in ranked.values_list("pk", "period", "number")}
    latest = changes_within(queue, periods * seconds).order_by("-pk").values("pk")[:most]
    either = KeptChange.objects.filter(Q(pk__in=places) | Q(pk__in=latest))
    changes = list(either.select_related("tenant_queue").order_by("-pk"))
    by_period: dict[int, Together] = {}
    for change in changes:
        if change.pk in places:
            period, number = places[change.pk]
            by_period.setdefault(period, Together(number)).named.append(change)
    return Changes(changes[:most], by_period)


def _ranked(queue: str, periods: int, seconds: int) -> Any:
    """The changes with their `period`, their `rank` in it from the last one on, and how many it has: `number`."""
    period = Greatest(PeriodsAgo("at", seconds), Value(0))  # an infinite time, of SQL from outside, counts as now
    timed = changes_within(queue, periods * seconds).annotate(period=period)
    rank = Window(RowNumber(), partition_by=F("period"), order_by=F("pk").desc())
    return timed.annotate(rank=rank, number=Window(Count("pk"), partition_by=F("period")))


def changes_within(queue: str, seconds: int) -> Any:
    """Those whose queue it is are told before any are left out: another queue's many changes hide none of them."""
    changes = KeptChange.objects.filter(at__gt=ago(seconds))
    return changes if queue == ALL_QUEUES else changes.filter(tenant_queue__queue=queue)
