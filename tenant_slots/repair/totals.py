"""Counters for metrics, a row for each queue of RQ: they grow with the minutes that are counted, and with lost runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from django.db import OperationalError

from tenant_slots import logs
from tenant_slots.conf import app_settings
from tenant_slots.db import counting
from tenant_slots.db.transactions import is_locked_out, send, waiting_at_most, within_patience
from tenant_slots.models import QueueTotal
from tenant_slots.models.queue_minute import ALL_QUEUES, COUNTED
from tenant_slots.repair.one_row import note_held, seconds_to_wait
from tenant_slots.validation import HIGHEST_TOTAL

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")


def unless_held(what: str, change: Callable[[], T], **about: str) -> T | None:
    """What the change gives, in a transaction; None where somebody holds a row of it: these are all tenants'.

    Args:
        what: is not done then, for the log.
        change: of these rows.
        about: whom or what it belongs to, as in `logs.about_named`.
    """
    seconds = seconds_to_wait()
    try:
        with waiting_at_most(seconds), within_patience(app_settings.DATABASE) as rules:
            send(app_settings.DATABASE, rules)
            return change()
    except OperationalError as error:
        if not is_locked_out(error):
            raise
        note_held(seconds)
        text = "%s, somebody holds the row of the counter: %s"
        logger.warning(text, what, error, extra=logs.about_named(**about))
    return None


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
