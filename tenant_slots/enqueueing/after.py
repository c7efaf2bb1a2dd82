"""Jobs that run after others, as they are enqueued: see ``using(after=)`` and ``chains.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.models import QuerySet

from tenant_slots import chains, tenant_rows
from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.db.compiled import IsOneOf, Keys, Statement, among
from tenant_slots.enqueueing.unique import chunks
from tenant_slots.exceptions import InvalidOption, TenantQueueLocked
from tenant_slots.models import ENDED, NOT_BEFORE, TenantJob
from tenant_slots.tasks.task import TenantTask


def _awaited() -> QuerySet[TenantJob, tuple[int]]:
    return TenantJob.objects.filter(IsOneOf("pk", Keys("pks"))).order_by("pk").values_list("pk")


KEPT_IF_FREE = Statement(_awaited, lock="FOR KEY SHARE SKIP LOCKED")
KEPT_ENDED = Statement(lambda: _awaited().filter(state__in=ENDED), lock="FOR KEY SHARE")
"""Nobody deletes the jobs before the end of the transaction; whatever else is done to them goes on."""


def require_stored(task: str, after: Sequence[int]) -> None:
    """Raises InvalidOption unless these jobs are there, or are about to be by the caller's own transaction."""
    if not after:
        return
    there = set(TenantJob.objects.filter(among(after)).values_list("pk", flat=True))
    if gone := [pk for pk in after if pk not in there]:
        problem = "it was deleted, or enqueued in another transaction that is not committed yet"
        raise InvalidOption(option="after", value=gone[0], task=task, problem=problem)


def not_before(run_after: datetime) -> dict[str, Any]:
    """The option that keeps a time until it counts: when the other jobs have ended."""
    return {NOT_BEFORE: run_after.timestamp()}


def insert_waiting(
    task: TenantTask[..., Any], insert: Callable[[list[TenantJob]], object], jobs: list[TenantJob]
) -> None:
    """Store jobs together with those for which they wait, none of which is pruned before the transaction ends.

    Raises:
        InvalidOption: one of them was deleted since somebody looked.
        TenantQueueLocked: somebody deletes a tenant queue of theirs, or locks it FOR UPDATE, for longer than our
            patience.
    """
    with transaction.atomic(using=app_settings.DATABASE):
        awaited = TenantJob.objects.filter(among(task.after)).order_by().values_list("tenant_queue", flat=True)
        # Before the jobs: who deletes a tenant queue has locked it when he comes to its jobs, and would wait for these.
        tenant_rows.keep({job.tenant_queue_id for job in jobs} | set(awaited.distinct()))
        _keep(task.after)
        require_stored(task.path, task.after)
        insert(jobs)
        stored = jobs if task.unique_for is None else _stored(jobs)
        chains.store(stored, task.after, any_outcome=task.after_any)


def _keep(after: Sequence[int]) -> None:
    """Whoever ended may be old enough to be pruned. What a job that runs holds of its own row is its own business."""
    if connections[app_settings.DATABASE].vendor != "postgresql":
        return
    if len(KEPT_IF_FREE.lists(pks=after)) < len(after):
        with suppress(TenantQueueLocked), transactions.bounded(app_settings.DATABASE, "of an ended job") as rules:
            KEPT_ENDED.lists(rules, pks=after)


def _stored(jobs: list[TenantJob]) -> list[TenantJob]:
    """Without those of which a duplicate was found meanwhile."""
    there: set[UUID] = set()
    for some in chunks([job.uuid for job in jobs]):
        there.update(TenantJob.objects.filter(uuid__in=some).values_list("uuid", flat=True))
    return [job for job in jobs if job.uuid in there]
