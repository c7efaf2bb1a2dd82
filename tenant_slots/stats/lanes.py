"""The queues of RQ that jobs go to: a tenant queue's own one, and those that jobs overflow to."""

from __future__ import annotations

import functools
from typing import Any

from django.db.models import BooleanField, Exists, ExpressionWrapper, Q

from tenant_slots.conf import rq_queues
from tenant_slots.db.compiled import Statement
from tenant_slots.models import TenantQueue
from tenant_slots.stats.expressions import jobs_of_row


def with_jobs() -> list[str]:
    """Queues of RQ in which jobs wait for a worker. One query, and one more while some tenant's jobs overflow."""
    names = tuple(rq_queues())
    *of_own, overflows = _first_row(_own(names)) or [False]
    found = {name for name, has_jobs in zip(names, of_own, strict=False) if has_jobs}
    if overflows:
        found |= {name for name, has_jobs in zip(names, _first_row(_overflow(names)), strict=False) if has_jobs}
    return [name for name in names if name in found]


def _first_row(statement: Statement) -> list[Any]:
    """There is none without a tenant queue."""
    return next(iter(statement.lists()), [])


@functools.cache
def _own(names: tuple[str, ...]) -> Statement:
    """Whether each queue has jobs of its own tenant queues, and whether any job overflows to whichever queue."""
    return _asked(
        [*(_with_jobs(_rows(queue=name), rq_queue="") for name in names), _with_jobs(_rows(), rq_queue__gt="")]
    )


@functools.cache
def _overflow(names: tuple[str, ...]) -> Statement:
    return _asked([_with_jobs(_rows(), rq_queue=name) for name in names])


def _asked(conditions: list[Q]) -> Statement:
    columns = [ExpressionWrapper(condition, BooleanField()) for condition in conditions]
    return Statement(lambda: TenantQueue.objects.order_by().values_list(*columns)[:1])


def _rows(**of_queue: str) -> Any:
    return TenantQueue.objects.filter(paused=False, max_job__gt=0, **of_queue)


def _with_jobs(rows: Any, **of_queue: str) -> Q:
    """Whether one of the rows has such jobs. Asked by tenant queue, whose jobs have an index.

    Of the two kinds apart: for a tenant queue that has the one or the other PostgreSQL would read all jobs that wait.
    """
    waiting, queued = (jobs.jobs().filter(**of_queue) for jobs in (jobs_of_row().waiting(), jobs_of_row().queued()))
    return Q(Exists(rows.filter(Exists(waiting)))) | Q(Exists(rows.filter(Exists(queued))))
