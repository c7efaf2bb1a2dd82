"""How many of a tenant queue's waiting jobs its limit per concurrency key would let start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import BigIntegerField, Case, OuterRef, Subquery, Value, When

from tenant_slots.models import TenantJobQuerySet
from tenant_slots.stats.expressions import jobs_of_row


def lanes_apart(rq_queues: Iterable[str]) -> list[str]:
    """In which of these RQ queues, as jobs' rows have them, the jobs are to be told apart: none while none overflow."""
    lanes = sorted(set(rq_queues))
    return lanes if any(lanes) else []


def jobs_below_key_limit(rq_queue: str | None = None) -> Any:
    """Of a `TenantQueue`, if all its slots were free; NULL where it has no such limit. Reservations count as jobs.

    Args:
        rq_queue: in which they wait, as their rows have it; None for all.
    """
    jobs = jobs_of_row().waiting() if rq_queue is None else jobs_of_row().waiting().filter(rq_queue=rq_queue)
    waiting, holding = _by_key(jobs, waits=1), _by_key(jobs_of_row().holding(), waits=0)
    return Case(
        When(max_job_per_key=None, then=Value(None)),
        default=_BelowKeyLimit(waiting.union(holding, all=True)),
        output_field=BigIntegerField(),
    )


def _by_key(jobs: TenantJobQuerySet, *, waits: int) -> Any:
    """One column each: waiting and holding ones are read from an index of their own."""
    limit = OuterRef("max_job_per_key")
    return jobs.order_by().values_list("key", Value(waits), Value(1 - waits), limit)


class _BelowKeyLimit(Subquery):
    """Django cannot group what a union has found."""

    output_field = BigIntegerField()

    template = """(
        WITH jobs (key, waits, holds, most) AS (%(subquery)s),
        keys AS (SELECT key, SUM(waits) AS waits, MAX(most) - SUM(holds) AS room FROM jobs GROUP BY key)
        SELECT CAST(COALESCE(SUM(
            CASE WHEN key = '' OR waits < room THEN waits WHEN room > 0 THEN room ELSE 0 END
        ), 0) AS bigint) FROM keys
    )"""
