"""The queues of RQ that jobs go to: a tenant queue's own one, and those that jobs overflow to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import BooleanField, Exists, ExpressionWrapper, Q, QuerySet

from tenant_slots.db.compiled import Statement
from tenant_slots.models import TenantQueue
from tenant_slots.queue_names import usable_queues
from tenant_slots.stats.expressions import jobs_of_row

Names = tuple[str, ...]
Rows = QuerySet[TenantQueue]
Asked = Callable[[Names, Rows], list[Q]]


def with_jobs(own: Rows | None = None) -> list[str]:
    """Queues of RQ in which jobs wait for a worker. One query, and one more while some tenant's jobs overflow.

    Args:
        own: the tenant queues whose jobs count; None for all.
    """
    names = tuple(usable_queues())
    *of_own, overflows = _answers(_own, names, own) or [False]
    found = {name for name, has_jobs in zip(names, of_own, strict=False) if has_jobs}
    if overflows:
        answers = _answers(_overflow, names, own)
        found |= {name for name, has_jobs in zip(names, answers, strict=False) if has_jobs}
    return [name for name in names if name in found]


def _own(names: Names, rows: Rows) -> list[Q]:
    """Whether each queue has jobs of its own tenant queues, and whether any job overflows to whichever queue."""
    return [*(_with_jobs(rows.filter(queue=name), rq_queue="") for name in names), _with_jobs(rows, rq_queue__gt="")]


def _overflow(names: Names, rows: Rows) -> list[Q]:
    return [_with_jobs(rows, rq_queue=name) for name in names]


def _answers(asked: Asked, names: Names, own: Rows | None) -> Sequence[Any]:
    """There is none without a tenant queue."""
    if own is None:
        found = _compiled(asked, names).lists()
    else:
        found = list(_one_row(asked(names, _rows().filter(pk__in=own.order_by().values("pk")))))
    return next(iter(found), [])


@functools.cache
def _compiled(asked: Asked, names: Names) -> Statement:
    return Statement(lambda: _one_row(asked(names, _rows())))


def _one_row(conditions: list[Q]) -> QuerySet[Any]:
    columns = [ExpressionWrapper(condition, BooleanField()) for condition in conditions]
    return TenantQueue.objects.order_by().values_list(*columns)[:1]


def _rows() -> Any:
    return TenantQueue.objects.filter(paused=False, max_job__gt=0)


def _with_jobs(rows: Any, **of_queue: str) -> Q:
    """Whether one of the rows has such jobs. Asked by tenant queue, whose jobs have an index.

    Of the two kinds apart: for a tenant queue that has the one or the other PostgreSQL would read all jobs that wait.
    """
    waiting, queued = (jobs.jobs().filter(**of_queue) for jobs in (jobs_of_row().waiting(), jobs_of_row().queued()))
    return Q(Exists(rows.filter(Exists(waiting)))) | Q(Exists(rows.filter(Exists(queued))))
