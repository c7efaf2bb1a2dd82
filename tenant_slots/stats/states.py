"""One word for a tenant queue, worked out in SQL, so that a filter and a page can never differ."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from django.db.models import Case, CharField, Count, Exists, F, OuterRef, Q, QuerySet, Value, When

from tenant_slots import rates, rests
from tenant_slots.models import TenantJob
from tenant_slots.stats.expressions import jobs_of_row


class QueueState(StrEnum):
    """Where several apply, the first of `state_of_row`."""

    STALE = "stale"
    PAUSED = "paused"
    RESTING = "resting"
    OVER = "over"
    RATE = "rate"
    """Jobs wait, and the rate has no token left."""
    AT_LIMIT = "at_limit"
    """All its slots are taken by what runs, or its limit is 0 and jobs wait."""
    WAITS_FOR_WORKER = "waits_for_worker"
    """Jobs wait although slots are free, or one has a slot already: the next worker whose turn it is takes one."""
    KEY_LIMIT = "key_limit"
    """Jobs wait, slots are free, and the concurrency key of each of these jobs is at its limit."""
    ACTIVE = "active"
    IDLE = "idle"


def with_state(rows: QuerySet[Any]) -> QuerySet[Any]:
    """The rows with `state`, to filter by."""
    named: QuerySet[Any] = rows.annotate(state=state_of_row())
    return named


def state_of_row() -> Any:
    """The `QueueState` of a TenantQueue."""
    jobs = jobs_of_row()
    waits = Exists(jobs.waiting())
    words: list[tuple[Any, QueueState]] = [
        (Exists(jobs.stale()), QueueState.STALE),
        (Q(paused=True), QueueState.PAUSED),
        (~rests.is_over(), QueueState.RESTING),
        (Q(current_job__gt=F("max_job")), QueueState.OVER),
        (~rates.allows(1) & waits, QueueState.RATE),
        (Exists(jobs.queued().jobs()), QueueState.WAITS_FOR_WORKER),
        (Q(current_job__gte=F("max_job")) & (Q(current_job__gt=0) | waits), QueueState.AT_LIMIT),
        (waits & (Q(max_job_per_key=None) | has_a_job_below_its_key_limit()), QueueState.WAITS_FOR_WORKER),
        (waits, QueueState.KEY_LIMIT),
        (Q(current_job__gt=0), QueueState.ACTIVE),
    ]
    return Case(
        *(When(condition, then=Value(word.value)) for condition, word in words),
        default=Value(QueueState.IDLE.value),
        output_field=CharField(),
    )


def has_a_job_below_its_key_limit() -> Any:
    """The keys at their limit are looked up once for a row, not once for each of its waiting jobs."""
    of_row = TenantJob.objects.holding().filter(tenant_queue=OuterRef(OuterRef("pk"))).exclude(key="").order_by()
    held = of_row.values("key").annotate(jobs=Count("pk"))
    # By the job's own tenant queue: SQLite sees no column of an outer query in HAVING.
    full = held.filter(jobs__gte=F("tenant_queue__max_job_per_key")).values("key")
    return Exists(jobs_of_row().waiting().exclude(key__in=full))
