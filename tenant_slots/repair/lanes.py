"""What was admitted for workers of an overflow queue that are gone gives its slots back.

Nobody else does so: they would stay taken until there is another worker, while the tenant's own queue has workers for
its other jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenant_slots import dispatch, fair_order, transitions
from tenant_slots.models import TenantJob
from tenant_slots.repair import findings
from tenant_slots.repair.one_row import unless_locked


def leave_without_workers(pks: Sequence[int]) -> None:
    """Of these jobs, those that are still admitted in a queue to which nobody listens."""
    jobs = TenantJob.objects.queued().filter(pk__in=pks).select_related("tenant_queue").defer(*findings.LARGE)
    listened: dict[str, bool] = {}
    for job in jobs.order_by("pk"):
        name = job.rq_queue_name
        if name not in listened:
            listened[name] = _listens(name)
        if not listened[name] and unless_locked(transitions.put_back, job):
            dispatch.remove(job)


def _listens(rq_queue: str) -> bool:
    """Nothing is known of a queue whose Redis does not answer."""
    try:
        return fair_order.listens(rq_queue)
    except dispatch.OUT_OF_REACH:
        return True
