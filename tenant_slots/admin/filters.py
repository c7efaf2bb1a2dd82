"""The filters of both lists; none asks a table for its choices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin.search import row_ids
from tenant_slots.admin.words import STATES
from tenant_slots.queue_names import usable_queues
from tenant_slots.stats.states import with_state


class StateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(state.value, name) for state, name in STATES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return with_state(queryset).filter(state=self.value()) if self.value() else queryset


class QueueFilter(admin.SimpleListFilter):
    """The queues of the settings: asking all rows for theirs takes a query that grows with them, and tells staff who
    may see some tenants only which queues others have.
    """

    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in usable_queues()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(**{self.parameter_name: self.value()}) if self.value() else queryset


class QueueOfJobFilter(QueueFilter):
    parameter_name = "tenant_queue__queue"


class TenantFilter(admin.SimpleListFilter):
    """A field to type a tenant's identifier into, as a list of all tenants may be very long."""

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
        return queryset.filter(tenant_queue__in=row_ids(tenant))
