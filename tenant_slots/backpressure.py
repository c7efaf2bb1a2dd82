"""A line that is full takes nobody more: see `TenantQueue.max_waiting`."""

from __future__ import annotations

from tenant_slots.exceptions import TenantQueueFull
from tenant_slots.models import TenantQueue


def require_room(tenant_queue: TenantQueue, jobs: int) -> None:
    """Raises TenantQueueFull unless so many more jobs may stand in the tenant's line.

    Whoever finds a free slot does not stand there. Nothing is locked: enqueues at the same moment may together pass the
    limit by their own number. The look at the line is one step in its index beyond the last allowed place.
    """
    if tenant_queue.max_waiting is None:
        return
    last_place = tenant_queue.max_waiting + tenant_queue.free - jobs
    if last_place < 0 or tenant_queue.jobs.waiting()[last_place : last_place + 1].exists():
        raise TenantQueueFull(
            tenant=tenant_queue.tenant, queue=tenant_queue.queue, max_waiting=tenant_queue.max_waiting, jobs=jobs
        )
