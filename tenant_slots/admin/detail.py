"""The page of one tenant queue: charts, which jobs hold the slots, which are next, what was changed."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from tenant_slots.admin import audit, queue_charts
from tenant_slots.admin.hosts import name_hosts
from tenant_slots.admin.pages import address
from tenant_slots.admin.permissions import QueuePermissions, may
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.stats import held, positions

MOST_HOLDING = 100
MOST_WAITING = 50


class DetailPage(QueuePermissions):
    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        context = {**self._detail(request, object_id), **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)

    def _detail(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        row = self.get_object(request, object_id)
        if row is None or not self.has_view_permission(request, row):
            return {}
        span = queue_charts.SPANS.get(request.GET.get("span", ""), queue_charts.SPANS["1h"])
        jobs_seen = may(request, "view_tenantjob")
        context: dict[str, Any] = {
            "slots_span": span,
            "slots_spans": queue_charts.SPANS.values(),
            "slots_charts": queue_charts.charts_of(row, span),
            "slots_holding": holding_of(row),
            "slots_backlog": positions.first_waiting(row, MOST_WAITING),
            "slots_history": audit.history_of(row),
            "slots_job_url": f"{self.admin_site.name}:tenant_slots_tenantjob_change" if jobs_seen else "",
        }
        if self.has_set_limit_permission(request, row):
            pages = {"slots_limit_url": "limit", "slots_reset_url": "reset"}
            context |= {name: address(self, page, row.pk) for name, page in pages.items()}
        return context


def holding_of(row: TenantQueue) -> list[tuple[TenantJob, bool]]:
    """The jobs that hold the row's slots, each with its `host_name` and whether its heartbeat is too old."""
    stale, jobs = held.stale_ones(row), held.holding(row, MOST_HOLDING)
    name_hosts(jobs)
    return [(job, job.pk in stale) for job in jobs]
