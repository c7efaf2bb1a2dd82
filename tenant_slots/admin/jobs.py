"""The admin of jobs, as far as it is declared."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import export, job_actions
from tenant_slots.admin.actions import in_menu
from tenant_slots.admin.bases import JobModelAdmin
from tenant_slots.admin.bulk.pages import BulkPages
from tenant_slots.admin.failures import FailuresPage
from tenant_slots.admin.filters import QueueOfJobFilter, TenantFilter
from tenant_slots.admin.history import HistoryPage
from tenant_slots.admin.job_fields import JobFields
from tenant_slots.admin.job_page import JobPage
from tenant_slots.admin.lists import CappedPaginator, reading_of
from tenant_slots.admin.live_jobs import LiveJobs
from tenant_slots.admin.lookups import OfferedLookups
from tenant_slots.admin.own_transactions import OwnTransactions
from tenant_slots.admin.run_times import TasksPage
from tenant_slots.admin.search import search_jobs
from tenant_slots.models import TenantJob
from tenant_slots.stats.expressions import UNLISTED


class TenantJobAdmin(
    OwnTransactions,
    JobPage,
    HistoryPage,
    FailuresPage,
    TasksPage,
    BulkPages,
    LiveJobs,
    JobFields,
    OfferedLookups,
    JobModelAdmin,
):
    list_display = (
        "uuid", "what", "for_whom", "queue", "state_shown", "reported", "priority_shown", "enqueued", "started",
        "ended", "attempt_shown",
    )  # fmt: skip
    list_filter = ("state", QueueOfJobFilter, TenantFilter)
    list_select_related = ("tenant_queue",)
    search_fields = ("uuid", "tenant_queue__tenant", "task")
    search_help_text = _(
        "Search by a job ID, by part of a tenant identifier, or by part of the task of the latest 50,000 jobs"
    )
    ordering = ("-pk",)
    sortable_by = ()  # a click on a column's head must not sort a million rows
    show_facets = admin.ShowFacets.NEVER  # nor count them
    show_full_result_count = False
    paginator = CappedPaginator
    actions = ("retry", "set_priority", "release", "stop", "cancel", "export")
    private = UNLISTED
    linked = ("state", "tenant_queue__exact", "tenant_queue__id__exact")
    secret = ("arguments", "keyword_arguments", "shown_context")
    fields = (
        "uuid",
        ("task", "target"),
        ("tenant", "queue"),
        "arguments",
        "keyword_arguments",
        "shown_context",
    )
    readonly_fields = ("tenant", "queue", "target", "arguments", "keyword_arguments", "shown_context")

    class Media:
        css = {"all": ("tenant_slots/admin.css",)}
        js = ("tenant_slots/admin_live.js",)

    cancel = in_menu(job_actions.CANCEL)
    stop = in_menu(job_actions.STOP)
    retry = in_menu(job_actions.RETRY)
    set_priority = in_menu(job_actions.SET_PRIORITY)
    release = in_menu(job_actions.RELEASE)

    @admin.action(permissions=["export"], description=_("Export selected tenant jobs as CSV"))
    def export(self, request: HttpRequest, queryset: QuerySet[TenantJob]) -> Any:
        return export.stream(self, request, export.JOB_FIELDS, queryset, export.job_lines)

    def get_queryset(self, request: HttpRequest) -> QuerySet[TenantJob]:
        jobs = super().get_queryset(request).defer(*UNLISTED)
        own = self.own_tenant_queues(request)
        return jobs if own is None else jobs.filter(tenant_queue__in=own.order_by().values("pk"))

    def get_ordering(self, request: HttpRequest) -> Any:
        return reading_of(request).order

    def get_fields(self, request: HttpRequest, obj: TenantJob | None = None) -> Any:
        left_out = () if self.has_view_arguments_permission(request) else self.secret
        return [name for name in self.fields if name not in left_out]

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Of the list alone: an action that was confirmed is about jobs that need not match any more."""
        reading = reading_of(request)
        return search_jobs(queryset.filter(reading.common), search_term.strip(), reading), False
