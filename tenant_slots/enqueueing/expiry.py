"""Jobs that have not begun in time are canceled: see ``expires=`` of ``@tenant_job``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tenant_slots import transitions
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.locks import locked
from tenant_slots.models import CONTENT, EXPIRED, State, TenantJob, TenantJobQuerySet

JOBS_PER_STEP = 1000
"""Most jobs that one transaction cancels, so that the tenant queue is not locked for long."""

WITH_SLOT_PER_STEP = 50
"""The same of those with a slot, each of which has a transaction of its own: whoever asks looks at the time between."""

Alone = Callable[..., bool | None]
"""Calls a function with the rest, and may keep what is wrong with the row of one job from the others'."""


def _at_once(change: Callable[..., bool], *given: Any) -> bool:
    return change(*given)


def cancel_expired(tenant_queue_id: int) -> int:
    """Cancel some of a tenant queue's jobs whose time is over; how many.

    Those with a slot come last: it goes to no job that is canceled next.

    Raises:
        TenantQueue.DoesNotExist, TenantQueueLocked: as `locked`.
    """
    pks = list(without_slot(tenant_queue_id).values_list("pk", flat=True)[:JOBS_PER_STEP])
    return cancel_these(tenant_queue_id, pks) or cancel_with_slot(tenant_queue_id)


def without_slot(tenant_queue_id: int) -> TenantJobQuerySet:
    """Its jobs whose time is over and that hold no slot."""
    return TenantJob.objects.expired().filter(tenant_queue=tenant_queue_id)


def cancel_these(tenant_queue_id: int, pks: Collection[int]) -> int:
    """Cancel those of these jobs that still are `without_slot`.

    Raises:
        TenantQueue.DoesNotExist, TenantQueueLocked: as `locked`.
    """
    with locked(tenant_queue_id) as row:
        expired = without_slot(tenant_queue_id).filter(pk__in=pks).select_for_update(no_key=True)
        jobs: list[TenantJob] = list(expired.defer(*CONTENT))
        ended = {"state": State.CANCELED, "ended_at": DatabaseNow(), "error": EXPIRED}
        TenantJob.objects.filter(pk__in=[job.pk for job in jobs]).update(**ended)
    for job in jobs:
        job.tenant_queue = row
    transitions.left(jobs, State.CANCELED, EXPIRED)
    return len(jobs)


def cancel_with_slot(tenant_queue_id: int, alone: Alone = _at_once) -> int:
    """Cancel some of a tenant queue's jobs that hold a slot. One that a worker takes meanwhile is canceled there.

    Args:
        tenant_queue_id: whose.
        alone: what each of them is canceled by.
    """
    expired = TenantJob.objects.expired_with_slot().filter(tenant_queue=tenant_queue_id)
    jobs = list(expired.select_related("tenant_queue").defer(*CONTENT)[:WITH_SLOT_PER_STEP])
    return sum(bool(alone(transitions.cancel_unstarted, job, EXPIRED)) for job in jobs)
