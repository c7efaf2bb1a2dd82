"""The page of one tenant queue: charts, which jobs hold the slots, which are next, what was changed."""

from __future__ import annotations

from typing import Any, cast

from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.formats import localize
from django.utils.translation import gettext

from tenant_slots.admin import audit, decided, queue_charts, words
from tenant_slots.admin.hosts import name_hosts
from tenant_slots.admin.pages import address, page_of
from tenant_slots.admin.permissions import QueuePermissions, may_see
from tenant_slots.admin.plans import Plans
from tenant_slots.admin.queue_charts import Lately, Span
from tenant_slots.admin.snapshots import shared_charts
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.stats import held, positions, rows
from tenant_slots.stats.rows import Row

MOST_HOLDING = 100
MOST_WAITING = 50


class DetailPage(Plans, QueuePermissions):
    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """What is looked at has its figures, and is read once for a page."""
        if from_field or request.method not in ("GET", "HEAD"):
            return super().get_object(request, object_id, from_field)
        read = vars(request).setdefault("slots_rows", {})
        if object_id not in read:
            read[object_id] = self._read(request, object_id)
        return read[object_id]

    def _read(self, request: HttpRequest, object_id: str) -> TenantQueue | None:
        try:
            key = self.opts.pk.to_python(object_id)
        except ValidationError:
            return None
        row: Any = rows.with_figures(self.get_queryset(request)).filter(pk=key).first()
        if row is not None:
            row.live = rows.row_of(row)
        return cast("TenantQueue | None", row)

    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        context = {**self._detail(request, object_id), **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)

    def _detail(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        row = self.get_object(request, object_id)
        if row is None or not self.has_view_permission(request, row):
            return {}
        span = queue_charts.SPANS.get(request.GET.get("span", ""), queue_charts.SPANS["1h"])
        kept = audit.kept_of(row)
        context: dict[str, Any] = {
            "slots_live": live_of(row),
            "slots_state": words.state(live_of(row)),
            "slots_plan": self.plans_of([row.tenant]).get(row.tenant, ""),
            "slots_figures": self._figures(row),
            "slots_decided": decided.sentences(row, kept),
            "slots_span": span,
            "slots_spans": queue_charts.SPANS.values(),
            "slots_charts": queue_charts.charts_of(row, span, lately_of(row, span)),
            "slots_history": audit.history_of(row, kept),
            "slots_job_url": page_of(self, request, TenantJob, "change"),
        }
        if may_see(self, request, TenantJob):
            context |= self._its_jobs(row)
        if self.has_set_limit_permission(request, row):
            pages = {"slots_limit_url": "limit", "slots_reset_url": "reset"}
            context |= {name: address(self, page, row.pk) for name, page in pages.items()}
        return context

    def _its_jobs(self, row: TenantQueue) -> dict[str, Any]:
        """That hold its slots, and those that are next."""
        next_ones = positions.first_waiting(row, MOST_WAITING) if live_of(row).waiting else []
        return {"slots_sees_jobs": True, "slots_holding": holding_of(row), "slots_backlog": next_ones}

    def _figures(self, row: TenantQueue) -> list[tuple[Any, Any]]:
        """Title and text: how it fares at this moment."""
        live = live_of(row)
        return [
            (gettext("In use"), f"{live.running} / {live.max_job}"),
            (gettext("Waiting"), localize(live.waiting)),
            (gettext("Oldest wait"), words.duration(live.oldest_wait)),
            (gettext("Failed in the last hour"), localize(live.failed)),
        ]


def holding_of(row: TenantQueue) -> list[TenantJob]:
    """The jobs that hold the row's slots, each with its `host_name`."""
    jobs = held.holding(row, MOST_HOLDING)
    name_hosts(jobs)
    return jobs


def lately_of(row: TenantQueue, span: Span) -> Lately:
    """What the charts show, shared by their viewers."""
    return shared_charts[span.key].get([row.pk], lambda _: {row.pk: queue_charts.read(row, span)})[row.pk]


def live_of(row: Any) -> Row:
    """Its figures, which a row has that was read to be looked at."""
    found: Row = getattr(row, "live", None) or rows.measured([row.pk])[row.pk]
    return found
