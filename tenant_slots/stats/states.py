"""One word for a tenant queue, worked out in SQL, so that a filter and a page can never differ."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from django.db.models import Case, CharField, Exists, F, Q, QuerySet, Value, When

from tenant_slots import rates, rests
from tenant_slots.stats.expressions import jobs_of_row


class QueueState(StrEnum):
    """Where several apply, the first of `state_of_row`."""

    STALE = "stale"
    PAUSED = "paused"
    RESTING = "resting"
    OVER = "over"
    RATE = "rate"
    """Jobs wait, and the rate has no token left."""
    BACKLOGGED = "backlogged"
    AT_LIMIT = "at_limit"
    ACTIVE = "active"
    IDLE = "idle"


def with_state(rows: QuerySet[Any]) -> QuerySet[Any]:
    """The rows with `state`, to filter by."""
    named: QuerySet[Any] = rows.annotate(state=state_of_row())
    return named


def state_of_row() -> Any:
    """The `QueueState` of a TenantQueue."""
    jobs = jobs_of_row()
    words: list[tuple[Any, QueueState]] = [
        (Exists(jobs.stale()), QueueState.STALE),
        (Q(paused=True), QueueState.PAUSED),
        (~rests.is_over(), QueueState.RESTING),
        (Q(current_job__gt=F("max_job")), QueueState.OVER),
        (~rates.allows(1) & Exists(jobs.waiting()), QueueState.RATE),
        (Exists(jobs.waiting()), QueueState.BACKLOGGED),
        (Q(current_job=F("max_job"), current_job__gt=0), QueueState.AT_LIMIT),
        (Q(current_job__gt=0), QueueState.ACTIVE),
    ]
    return Case(
        *(When(condition, then=Value(word.value)) for condition, word in words),
        default=Value(QueueState.IDLE.value),
        output_field=CharField(),
    )
