"""The admin pages. Plain ModelAdmins, so that a project or a theme can subclass and register them again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.models import LogEntry
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from tenant_slots import (
    admin_actions,
    admin_arguments,
    admin_audit,
    admin_cells,
    admin_detail,
    admin_export,
    admin_job_actions,
    admin_progress,
    admin_queue_actions,
    admin_reasons,
)
from tenant_slots.admin_limits import LimitEditing, TenantQueueForm, moment_field
from tenant_slots.admin_lists import CappedPaginator, Restricted, TenantFilter, search_jobs
from tenant_slots.admin_live import LiveList, QueueFilter, StateFilter
from tenant_slots.exceptions import TenantQueueInUse
from tenant_slots.models import HIGHEST_LIMIT, State, TenantJob, TenantQueue
from tenant_slots.stats import position_in_backlog
from tenant_slots.stats.tenant_queues import BUSIEST_FIRST, with_waiting

if TYPE_CHECKING:
    QueueModelAdmin = admin.ModelAdmin[TenantQueue]
    JobModelAdmin = admin.ModelAdmin[TenantJob]
else:
    QueueModelAdmin = JobModelAdmin = admin.ModelAdmin


def in_use(error: TenantQueueInUse) -> str:
    """The error in the viewer's language."""
    return gettext(
        "%(row)s cannot be deleted: %(holding)s jobs hold its slots and %(waiting)s wait. Let them end first."
    ) % {"row": error.tenant_queue, "holding": error.holding, "waiting": error.waiting}


@admin.register(TenantQueue)
class TenantQueueAdmin(LimitEditing, LiveList, QueueModelAdmin):
    """Never give this class `list_editable`: saving the list would write back every limit that it shows."""

    form = TenantQueueForm
    list_display = (
        "tenant_name", "queue", "state", "usage", "edit", "waiting", "oldest_wait", "start_delay", "failed", "activity",
        "running", "queued", "origin",
    )  # fmt: skip
    list_filter = (StateFilter, QueueFilter)
    search_fields = ("tenant",)
    search_help_text = _("A part of a tenant")
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    actions = ("pause", "resume", "set_limit", "cancel_waiting", "retry_failed", "export", "delete_selected")
    editable = (
        "max_job", "override_until", "max_job_per_key", "max_waiting", "paused", "resume_at", "reason", "seen_version",
    )  # fmt: skip
    key = ("tenant", "queue")
    added = ("max_job", "max_job_per_key", "max_waiting", "paused")
    shown = ("usage", "waiting", "origin", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[TenantQueue]:
        # Not super(), which orders before there is a `waiting` to order by.
        own = self.tenant_queues_for(request)
        rows = with_waiting(self.model._default_manager.get_queryset() if own is None else own)
        return rows.order_by(*self.get_ordering(request))

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return BUSIEST_FIRST

    def get_list_display(self, request: HttpRequest) -> Any:
        return [name for name in self.list_display if name != "edit" or self.has_set_limit_permission(request)]

    def get_fields(self, request: HttpRequest, obj: TenantQueue | None = None) -> Any:
        if obj is None:
            return self.key + self.added
        if self.has_change_permission(request, obj):
            return self.key + self.editable + self.shown
        return self.key + tuple(name for name in self.editable if name not in ("reason", "seen_version")) + self.shown

    def get_readonly_fields(self, request: HttpRequest, obj: TenantQueue | None = None) -> Any:
        return self.key + self.shown if obj else ()

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        if db_field.name == "queue":
            names = [(name, name) for name in getattr(settings, "RQ_QUEUES", {})]
            return forms.ChoiceField(choices=names, label=capfirst(db_field.verbose_name), help_text=db_field.help_text)
        if db_field.name in ("override_until", "resume_at"):
            return moment_field(label=capfirst(db_field.verbose_name), help_text=db_field.help_text)
        if db_field.name == "max_job":
            kwargs |= {"min_value": 0, "max_value": HIGHEST_LIMIT}
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        context = {**self._detail(request, object_id), **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)

    def _detail(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        row = self.get_object(request, object_id)
        if row is None or not self.has_view_permission(request, row):
            return {}
        span = admin_detail.SPANS.get(request.GET.get("span", ""), admin_detail.SPANS["1h"])
        jobs_seen = request.user.has_perm("tenant_slots.view_tenantjob")
        context: dict[str, Any] = {
            "slots_span": span,
            "slots_spans": admin_detail.SPANS.values(),
            "slots_charts": admin_detail.charts_of(row, span),
            "slots_holders": admin_detail.holding_of(row),
            "slots_line": admin_detail.backlog_of(row),
            "slots_history": admin_audit.history_of(row),
            "slots_job_url": f"{self.admin_site.name}:tenant_slots_tenantjob_change" if jobs_seen else "",
        }
        if self.has_set_limit_permission(request, row):
            context |= {"slots_limit_url": self._url("limit", row), "slots_reset_url": self._url("reset", row)}
        return context

    def _url(self, page: str, row: TenantQueue) -> str:
        opts = self.opts
        return reverse(f"{self.admin_site.name}:{opts.app_label}_{opts.model_name}_{page}", args=[row.pk])

    @admin.display(description=_("edit"))
    def edit(self, row: TenantQueue) -> SafeString:
        cell = self._cells(row)[f"{row.pk}.edit"]
        return format_html(
            '<a href="{}" data-slots="{}.edit" data-slots-edit="{}"{}>{}</a>',
            self._url("limit", row),
            row.pk,
            str(row),
            admin_cells.attributes(cell),
            gettext("Set limit"),
        )

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "pause") or self.has_change_permission(request)

    def has_resume_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "resume") or self.has_change_permission(request)

    def has_cancel_waiting_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "cancel_waiting")

    def has_retry_failed_permission(self, request: HttpRequest) -> bool:
        allowed: bool = request.user.has_perm("tenant_slots.retry_tenantjob")
        return allowed

    def has_export_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "export")

    def _may(self, request: HttpRequest, what: str) -> bool:
        allowed: bool = request.user.has_perm(f"tenant_slots.{what}_tenantqueue")
        return allowed

    @admin.action(permissions=["pause"], description=_("Pause selected tenant queues"))
    def pause(self, request: HttpRequest, queryset: QuerySet[TenantQueue]) -> HttpResponse | None:
        return admin_actions.run(self, request, queryset, admin_queue_actions.PAUSE)

    @admin.action(permissions=["resume"], description=_("Resume selected tenant queues"))
    def resume(self, request: HttpRequest, queryset: QuerySet[TenantQueue]) -> HttpResponse | None:
        return admin_actions.run(self, request, queryset, admin_queue_actions.RESUME)

    @admin.action(permissions=["set_limit"], description=_("Set the limit of selected tenant queues"))
    def set_limit(self, request: HttpRequest, queryset: QuerySet[TenantQueue]) -> HttpResponse | None:
        return admin_actions.run(self, request, queryset, admin_queue_actions.SET_LIMIT)

    @admin.action(permissions=["cancel_waiting"], description=_("Cancel the waiting jobs of selected tenant queues"))
    def cancel_waiting(self, request: HttpRequest, queryset: QuerySet[TenantQueue]) -> HttpResponse | None:
        return admin_actions.run(self, request, queryset, admin_queue_actions.CANCEL_WAITING)

    @admin.action(permissions=["retry_failed"], description=_("Retry the failed jobs of selected tenant queues"))
    def retry_failed(self, request: HttpRequest, queryset: QuerySet[TenantQueue]) -> HttpResponse | None:
        return admin_actions.run(self, request, queryset, admin_queue_actions.RETRY_FAILED)

    @admin.action(permissions=["export"], description=_("Export selected tenant queues as CSV"))
    def export(self, request: HttpRequest, queryset: QuerySet[TenantQueue]) -> Any:
        return admin_export.export(self, request, admin_export.QUEUE_FIELDS, admin_export.queue_rows(queryset))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Counts the jobs that go with their row instead of listing them: there may be a million."""
        jobs = TenantJob.objects.filter(tenant_queue__in=[row.pk for row in objs]).count()
        counts = {self.opts.verbose_name_plural: len(objs), TenantJob._meta.verbose_name_plural: jobs}
        lacking = {str(self.opts.verbose_name) for row in objs if not self.has_delete_permission(request, row)}
        return [str(row) for row in objs], counts, lacking, []

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        try:
            return super().delete_view(request, object_id, extra_context)
        except TenantQueueInUse as error:
            self.message_user(request, in_use(error), messages.ERROR)
            opts = self.opts
            change_page = f"{self.admin_site.name}:{opts.app_label}_{opts.model_name}_change"
            return HttpResponseRedirect(reverse(change_page, args=[object_id]))

    @admin.action(permissions=["delete"], description=_("Delete selected %(verbose_name_plural)s"))
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[TenantQueue]) -> HttpResponse | None:
        """All or none of them. The transaction takes back the log entries that Django writes beforehand."""
        try:
            with transaction.atomic(using=router.db_for_write(LogEntry)):
                return delete_selected(self, request, queryset)
        except TenantQueueInUse as error:
            self.message_user(request, in_use(error), messages.ERROR)
            return None


@admin.register(TenantJob)
class TenantJobAdmin(Restricted, JobModelAdmin):
    list_display = (
        "uuid", "what", "for_whom", "queue", "state", "reported", "priority", "enqueued_at", "started_at", "ended_at",
        "attempt",
    )  # fmt: skip
    list_filter = ("state", ("tenant_queue__queue", admin.AllValuesFieldListFilter), TenantFilter)
    list_select_related = ("tenant_queue",)
    search_fields = ("uuid", "tenant_queue__tenant", "task")
    search_help_text = _("A job's id, or a part of a tenant or a task")
    ordering = ("-pk",)
    sortable_by = ()  # a click on a column's head must not sort a million rows
    show_facets = admin.ShowFacets.NEVER  # nor count them
    show_full_result_count = False
    paginator = CappedPaginator
    actions = ("cancel", "stop", "retry", "set_priority", "release", "export")
    private = ("args", "kwargs", "options", "result", "error")
    """Nobody can search or filter by these: a hidden value could be guessed letter by letter."""
    secret = ("arguments", "keyword_arguments", "error")
    fields = (
        "uuid",
        ("task", "target", "key"),
        ("tenant", "queue"),
        ("state", "position", "priority"),
        "why_waiting",
        ("attempt", "failures", "crashes"),
        ("worker", "host"),
        ("enqueued_at", "run_after", "admitted_at"),
        ("started_at", "beat_at", "ended_at"),
        "cancel_requested_at",
        "progress_bar",
        "statistics",
        "arguments",
        "keyword_arguments",
        "shown_result",
        "error",
        "last_line_of_error",
    )
    readonly_fields = (
        "tenant", "queue", "target", "position", "why_waiting", "progress_bar", "statistics", "arguments",
        "keyword_arguments", "shown_result", "last_line_of_error",
    )  # fmt: skip

    class Media:
        css = {"all": ("tenant_slots/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[TenantJob]:
        jobs = super().get_queryset(request).defer("args", "kwargs", "options", "result", "error")
        own = self.tenant_queues_for(request)
        return jobs if own is None else jobs.filter(tenant_queue__in=own.order_by().values("pk"))

    def get_fields(self, request: HttpRequest, obj: TenantJob | None = None) -> Any:
        left_out = {"last_line_of_error"} if self.has_view_arguments_permission(request) else {*self.secret}
        if obj is None or obj.state not in (State.SCHEDULED, State.WAITING, State.QUEUED):
            left_out.add("why_waiting")
        return [name for name in self.fields if name not in left_out]

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Nobody guesses what is hidden with ``?kwargs__token__startswith=a``."""
        if lookup.split("__")[0] in self.private:
            return False
        return super().lookup_allowed(lookup, value, request)  # type: ignore[arg-type]

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        return search_jobs(queryset, search_term.strip()), False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: TenantJob | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: TenantJob | None = None) -> bool:
        return False

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """For the action: no field of a job can be changed, but it can be canceled with the change permission."""
        return super().has_change_permission(request)

    def has_view_arguments_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "view_job_arguments")

    def has_stop_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "stop_tenantjob")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "retry_tenantjob")

    def has_prioritize_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "prioritize_tenantjob")

    def has_release_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "release_tenantjob") or self.has_force_release_permission(request)

    def has_force_release_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "force_release_tenantjob")

    def has_export_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "export_tenantjob")

    def _may(self, request: HttpRequest, codename: str) -> bool:
        allowed: bool = request.user.has_perm(f"tenant_slots.{codename}")
        return allowed

    @admin.display(description=_("tenant"))
    def tenant(self, job: TenantJob) -> str:
        return job.tenant_queue.tenant or gettext("no tenant")

    @admin.display(description=_("queue"))
    def queue(self, job: TenantJob) -> str:
        own, lane = job.tenant_queue.queue, job.rq_queue_name
        return own if own == lane else f"{own} → {lane}"

    @admin.display(description=_("object"), empty_value="")
    def target(self, job: TenantJob) -> str:
        return f"{job.object_model} {job.object_pk}".strip()

    @admin.display(description=_("task"))
    def what(self, job: TenantJob) -> SafeString:
        """The task, which may break after its dots, and the object of a method."""
        task = format_html_join(SafeString(".<wbr>"), "{}", ((part,) for part in job.task.split(".")))
        return format_html("{}<br>{}", task, target) if (target := self.target(job)) else task

    @admin.display(description=_("tenant"))
    def for_whom(self, job: TenantJob) -> str:
        return format_html("{}<br>{}", self.tenant(job), job.key) if job.key else self.tenant(job)

    @admin.display(description=_("position in line"))
    def position(self, job: TenantJob) -> int | None:
        return position_in_backlog(job)

    @admin.display(description=_("why is this job waiting?"))
    def why_waiting(self, job: TenantJob) -> SafeString:
        return format_html_join(SafeString("<br>"), "{}", ((text,) for text in admin_reasons.why_waiting(job)))

    @admin.display(description=_("progress"))
    def reported(self, job: TenantJob) -> str:
        return admin_progress.bar_and_first_statistics(job)

    @admin.display(description=_("progress"))
    def progress_bar(self, job: TenantJob) -> str:
        return admin_progress.bar(job)

    @admin.display(description=_("statistics"))
    def statistics(self, job: TenantJob) -> str:
        return admin_progress.statistics(job)

    @admin.display(description=_("arguments"))
    def arguments(self, job: TenantJob) -> SafeString:
        return format_html("<pre>{}</pre>", admin_arguments.shown_args(job))

    @admin.display(description=_("keyword arguments"))
    def keyword_arguments(self, job: TenantJob) -> SafeString:
        return format_html("<pre>{}</pre>", admin_arguments.shown_kwargs(job))

    @admin.display(description=_("result"))
    def shown_result(self, job: TenantJob) -> SafeString:
        return format_html("<pre>{}</pre>", admin_arguments.shown_result(job))

    @admin.display(description=_("last line of the error"))
    def last_line_of_error(self, job: TenantJob) -> str:
        """For who may not see arguments: a traceback may hold some."""
        return job.error.strip().rpartition("\n")[2]

    @admin.action(permissions=["stop"], description=_("Stop selected running jobs"))
    def stop(self, request: HttpRequest, queryset: QuerySet[TenantJob]) -> HttpResponse | None:
        return admin_actions.run(self, request, queryset, admin_job_actions.STOP)

    @admin.action(permissions=["retry"], description=_("Retry selected failed jobs"))
    def retry(self, request: HttpRequest, queryset: QuerySet[TenantJob]) -> HttpResponse | None:
        return admin_actions.run(self, request, queryset, admin_job_actions.RETRY)

    @admin.action(permissions=["prioritize"], description=_("Change the priority of selected waiting jobs"))
    def set_priority(self, request: HttpRequest, queryset: QuerySet[TenantJob]) -> HttpResponse | None:
        return admin_actions.run(self, request, queryset, admin_job_actions.SET_PRIORITY)

    @admin.action(permissions=["release"], description=_("Release the stuck slots of selected jobs"))
    def release(self, request: HttpRequest, queryset: QuerySet[TenantJob]) -> HttpResponse | None:
        return admin_actions.run(self, request, queryset, admin_job_actions.RELEASE)

    @admin.action(permissions=["export"], description=_("Export selected tenant jobs as CSV"))
    def export(self, request: HttpRequest, queryset: QuerySet[TenantJob]) -> Any:
        return admin_export.export(self, request, admin_export.JOB_FIELDS, admin_export.job_rows(queryset))

    @admin.action(permissions=["cancel"], description=_("Cancel selected tenant jobs"))
    def cancel(self, request: HttpRequest, queryset: QuerySet[TenantJob]) -> None:
        if not self.has_cancel_permission(request):
            raise PermissionDenied
        outcomes = Counter(self._cancel(request, job) for job in queryset)
        self._report(request, outcomes)

    def _cancel(self, request: HttpRequest, job: TenantJob) -> str:
        if not job.cancel():
            return "ended"
        self.log_change(request, job, gettext("Canceled."))
        if job.state != State.RUNNING:
            return "canceled"
        return admin_job_actions.ASKED if job.is_hold else "stopping"

    def _report(self, request: HttpRequest, outcomes: Counter[str]) -> None:
        count = outcomes["canceled"]
        text = ngettext("%(count)d job was canceled.", "%(count)d jobs were canceled.", count)
        self.message_user(request, text % {"count": count})
        if count := outcomes["stopping"]:
            text = ngettext(
                "%(count)d running job is being stopped.", "%(count)d running jobs are being stopped.", count
            )
            self.message_user(request, text % {"count": count})
        if count := outcomes[admin_job_actions.ASKED]:
            self.message_user(request, admin_job_actions.asked(count))
        if count := outcomes["ended"]:
            text = ngettext("%(count)d job had already ended.", "%(count)d jobs had already ended.", count)
            self.message_user(request, text % {"count": count}, messages.WARNING)
