"""Counters for metrics, a row for each queue of RQ: they grow with the minutes that are counted, and with lost runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

from tenant_slots.db import counting
from tenant_slots.models import QueueTotal
from tenant_slots.models.queue_minute import ALL_QUEUES, COUNTED
from tenant_slots.repair.row_of_all import unless_held
from tenant_slots.validation import HIGHEST_TOTAL


def lock() -> None:
    """Until the end of the transaction nobody else counts minutes: none is added twice."""
    QueueTotal.objects.get_or_create(queue=ALL_QUEUES)
    list(QueueTotal.objects.select_for_update().filter(queue=ALL_QUEUES))


def add(grown: Mapping[str, Counter[str]]) -> None:
    """By how much the columns of `COUNTED` have grown, by queue. Under `lock`: only then do these columns change."""
    grown = {queue: counts for queue, counts in grown.items() if any(counts.values())}
    if not grown:
        return
    totals = {total.queue: total for total in QueueTotal.objects.filter(queue__in=grown)}
    for queue, counts in grown.items():
        total = totals.setdefault(queue, QueueTotal(queue=queue))
        vars(total).update({name: min(getattr(total, name) + counts[name], HIGHEST_TOTAL) for name in COUNTED})
    QueueTotal.objects.bulk_create(
        totals.values(), update_conflicts=True, unique_fields=["queue"], update_fields=[*COUNTED]
    )


def add_lost_run(queue: str, column: str) -> None:
    """One more of `LOST_RUNS`. The tenants' slots do not wait for it."""
    unless_held(f"a lost run on {queue} is not counted", partial(_add_one, queue, column), queue=queue)


def _add_one(queue: str, column: str) -> None:
    own = QueueTotal.objects.filter(queue=queue)
    if not own.update(**{column: counting.grown(column)}):
        QueueTotal.objects.get_or_create(queue=queue)
        own.update(**{column: counting.grown(column)})
