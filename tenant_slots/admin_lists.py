"""What keeps the job list quick in the admin with a million jobs and ten thousand tenants."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from tenant_slots.models import TenantQueue

if TYPE_CHECKING:
    JobPaginator = Paginator[Any]
else:
    JobPaginator = Paginator

MOST_COUNTED = 10_000
"""Jobs that the list counts and pages through. Nobody pages further, and counting a million takes a while."""


class Restricted:
    """Which tenants a viewer may see and change. Override the one method, in both admins, to restrict it."""

    def tenant_queues_for(self, request: HttpRequest) -> QuerySet[TenantQueue] | None:
        """The rows of this viewer; None means all of them, which costs no query."""
        return None


class TenantFilter(admin.SimpleListFilter):
    """A field to type a tenant's key into, as a list of all tenants may be very long."""

    title = _("tenant")
    parameter_name = "tenant"
    template = "admin/tenant_slots/text_filter.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:
        return []

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: Any) -> Iterator[Any]:
        """One "choice" with what the template needs; `kept` are the other filters, search and order of the page."""
        others = {name: values for name, values in changelist.filter_params.items() if name != self.parameter_name}
        yield {
            "name": self.parameter_name,
            "value": self.value() or "",
            "kept": [(name, value) for name, values in others.items() for value in values],
            "selected": bool(self.value()),
            "query_string": changelist.get_query_string(remove=[self.parameter_name]),
        }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        tenant = self.value()
        if not tenant:
            return queryset
        return queryset.filter(tenant_queue__in=_row_ids(tenant))


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
    if uuid := _uuid(term):  # which may be a tenant's key just as well
        return jobs.filter(Q(uuid=uuid) | Q(tenant_queue__in=_row_ids(term)))
    rows = TenantQueue.objects.filter(tenant__icontains=term).values("pk")
    return jobs.filter(Q(tenant_queue__in=rows) | Q(task__icontains=term))


def _row_ids(tenant: str) -> list[int]:
    """Fetched, not joined: with the numbers at hand PostgreSQL reads the tenant's jobs from their index."""
    if "\0" in tenant:
        return []
    return list(TenantQueue.objects.filter(tenant=tenant).values_list("pk", flat=True))


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
