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


def put_back(pks: Sequence[int]) -> None:
    """Those of these jobs that are still admitted for nobody, and whose tenant is to give way there."""
    jobs = TenantJob.objects.queued().filter(pk__in=pks).select_related("tenant_queue").defer(*findings.LARGE)
    by_queue: dict[str, list[TenantJob]] = {}
    for job in jobs.order_by("pk"):
        by_queue.setdefault(job.rq_queue_name, []).append(job)
    for rq_queue, its_jobs in by_queue.items():
        if not listens(rq_queue, if_unknown=True):
            _put_back_in(rq_queue, its_jobs)


def _put_back_in(rq_queue: str, jobs: Sequence[TenantJob]) -> None:
    in_lane, others = giving_way(rq_queue, {job.tenant_queue_id for job in jobs})
    for job in jobs:
        if job.tenant_queue_id in in_lane | others and unless_locked(transitions.put_back, job):
            dispatch.remove(job)
