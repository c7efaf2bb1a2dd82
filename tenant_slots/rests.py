"""Rests: for a while no job of a tenant queue starts, because one of its jobs raised `TenantBusy`.

What is stored is the moment when the rest is over, by the database's clock, in a column of the tenant queue. It is
written and read under the lock of that row. The clock is asked only where there is such a moment, and whoever admits
jobs after it takes it away, to another column, which says when the last rest was over.

A moment further ahead than a rest can last is none: the clock was set back since.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Case, DurationField, ExpressionWrapper, F, Q, When

from tenant_slots import logs
from tenant_slots.db import clock
from tenant_slots.db.clock import DatabaseNow, from_now
from tenant_slots.models import TenantQueue
from tenant_slots.rates import SKEW
from tenant_slots.validation import storable

logger = logging.getLogger("tenant_slots")

LONGEST = timedelta(days=1)
"""Of a rest; who wants no jobs for longer pauses the tenant queue."""

SHORTEST = timedelta(seconds=1)
"""A job whose partner names no time, or one that has passed, would run again at once, and keep a worker busy so."""

LONGEST_REASON: int = TenantQueue._meta.get_field("rest_reason").max_length or 0


def begin(tenant_queue: TenantQueue, reason: str, seconds: float | None = None, until: str | None = None) -> None:
    """Have the locked tenant queue rest. That prolongs a rest that goes on, and never shortens it.

    Args:
        reason: why, for staff.
        seconds: for how long.
        until: or until when, in ISO 8601.
    """
    now = clock.now()
    end = now + timedelta(seconds=seconds or 0) if until is None else datetime.fromisoformat(until)
    if end > now + LONGEST:
        known = logs.about_named(tenant=tenant_queue.tenant, queue=tenant_queue.queue)
        logger.info("a rest lasts a day at most, and not until %s", end, extra=known)
    end = min(max(end, now + SHORTEST), now + LONGEST)
    if end > now + timedelta(seconds=_left(tenant_queue.rests_until, now)):
        _store(tenant_queue, end, storable(reason)[:LONGEST_REASON])


def seconds_left(tenant_queue: TenantQueue, now: datetime | None = None) -> float:
    """For how long no job may start; 0 where the tenant queue does not rest. `now` is by the database's clock."""
    return 0.0 if tenant_queue.rests_until is None else _left(tenant_queue.rests_until, now or clock.now())


def goes_on(tenant_queue: TenantQueue) -> bool:
    """Whether the locked tenant queue rests. If that is over, it has no moment any more."""
    if tenant_queue.rests_until is None:
        return False
    if seconds_left(tenant_queue):
        return True
    _store(tenant_queue, None, "", rested_until=tenant_queue.rests_until)
    return False


def is_over() -> Q:
    """Condition: the tenant queue does not rest."""
    return Q(rests_until=None) | Q(rests_until__lte=DatabaseNow()) | Q(rests_until__gt=from_now(LONGEST + SKEW))


def left() -> Any:
    """Expression: for how long no job may start, NULL where the tenant queue does not rest."""
    time = ExpressionWrapper(F("rests_until") - DatabaseNow(), output_field=DurationField())
    return Case(When(~is_over(), then=time), default=None, output_field=DurationField())


def _left(end: datetime | None, now: datetime) -> float:
    if end is None or end > now + LONGEST + SKEW:
        return 0.0
    return max(0.0, (end - now).total_seconds())


def _store(tenant_queue: TenantQueue, until: datetime | None, reason: str, **also: Any) -> None:
    tenant_queue.rests_until, tenant_queue.rest_reason = until, reason
    values: dict[str, Any] = {"rests_until": until, "rest_reason": reason, **also}
    TenantQueue.objects.filter(pk=tenant_queue.pk).update(**values)
