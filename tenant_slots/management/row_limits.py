"""The limits of one tenant queue as somebody types them. All are checked before any is changed or a row is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tenant_slots import stats, tenants
from tenant_slots.management.limit_file import number_or_text
from tenant_slots.models import TenantQueue

Step = Callable[[TenantQueue, str, str], str]
"""Changes a row in somebody's name for a reason, and says what it was and is."""


def change(tenant: str, queue: str, wanted: Mapping[str, str | None], *, by: str, reason: str) -> list[str]:
    """A line for each thing that is wanted; the names are those of `STEPS`.

    Raises:
        InvalidLimit, InvalidShare: nothing is changed then.
        UnknownQueue, UnknownTenantQueue, InvalidTenant: as `tenants.tenant_queue_for`.
    """
    steps = [make(tenant, queue, text) for name, make in STEPS.items() if (text := wanted.get(name)) is not None]
    row = tenants.tenant_queue_for(tenant, queue)
    return [step(row, by, reason) for step in steps]


def _limit(tenant: str, queue: str, text: str) -> Step:
    limit = tenants.require_limit(number_or_text(text), tenant, queue)

    def apply(row: TenantQueue, by: str, reason: str) -> str:
        before, waiting = row.max_job, sum(usage.waiting for usage in stats.usage(tenant=tenant, queue=queue))
        row.set_limit(limit, by=by, reason=reason)
        return f"{row}: {before} → {limit}, {waiting} {'job was' if waiting == 1 else 'jobs were'} waiting"

    return apply


def _share(tenant: str, queue: str, text: str) -> Step:
    share = tenants.require_share(number_or_text(text), tenant, queue)

    def apply(row: TenantQueue, by: str, reason: str) -> str:
        before = row.share
        row.set_share(share, by=by, reason=reason)
        return f"{row}: share {before} → {share}"

    return apply


STEPS: dict[str, Callable[[str, str, str], Step]] = {"max_job": _limit, "share": _share}
