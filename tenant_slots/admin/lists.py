"""What keeps the job list quick with a million jobs and ten thousand tenants."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from tenant_slots.admin.bases import JobPaginator
from tenant_slots.models import TenantQueue

MOST_COUNTED = 10_000
"""Jobs that the list counts and pages through. Nobody pages further, and counting a million takes a while."""


class CappedPaginator(JobPaginator):
    """Counts no further than `MOST_COUNTED`."""

    object_list: QuerySet[Any]

    @cached_property
    def count(self) -> int:
        return self.object_list.order_by()[:MOST_COUNTED].count()


def search_jobs(jobs: Any, term: str) -> Any:
    """An id is found by its index and a tenant among the tenants; only a task is compared job by job."""
    if not term:
        return jobs
    if uuid := _uuid(term):  # which may be a tenant's identifier just as well
        return jobs.filter(Q(uuid=uuid) | Q(tenant_queue__in=row_ids(term)))
    rows = TenantQueue.objects.filter(tenant__icontains=term).values("pk")
    return jobs.filter(Q(tenant_queue__in=rows) | Q(task__icontains=term))


def row_ids(tenant: str) -> list[int]:
    """Fetched, not joined: with the numbers at hand PostgreSQL reads the tenant's jobs from their index."""
    if "\0" in tenant:
        return []
    return list(TenantQueue.objects.filter(tenant=tenant).values_list("pk", flat=True))


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
