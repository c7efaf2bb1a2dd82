"""What was admitted in a queue where nobody takes it gives its slot back: elsewhere a worker could use it.

Nobody else does so: it would stay taken until a worker of that queue is free, or until there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Exists, F, OuterRef, Q

from tenant_slots import dispatch, fair_order, queue_directory, transitions
from tenant_slots.models import TenantJob, TenantJobQuerySet
from tenant_slots.queue_names import usable_queues
from tenant_slots.repair import findings
from tenant_slots.repair.one_row import unless_locked
from tenant_slots.unattended import giving_way, listens


def put_back(rq_queue: str, pks: Sequence[int], most: int) -> None:
    """Of these jobs, which were admitted a while ago, `most` that nobody is about to take."""
    queued = TenantJob.objects.queued().filter(pk__in=pks)
    if listens(rq_queue, if_unknown=True):
        jobs = _beyond_window(rq_queue, queued)
    else:
        jobs = _of_those_who_give_way(rq_queue, queued)
    for job in jobs[:most].select_related("tenant_queue").defer(*findings.UNREPAIRED):
        if unless_locked(transitions.put_back, job):
            dispatch.remove(job)


def _beyond_window(rq_queue: str, queued: TenantJobQuerySet) -> TenantJobQuerySet:
    """Whoever was idle in several queues has one job ahead in each, and takes one of them. Of the others those whose
    tenant has no other slot for what waits in another queue, where a worker is idle; the least urgent ones.
    """
    try:
        more, _ = fair_order.excess(rq_queue)
        idle = [name for name in usable_queues() if more and name != rq_queue and fair_order.excess(name)[1]]
    except queue_directory.OUT_OF_REACH:
        return queued.none()
    elsewhere = TenantJob.objects.waiting().filter(tenant_queue=OuterRef("tenant_queue"))
    for_idle = elsewhere.filter(Q(rq_queue__in=idle) | Q(rq_queue="", tenant_queue__queue__in=idle))
    jobs = queued.filter(Exists(for_idle), tenant_queue__current_job__gte=F("tenant_queue__max_job"))
    return jobs.order_by("priority", "-pk")[:more]


def _of_those_who_give_way(rq_queue: str, queued: TenantJobQuerySet) -> TenantJobQuerySet:
    in_lane, others = giving_way(rq_queue, set(queued.values_list("tenant_queue", flat=True)))
    return queued.filter(tenant_queue__in=in_lane | others).order_by("pk")
