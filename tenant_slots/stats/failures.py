"""Failed jobs by function and class of error. All but the jobs that are listed one by one comes from one index.

That index has failed jobs only, so that it does not matter how many have not failed. Still there may be very many: no
more than the latest `MOST_COUNTED` are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Max, Min, Q, Value
from django.db.models.functions import Coalesce

from tenant_slots.db.clock import ago
from tenant_slots.models import TenantJobQuerySet

MOST_COUNTED = 50_000

MOST_GROUPS = 100

TENANT_QUEUES_NAMED = 3
"""Of each group, those with the most of its jobs."""

PAIRS_READ = 1000
"""Groups with one tenant queue each, for that."""

OF_GROUP = ("task", "kind_of_error")


@dataclass(frozen=True)
class Asked:
    """Which failed jobs are wanted; texts that are empty ask for nothing."""

    seconds: float | None
    """How long ago at most; None for all."""
    task: str = ""
    """A part of it, as of the class of the error."""
    error: str = ""
    key: str = ""
    tenant_queues: tuple[int, ...] | None = None
    """None for all."""
    group: tuple[str, str] | None = None
    """Of one group alone: its task and its class of errors, as they are."""

    def of(self, jobs: TenantJobQuerySet) -> TenantJobQuerySet:
        found = jobs.filter(has_failed=True).annotate(kind_of_error=Coalesce("error_class", Value("")))
        if self.seconds is not None:
            found = found.filter(ended_at__gt=ago(self.seconds))
        if self.task:
            found = found.filter(task__icontains=self.task)
        if self.error:
            found = found.filter(kind_of_error__icontains=self.error)
        if self.key:
            found = found.filter(key=self.key)
        if self.tenant_queues is not None:
            found = found.filter(tenant_queue__in=self.tenant_queues)
        if self.group is not None:
            found = found.filter(task=self.group[0], kind_of_error=self.group[1])
        return found


@dataclass(frozen=True)
class Group:
    """Jobs of one function that failed with the same class of error."""

    task: str
    error_class: str
    """Empty for those that failed otherwise, as when their process died."""
    jobs: int
    tenant_queues: int
    first: datetime
    last: datetime
    most: tuple[tuple[int, int], ...]
    """The tenant queues with the most of them, and how many."""


def groups(failed: TenantJobQuerySet) -> tuple[list[Group], bool]:
    """The `MOST_GROUPS` largest ones, and whether there are more. Two queries."""
    figures = {"jobs": Count("*"), "first": Min("ended_at"), "last": Max("ended_at")}
    tenant_queues = Count("tenant_queue_id", distinct=True)
    counted = failed.order_by().values(*OF_GROUP).annotate(**figures, tenant_queues=tenant_queues)
    found = list(counted.order_by("-jobs", *OF_GROUP)[: MOST_GROUPS + 1])
    shown = found[:MOST_GROUPS]
    most = _most(failed)
    return [_made(group, most) for group in shown], len(found) > MOST_GROUPS


def _made(group: dict[str, Any], most: dict[tuple[str, str], list[tuple[int, int]]]) -> Group:
    of_group = group["task"], group.pop("kind_of_error")
    return Group(**group, error_class=of_group[1], most=tuple(most.get(of_group, ())))


def _most(failed: TenantJobQuerySet) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """The first ones of each group among the `PAIRS_READ` largest of all."""
    counted = failed.order_by().values_list(*OF_GROUP, "tenant_queue_id").annotate(jobs=Count("*"))
    most: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for task, error_class, tenant_queue, jobs in counted.order_by("-jobs", "tenant_queue_id")[:PAIRS_READ]:
        named = most.setdefault((task, error_class), [])
        if len(named) < TENANT_QUEUES_NAMED:
            named.append((tenant_queue, jobs))
    return most


def of_group(failed: TenantJobQuerySet, task: str, error_class: str) -> TenantJobQuerySet:
    """Those of one group that may run again."""
    without = Q(error_class="") | Q(error_class=None)
    return failed.filter(Q(error_class=error_class) if error_class else without, task=task).retryable()


def last_ones(failed: TenantJobQuerySet, number: int) -> list[int]:
    """The primary keys of the jobs that failed last."""
    return list(failed.order_by("-ended_at").values_list("pk", flat=True)[:number])
