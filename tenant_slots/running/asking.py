"""Jobs that run in this process do what their `on_busy` says where they find no free slot."""

from __future__ import annotations

from collections.abc import Iterable

from tenant_slots.db import transactions
from tenant_slots.db.compiled import among
from tenant_slots.enqueueing import on_busy
from tenant_slots.models import TenantJob, TenantJobQuerySet


def ask_promoted(jobs: TenantJobQuerySet) -> None:
    """Those of them whose time has come, or whose other jobs have ended, as a sweep does: each once, in their order."""
    promoted = list(jobs.waiting().filter(asks=True).order_by("pk"))
    if promoted:
        TenantJob.objects.filter(among([job.pk for job in promoted])).update(asks=False)
        ask(promoted)


def ask(jobs: Iterable[TenantJob]) -> None:
    """An error of the database takes no transaction along that is open here."""
    by_row: dict[int, list[TenantJob]] = {}
    for job in jobs:
        by_row.setdefault(job.tenant_queue_id, []).append(job)
    for tenant_queue_id, own in by_row.items():
        with transactions.kept_unbroken():
            on_busy.turn_away_new(tenant_queue_id, own)
