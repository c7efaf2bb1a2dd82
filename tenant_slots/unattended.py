"""Queues to which no worker listens: a job is admitted ahead there, for whoever comes.

It holds a slot meanwhile. So none is of a tenant for which there may be workers elsewhere: of those whose own queue is
another one, and of those that have jobs in an overflow queue to which somebody listens. They stand behind all others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from django.db.models import Exists, OuterRef

from tenant_slots import fair_order, queue_directory
from tenant_slots.fair_order import Turn
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.queue_names import usable_queues


class GivingWay(NamedTuple):
    """Primary keys of tenant queues."""

    in_lane: set[int]
    """The queue is an overflow queue of theirs."""
    others: set[int]
    """It is their own, and there is a worker for what they have waiting in an overflow queue."""


def giving_way(rq_queue: str, tenant_queue_ids: Collection[int]) -> GivingWay:
    """Those of the tenant queues of which no job is to be admitted there while nobody listens.

    None that was deleted: whoever gives it a turn finds out.
    """
    rows = TenantQueue.objects.filter(pk__in=tenant_queue_ids).order_by()
    own = rows.filter(queue=rq_queue)
    in_lane = set(rows.exclude(queue=rq_queue).values_list("pk", flat=True))
    others: set[int] = set()
    for name in _attended_besides(rq_queue) if len(in_lane) < len(tenant_queue_ids) else ():
        waiting = TenantJob.objects.waiting().filter(tenant_queue=OuterRef("pk"), rq_queue=name)
        others.update(own.filter(Exists(waiting)).values_list("pk", flat=True))
    return GivingWay(in_lane, others)


def passes_over(turn: Turn) -> bool:
    """Whether the tenant is to give way. It stands behind then, and so do those next to it that are to as well.

    Raises:
        Error: the database cannot be asked. Nothing has changed.
        RedisError: the order cannot be asked.
    """
    heads = {turn.tenant_queue_id, *fair_order.heads(turn.rq_queue)}
    found = giving_way(turn.rq_queue, heads)
    if turn.tenant_queue_id not in found.in_lane | found.others:
        return False
    fair_order.undo(turn)
    for tenants, in_lane in ((found.in_lane, True), (found.others, False)):
        if tenants:
            fair_order.pass_over(turn.rq_queue, tenants, in_lane=in_lane)
    return True


def _attended_besides(rq_queue: str) -> list[str]:
    return [name for name in usable_queues() if name != rq_queue and listens(name, if_unknown=False)]


def listens(rq_queue: str, *, if_unknown: bool) -> bool:
    """Whether a worker listens to a queue; `if_unknown` where its Redis cannot be asked."""
    try:
        return fair_order.listens(rq_queue)
    except queue_directory.OUT_OF_REACH:
        return if_unknown
