"""What was admitted in a queue to which nobody listens by now gives its slot back where workers elsewhere could use it.

Nobody else does so: it would stay taken until there is another worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenant_slots import dispatch, transitions
from tenant_slots.models import TenantJob
from tenant_slots.repair import findings
from tenant_slots.repair.one_row import unless_locked
from tenant_slots.unattended import giving_way, listens


def put_back(rq_queue: str, pks: Sequence[int], most: int) -> None:
    """Of these jobs `most` that are still admitted there for nobody, and whose tenant is to give way."""
    if listens(rq_queue, if_unknown=True):
        return
    queued = TenantJob.objects.queued().filter(pk__in=pks)
    in_lane, others = giving_way(rq_queue, set(queued.values_list("tenant_queue", flat=True)))
    jobs = queued.filter(tenant_queue__in=in_lane | others).select_related("tenant_queue").defer(*findings.UNREPAIRED)
    for job in jobs.order_by("pk")[:most]:
        if unless_locked(transitions.put_back, job):
            dispatch.remove(job)
