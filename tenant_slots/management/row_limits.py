"""The limits of one tenant queue as somebody types them. All are checked before any is changed or a row is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.db import Error

from tenant_slots import rates, stats, tenants
from tenant_slots.exceptions import TenantSlotsError
from tenant_slots.management.limit_file import number_or_text
from tenant_slots.models import TenantQueue

Step = Callable[[TenantQueue, str, str], str]
"""Changes a row in somebody's name for a reason, and says what it was and is."""


class NotChanged(Exception):
    """Says why, for whoever has typed the limits."""


def change(tenant: str, queue: str, wanted: Mapping[str, Any], *, by: str, reason: str) -> list[str]:
    """A line for each thing that is wanted; the names are those of `STEPS`, and ``burst`` beside ``rate``.

    Raises:
        InvalidLimit, InvalidShare, InvalidRate: nothing is changed then.
        UnknownQueue, UnknownTenantQueue, InvalidTenant: as `tenants.tenant_queue_for`.
        NotChanged: a callable of the project gave no default for a new row, or the row was deleted meanwhile.
    """
    steps = [make(tenant, queue, wanted) for name, make in STEPS.items() if is_wanted(wanted, name)]
    row = _row(tenant, queue)
    try:
        return [step(row, by, reason) for step in steps]
    except TenantQueue.DoesNotExist as error:
        raise NotChanged(f"{row} was deleted meanwhile; run the command again to have it made anew") from error


def _row(tenant: str, queue: str) -> TenantQueue:
    try:
        return tenants.tenant_queue_for(tenant, queue)
    except (TenantSlotsError, Error):
        raise
    except Exception as error:  # of a callable of the project
        why = f"DEFAULT_MAX_JOB, DEFAULT_SHARE or DEFAULT_RATE raised {type(error).__name__}: {error}".strip()
        raise NotChanged(f"{why}; {tenant!r} on {queue!r} has no row yet") from error


def is_wanted(wanted: Mapping[str, Any], name: str) -> bool:
    value = wanted.get(name)
    return value is not None and value is not False  # 0 is a number, and an error


def _limit(tenant: str, queue: str, wanted: Mapping[str, Any]) -> Step:
    limit = tenants.require_limit(number_or_text(wanted["max_job"]), tenant, queue)

    def apply(row: TenantQueue, by: str, reason: str) -> str:
        before, waiting = row.max_job, sum(usage.waiting for usage in stats.usage(tenant=tenant, queue=queue))
        row.set_limit(limit, by=by, reason=reason)
        return f"{row}: {before} → {limit}, {waiting} {'job was' if waiting == 1 else 'jobs were'} waiting"

    return apply


def _share(tenant: str, queue: str, wanted: Mapping[str, Any]) -> Step:
    share = tenants.require_share(number_or_text(wanted["share"]), tenant, queue)

    def apply(row: TenantQueue, by: str, reason: str) -> str:
        before = row.share
        row.set_share(share, by=by, reason=reason)
        return f"{row}: share {before} → {share}"

    return apply


def _rate(tenant: str, queue: str, wanted: Mapping[str, Any]) -> Step:
    burst = wanted.get("burst")
    rate = rates.parse(wanted["rate"], None if burst is None else number_or_text(burst))  # type: ignore[arg-type]

    def apply(row: TenantQueue, by: str, reason: str) -> str:
        before = row.rate
        row.set_rate(rate.number, per=rate.per, burst=rate.burst, by=by, reason=reason)
        return f"{row}: rate {before or 'none'} → {rate}"

    return apply


def _no_rate(tenant: str, queue: str, wanted: Mapping[str, Any]) -> Step:
    def apply(row: TenantQueue, by: str, reason: str) -> str:
        before = row.rate
        row.set_rate(None, by=by, reason=reason)
        return f"{row}: rate {before or 'none'} → none"

    return apply


STEPS: dict[str, Callable[[str, str, Mapping[str, Any]], Step]] = {
    "max_job": _limit,
    "share": _share,
    "rate": _rate,
    "no_rate": _no_rate,
}
