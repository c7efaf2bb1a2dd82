"""The shares by which the order of tenants divides, where these are not what the database has.

A change is told when it has committed. It is not told while Redis is out of reach, two changes may be told the wrong
way round, and an enqueue brings along the share that it has read, perhaps long before it commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from tenant_slots import fair_order, queue_directory
from tenant_slots.db.compiled import among
from tenant_slots.models import TenantQueue


def set_right(found: Mapping[str, Sequence[tuple[int, int]]]) -> None:
    """Tell the shares of tenants, by RQ queue with their primary key, that the order knows by another one.

    Where it does the database is asked again: of two that differ, that of the order may be the newer one. Queues whose
    Redis cannot be asked are left out.
    """
    others: dict[str, dict[int, int]] = {}
    for rq_queue, rows in found.items():
        with suppress(*queue_directory.OUT_OF_REACH):
            others[rq_queue] = dict(fair_order.other_shares(rq_queue, rows))
    pks = sorted({pk for known in others.values() for pk in known})
    if not pks:
        return
    right = dict(TenantQueue.objects.filter(among(pks)).order_by().values_list("pk", "share"))
    for rq_queue, known in others.items():
        with suppress(*queue_directory.OUT_OF_REACH):
            fair_order.correct_shares(rq_queue, [(pk, known[pk], right[pk]) for pk in known if pk in right])
