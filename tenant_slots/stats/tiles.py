"""All tenant queues together."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any

from django.db.models import Count, F, IntegerField, Max, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from tenant_slots.conf import app_settings
from tenant_slots.db.compiled import Statement
from tenant_slots.models import ANY, ANY_OF_ALL, TenantJob, TenantJobQuerySet, TenantQueue
from tenant_slots.stats.expressions import count_of, in_seconds, jobs_of_row, oldest_wait


@dataclass(frozen=True)
class Tiles:
    """Sums over tenant queues. Times are in seconds; None where nothing waits."""

    running: int
    """Jobs only, each of which keeps a worker busy; a reservation takes none."""
    waiting: int
    oldest_wait: float | None
    at_limit: int
    stale: int


SUMMED = [field.name for field in fields(Tiles)]


class CountInOneProcess(Subquery):
    """A count that PostgreSQL does not share out: to start parallel workers takes longer than to count 200,000 rows.

    It is the LIMIT that keeps it from that. No table has so many rows.
    """

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted)"

    def __init__(self, jobs: TenantJobQuerySet) -> None:
        super().__init__(jobs.order_by().values(one=Value(1))[: 2**62], output_field=IntegerField())


def added_up(queues: QuerySet[TenantQueue] | None = None) -> Tiles:
    """Of all tenant queues, or of these. One query."""
    if queues is None:
        found = dict(zip(SUMMED, _compiled_sums(app_settings.LEASE_TTL).lists()[0], strict=True))
    else:
        jobs = TenantJob.objects.filter(tenant_queue__in=queues.order_by().values("pk"))
        found = queues.order_by().aggregate(**_sums(jobs, jobs_of_row(), ANY))
    return Tiles(**{**found, "oldest_wait": in_seconds(found["oldest_wait"])})


def sums_of_all() -> QuerySet[Any]:
    """One row with the values of `SUMMED`. The constant makes all tenant queues one group."""
    jobs = TenantJob.objects.all()
    sums = TenantQueue.objects.order_by().values(all=Value(1)).annotate(**_sums(jobs, jobs, ANY_OF_ALL))
    return sums.values_list(*SUMMED)


@functools.cache
def _compiled_sums(lease_ttl: float) -> Statement:
    """One for each ``LEASE_TTL``, which is a part of it."""
    return Statement(sums_of_all)


def _sums(jobs: Any, oldest_among: Any, whose: Q) -> dict[str, Any]:
    """What the tiles add up.

    Args:
        jobs: those of the rows.
        oldest_among: where to look for the one that waits longest: among all it is the first of an index; among those
            of some rows it is looked for row by row.
        whose: what the index of these has in its condition.
    """
    # Max, because what does not depend on the row has one answer for all; the database asks for it once.
    return {
        "running": Coalesce(Max(count_of(jobs.running().jobs())), 0),
        "at_limit": Count("pk", filter=Q(current_job__gte=F("max_job"), current_job__gt=0)),
        "waiting": Coalesce(Max(CountInOneProcess(jobs.waiting().filter(whose))), 0),
        "stale": Coalesce(Max(count_of(jobs.stale())), 0),
        "oldest_wait": Max(oldest_wait(oldest_among, whose)),
    }
