"""A backlog that is full takes no more jobs: see `TenantQueue.max_waiting`."""

from __future__ import annotations

from tenant_slots import rates, rests
from tenant_slots.db import clock
from tenant_slots.exceptions import TenantQueueFull
from tenant_slots.models import ANY, TenantQueue


def require_room(tenant_queue: TenantQueue, jobs: int) -> None:
    """Raises TenantQueueFull unless so many more jobs may wait in the tenant's backlog.

    A job that finds a free slot does not wait. Nothing is locked: enqueues at the same moment may together pass the
    limit by their own number. The look at the backlog is one step in an index beyond the last allowed position. With
    `ANY` there is an index for it that is no dearer than that of the tenant's history, whose every job PostgreSQL would
    otherwise read after a burst that no ANALYZE has seen.
    """
    if tenant_queue.max_waiting is None:
        return
    last_position = tenant_queue.max_waiting + _may_start(tenant_queue) - jobs
    backlog = tenant_queue.jobs.waiting().filter(ANY)
    if last_position < 0 or backlog[last_position : last_position + 1].exists():
        raise TenantQueueFull(
            tenant=tenant_queue.tenant, queue=tenant_queue.queue, max_waiting=tenant_queue.max_waiting, jobs=jobs
        )


def _may_start(tenant_queue: TenantQueue) -> int:
    """How many jobs would wait for a worker alone: none in a rest, and no more than the rate allows."""
    free = tenant_queue.free
    if not free or (tenant_queue.rests_until is None and tenant_queue.rate_number is None):
        return free
    now = clock.now()
    if rests.seconds_left(tenant_queue, now):
        return 0
    bucket = rates.bucket(tenant_queue, now)
    return free if bucket is None else min(free, bucket.tokens)
