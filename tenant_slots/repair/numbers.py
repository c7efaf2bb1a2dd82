"""Numbers that no code of ours has written: at the end of their column, or below what counts.

Whoever has to count on from there is refused by the database. Only SQL from outside puts them there.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Model, Q

from tenant_slots.models import COUNTS, State, TenantJob, TenantJobQuerySet, TenantQueue
from tenant_slots.repair.findings import UNREPAIRED
from tenant_slots.validation import HIGHEST_COUNT, is_whole

OF_TENANT_QUEUES = {
    **dict.fromkeys(
        ("max_job", "current_job", "max_job_per_key", "version", "limit_before_override"), HIGHEST_COUNT - 1
    ),
    "rate_empty_at": 2**63 - 2,
}
"""Up to where each of these goes on; none of them is below 0."""

OF_JOBS = dict.fromkeys(COUNTS, HIGHEST_COUNT - 1)


def odd_jobs() -> Iterator[tuple[TenantJob, list[str]]]:
    """Jobs with such a count, and which: from an index that has no others."""
    for job in _counted_out():
        yield job, _odd(job, OF_JOBS)


def odd_tenant_queues() -> Iterator[tuple[TenantQueue, list[str]]]:
    """The same of tenant queues."""
    odd = Q()
    for name, highest in OF_TENANT_QUEUES.items():
        odd |= Q((f"{name}__lt", 0)) | Q((f"{name}__gt", highest))
    for row in TenantQueue.objects.filter(odd):
        yield row, _odd(row, OF_TENANT_QUEUES)


def never_admitted() -> TenantJobQuerySet:
    """Waiting jobs whose next attempt would have no number. Not by their stage, or PostgreSQL could read a backlog."""
    return _counted_out().filter(state=State.WAITING, attempt__gte=HIGHEST_COUNT)


def _counted_out() -> TenantJobQuerySet:
    found: TenantJobQuerySet = TenantJob.objects.counted_out().select_related("tenant_queue")
    return found.defer(*UNREPAIRED).order_by("pk")


def _odd(row: Model, numbers: dict[str, int]) -> list[str]:
    return [
        name
        for name, highest in numbers.items()
        if getattr(row, name) is not None and not is_whole(getattr(row, name), 0, highest)
    ]
