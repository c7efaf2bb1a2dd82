"""Who has the slots of a tenant queue."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, When

from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.stats.expressions import UNLISTED

RUN_FIRST = (Case(When(state=State.RUNNING, then=F("started_at"))).asc(nulls_last=True), "pk")
"""One that is to run again has the start of its attempt before."""


class Held(NamedTuple):
    """Some jobs of a tenant queue that hold its slots."""

    holding: list[TenantJob]
    """Those that run first."""
    of_its_key: list[TenantJob]
    """With the concurrency key of the job that waits."""
    stale: list[TenantJob]
    """Running ones whose heartbeat is too old, the oldest first."""


NOBODY = Held([], [], [])


def running(row: TenantQueue) -> int:
    """How many of its slots are in use. A job that was admitted and has not begun holds one that nobody uses yet."""
    count: int = row.jobs.running().count()
    return count


def holding(row: TenantQueue, most: int) -> list[TenantJob]:
    """The jobs that hold a slot, those that run first; `is_stale` where the heartbeat is too old."""
    return list(_read(row).order_by(*RUN_FIRST)[:most])


def held(job: TenantJob, most: int) -> Held:
    """Who has the slots for which a job waits: so many jobs, or fewer, of each kind. One query."""
    row = job.tenant_queue
    of_its_key = row.jobs.holding().filter(key=job.key).order_by("pk")
    kinds = (row.jobs.holding().order_by(*RUN_FIRST), of_its_key, row.jobs.stale().order_by("beat_at"))
    is_one = (Q(pk__in=kind.values("pk")[:most]) for kind in kinds)
    found = list(_read(row).filter(functools.reduce(operator.or_, is_one)).order_by(*RUN_FIRST))
    in_order = sorted(found, key=lambda one: one.pk)
    stale = sorted((one for one in found if one.is_stale), key=lambda one: one.beat_at)
    return Held(found[:most], [one for one in in_order if one.key == job.key][:most], stale[:most])


def _read(row: TenantQueue) -> QuerySet[Any]:
    stale = Exists(TenantJob.objects.stale().filter(pk=OuterRef("pk")))
    return row.jobs.holding().defer(*UNLISTED).annotate(is_stale=stale)
