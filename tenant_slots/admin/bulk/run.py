"""The background job: it goes on with what its chunks say is left, however often its worker is killed.

It stops between two transactions: where that was asked for, or when whoever has confirmed it may not do so any more.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.db import transaction
from django.utils import translation
from rq import Retry

from tenant_slots.admin.bulk import chunks, ways
from tenant_slots.admin.bulk.chunks import Chunk, Part
from tenant_slots.admin.bulk.commission import Commission, require_readable
from tenant_slots.admin.bulk.work import Work
from tenant_slots.admin.confirmed import JOBS
from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.decorators import tenant_job
from tenant_slots.exceptions import UnknownBulkAction
from tenant_slots.models import BulkChange, BulkChunk, Ending
from tenant_slots.running.progress import report_progress
from tenant_slots.tenants import ADMIN_TENANT

logger = logging.getLogger("tenant_slots")

SECONDS_BETWEEN_LOOKS = 0.5
"""At whether somebody wants it stopped."""

NO_TIMEOUT = -1

AGAIN = Retry(max=20, interval=[1, 5, 15, 60])
"""After what raised: the database or Redis was away. What was done by then stays done."""


def _tenant(change_id: int) -> str:
    return ADMIN_TENANT


@tenant_job("default", tenant=_tenant, timeout=NO_TIMEOUT, retry=AGAIN)
def run_bulk_change(change_id: int) -> dict[str, int]:
    """Carry out a bulk change, or what is left of it. Returns how many rows came to what."""
    change = BulkChange.objects.filter(pk=change_id).first()
    if change is None or change.ended_at is not None:
        return {}
    BulkChange.objects.filter(pk=change_id, started_at=None).update(started_at=DatabaseNow())
    with translation.override(change.language):
        ending = _carry_out(change)
    return end(change, ending)


def _carry_out(change: BulkChange) -> Ending:
    watch = _Watch(change)
    for pk in list(change.chunks.exclude(left=[]).order_by("pk").values_list("pk", flat=True)):
        if watch.is_stop_requested():
            return Ending.STOPPED
        commission = Commission.of(change)
        if commission is None:
            return Ending.FORBIDDEN
        for _ in _steps(Work(commission, _chunk(pk))):
            if watch.is_time_to_look() and watch.is_stop_requested():
                return Ending.STOPPED
        report_progress(done_of(outcomes(change), commission.action.counts), change.total)
    return Ending.DONE


def _chunk(pk: int) -> Chunk:
    """Raises UnreadableBulkChange: nobody knows what is left of it, and it is not to be taken for done."""
    row = BulkChunk.objects.get(pk=pk)
    require_readable(row, "left")
    return Chunk.of(row)


def _steps(work: Work) -> Iterator[None]:
    way = ways.way_of(work.commission.action)
    while work.chunk.parts:
        yield from way(work)


class _Watch:
    """Looks now and then whether somebody wants it stopped."""

    def __init__(self, change: BulkChange) -> None:
        self._change = change
        self._looked_at = time.monotonic()

    def is_time_to_look(self) -> bool:
        return time.monotonic() > self._looked_at + SECONDS_BETWEEN_LOOKS

    def is_stop_requested(self) -> bool:
        self._looked_at = time.monotonic()
        return not BulkChange.objects.filter(pk=self._change.pk, cancel_requested_at=None).exists()


def outcomes(change: BulkChange) -> Counter[str]:
    """How many came to what so far. What the chunks have said is kept with a change that has ended."""
    counted = Counter(change.outcomes)
    for some in () if change.ending else change.chunks.values_list("outcomes", flat=True):
        counted += Counter(some)
    return counted


def done_of(came_of: Counter[str], counts: str) -> int:
    """How far it is, of its total: by the outcome that this is about, or by all that an object may come to."""
    return came_of[counts] if counts else came_of.total() - came_of[JOBS]


def problems(change: BulkChange) -> list[str]:
    """The first of them."""
    found = list(change.problems)
    if not change.ending:
        for some in change.chunks.exclude(problems=[]).order_by("pk").values_list("problems", flat=True):
            found += some
    return found[: chunks.PROBLEMS_KEPT]


def end(change: BulkChange, ending: Ending) -> dict[str, int]:
    """What the chunks say is kept with the change, and they go."""
    with transaction.atomic(using=app_settings.DATABASE):
        current = BulkChange.objects.select_for_update().get(pk=change.pk)
        if current.ended_at is None:
            _note_begun(current)
            values: dict[str, Any] = {"outcomes": dict(outcomes(current)), "problems": problems(current)}
            BulkChange.objects.filter(pk=change.pk).update(ending=ending, ended_at=DatabaseNow(), **values)
            current.outcomes = values["outcomes"]
            BulkChunk.objects.filter(change=change.pk).delete()
    return dict(current.outcomes)


def _note_begun(change: BulkChange) -> None:
    """A tenant queue that is left in the middle has in its history what was done until then."""
    for row in change.chunks.exclude(left=[]).order_by("pk"):
        for part in Chunk.of(row).parts:
            if part.counted:
                _note_part(change, part)


def _note_part(change: BulkChange, part: Part) -> None:
    """Whether or not that can be done, the change ends: a process without its action is asked to stop it, too."""
    try:
        commission = Commission.once_given(change)
    except UnknownBulkAction:
        logger.exception("what a bulk change has done is not in the history of tenant queue %s", part.pks[0])
        return
    if commission is not None and isinstance(commission.action.in_background, ways.JobsOfQueues):
        with translation.override(change.language):
            commission.action.in_background.note_begun(commission, part)
