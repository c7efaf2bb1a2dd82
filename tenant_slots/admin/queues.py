"""The admin of tenant queues, as far as it is declared."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import export, jobs_of_queues, queue_actions, queue_deletion
from tenant_slots.admin.actions import in_menu
from tenant_slots.admin.bases import QueueModelAdmin
from tenant_slots.admin.bulk.pages import BulkPages
from tenant_slots.admin.change_form import ChangeForm
from tenant_slots.admin.columns import QueueColumns
from tenant_slots.admin.deletion import Deletion
from tenant_slots.admin.detail import DetailPage
from tenant_slots.admin.filters import QueueFilter, StateFilter
from tenant_slots.admin.history import HistoryPage
from tenant_slots.admin.limits import LimitPages
from tenant_slots.admin.live import LiveList
from tenant_slots.admin.lookups import OfferedLookups, with_storable
from tenant_slots.admin.overview import OverviewPage
from tenant_slots.admin.own_transactions import OwnTransactions
from tenant_slots.admin.snapshots import start_delays_of_rows, worker_time_of_rows
from tenant_slots.models import TenantQueue
from tenant_slots.stats.percentiles import with_start_delay
from tenant_slots.stats.tenant_queues import BUSIEST_FIRST, with_in_use, with_longest_wait, with_waiting
from tenant_slots.stats.worker_time import with_worker_time


class TenantQueueAdmin(
    OwnTransactions,
    LimitPages,
    ChangeForm,
    DetailPage,
    HistoryPage,
    Deletion,
    OverviewPage,
    BulkPages,
    LiveList,
    QueueColumns,
    OfferedLookups,
    QueueModelAdmin,
):
    """Never give this class `list_editable`: saving the list would write back every limit that it shows."""

    list_display = (
        "tenant_name", "queue", "state", "usage", "share_shown", "worker_time", "edit", "waiting", "oldest_wait",
        "start_delay", "failed", "activity", "running", "queued", "origin",
    )  # fmt: skip
    list_filter = (StateFilter, QueueFilter)
    search_fields = ("tenant",)
    search_help_text = _("Search by part of a tenant identifier")
    linked = ("tenant__exact", "queue__exact", "paused__exact")
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    actions = (
        "pause",
        "resume",
        "set_limit",
        "set_share",
        "cancel_waiting",
        "retry_failed",
        "export",
        "delete_selected",
    )
    editable = (
        "max_job", "override_until", "share", "rate", "burst", "max_job_per_key", "max_waiting", "paused", "resume_at",
        "reason", "seen_version",
    )  # fmt: skip
    key = ("tenant", "queue")
    added = ("max_job", "share", "rate", "burst", "max_job_per_key", "max_waiting", "paused")
    shown = ("usage", "tokens", "rest", "waiting", "origin", "created")

    pause = in_menu(queue_actions.PAUSE)
    resume = in_menu(queue_actions.RESUME)
    set_limit = in_menu(queue_actions.SET_LIMIT)
    set_share = in_menu(queue_actions.SET_SHARE)
    cancel_waiting = in_menu(jobs_of_queues.CANCEL_WAITING)
    retry_failed = in_menu(jobs_of_queues.RETRY_FAILED)
    delete_selected = in_menu(queue_deletion.DELETE)

    @admin.action(permissions=["export"], description=_("Export selected tenant queues as CSV"))
    def export(self, request: HttpRequest, queryset: QuerySet[TenantQueue]) -> Any:
        lines = partial(export.queue_lines, plans_of=self.plans_of)
        return export.stream(self, request, (*export.QUEUE_FIELDS, "plan"), queryset, lines)

    def get_queryset(self, request: HttpRequest) -> QuerySet[TenantQueue]:
        # Not super(), which orders before there is a `waiting` to order by.
        own = self.own_tenant_queues(request)
        rows = with_in_use(with_waiting(self.model._default_manager.get_queryset() if own is None else own))
        timed = with_start_delay(with_longest_wait(with_worker_time(rows, worker_time_of_rows)), start_delays_of_rows)
        return with_storable(request, timed.order_by(*self.get_ordering(request)))

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return BUSIEST_FIRST

    def get_list_display(self, request: HttpRequest) -> Any:
        return [name for name in self.list_display if name != "edit" or self.has_set_limit_permission(request)]

    def get_fields(self, request: HttpRequest, obj: TenantQueue | None = None) -> Any:
        if obj is None:
            return self.key + self.added
        if self.has_change_permission(request, obj):
            return self.key + self.editable + self.shown
        of_form = ("rate", "burst", "reason", "seen_version", "override_until", "resume_at")
        caps = tuple(name for name in self.editable if name not in of_form)
        return (*self.key, *caps, "override_end", "pause_end", "rate_shown", *self.shown)

    def get_readonly_fields(self, request: HttpRequest, obj: TenantQueue | None = None) -> Any:
        return (*self.key, "override_end", "pause_end", "rate_shown", *self.shown) if obj else ()
