"""What keeps the job list quick with a million jobs and ten thousand tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db.models import F, Q, QuerySet
from django.db.models.lookups import GreaterThanOrEqual, LessThanOrEqual
from django.http import HttpRequest

from tenant_slots.admin.bases import JobPaginator
from tenant_slots.models import ANY, ANY_OF_ALL, READY_AT, Stage, State

MOST_COUNTED = 10_000
"""Jobs that the list counts and pages through. Nobody pages further, and counting a million takes a while."""

OF_A_TENANT = ("tenant", "tenant_queue__exact", "tenant_queue__id__exact")
"""Parameters that leave the jobs of one tenant, or of one tenant queue."""

ReadBy = tuple[Any, tuple[str, ...]]
"""What an index is ordered by, and the columns of which that is the latest."""

WAITING_BY: ReadBy = (READY_AT, ("enqueued_at", "run_after"))
ENDED_BY: ReadBy = (F("ended_at"), ("ended_at",))


@dataclass(frozen=True)
class Reading:
    """An index that has the jobs of a page together and in its order, so that no more of them are read."""

    common: Q
    """What the condition of the index asks for."""
    first: Any
    """What it is ordered by."""
    columns: tuple[str, ...]
    """What that is the latest of."""
    next_first: bool = False
    is_small: bool = False
    """It has few jobs, and not in the order of the list."""

    @property
    def order(self) -> tuple[Any, ...]:
        if self.is_small:
            return self.sorted_by
        if self.columns == ("pk",):
            return ("-pk",)
        return (self.first.asc() if self.next_first else self.first.desc(), "-pk")

    @property
    def sorted_by(self) -> tuple[Any, ...]:
        """The same order, but by no index of keys: a million jobs would be read, in search of a few."""
        return ((F("pk") + 0).desc(),) if self.columns == ("pk",) else self.order

    def up_to(self, job: Any) -> Q:
        """The condition of the jobs that are not behind this one in the list."""
        times = [time for name in self.columns if (time := getattr(job, name)) is not None]
        if not times:
            return Q()
        return Q((LessThanOrEqual if self.next_first else GreaterThanOrEqual)(self.first, max(times)))


BY_KEY = Reading(Q(), F("pk"), ("pk",))
HOLDING = Reading(Q(stage=Stage.HOLDING), F("pk"), ("pk",), is_small=True)

OF_STATE: Mapping[str, Reading] = {
    State.SCHEDULED: Reading(Q(stage=Stage.SCHEDULED), F("run_after"), ("run_after",), next_first=True),
    State.WAITING: Reading(ANY_OF_ALL & Q(stage=Stage.WAITING), *WAITING_BY),
    State.QUEUED: HOLDING,
    State.RUNNING: HOLDING,
    State.FINISHED: Reading(Q(stage=Stage.ENDED), *ENDED_BY),
    State.FAILED: Reading(Q(has_failed=True), *ENDED_BY),
    State.CANCELED: Reading(Q(is_canceled=True), *ENDED_BY),
}
"""The latest ones first, by when they could start or ended, and of those that are scheduled the next ones."""

WAITING_OF_A_TENANT = Reading(ANY & Q(stage=Stage.WAITING), *WAITING_BY)


def reading_of(request: HttpRequest) -> Reading:
    """How the list reads the jobs that an address asks for."""
    state = request.GET.get("state__exact") or request.GET.get("state") or ""
    if state == State.WAITING and any(request.GET.get(name) for name in OF_A_TENANT):
        return WAITING_OF_A_TENANT
    return OF_STATE.get(state, BY_KEY)


class CappedPaginator(JobPaginator):
    """Counts no further than `MOST_COUNTED`, in the order of the list: it is that of an index."""

    object_list: QuerySet[Any]

    @cached_property
    def count(self) -> int:
        return self.object_list[:MOST_COUNTED].count()
