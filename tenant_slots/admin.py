"""The admin pages. Plain ModelAdmins, so that a project or a theme can subclass and register them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from tenant_slots import stats, tenants
from tenant_slots.admin_lists import CappedPaginator, TenantFilter, search_jobs
from tenant_slots.conf import app_settings
from tenant_slots.exceptions import TenantQueueInUse
from tenant_slots.models import HIGHEST_LIMIT, State, TenantJob, TenantQueue

if TYPE_CHECKING:
    QueueModelAdmin = admin.ModelAdmin[TenantQueue]
    JobModelAdmin = admin.ModelAdmin[TenantJob]
    QueueModelForm = forms.ModelForm[TenantQueue]
else:
    QueueModelAdmin = JobModelAdmin = admin.ModelAdmin
    QueueModelForm = forms.ModelForm


class TenantQueueForm(QueueModelForm):
    """Carries the values that it was loaded with, so that only what this person changed counts as changed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance._state.adding:
            self.instance._state.db = app_settings.DATABASE  # where it is looked for duplicates, and saved
            return
        for name, field in self.fields.items():
            # Somebody who posts without having loaded the form means the values as compared with the row.
            field.show_hidden_initial = not self.is_bound or self.add_initial_prefix(name) in self.data


@admin.register(TenantQueue)
class TenantQueueAdmin(QueueModelAdmin):
    """Never give this class `list_editable`: saving the list would write back every limit that it shows."""

    form = TenantQueueForm
    list_display = ("tenant_name", "queue", "usage", "waiting", "paused")
    list_filter = ("queue", "paused")
    search_fields = ("tenant",)
    actions = ("pause", "resume", "delete_selected")
    editable = ("max_job", "paused")
    key = ("tenant", "queue")
    shown = ("usage", "waiting", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[TenantQueue]:
        # Not super(), which orders before there is a `waiting` to order by.
        rows = stats.with_waiting(self.model._default_manager.get_queryset())
        return rows.order_by(*self.get_ordering(request))

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return stats.BUSIEST_FIRST

    def get_fields(self, request: HttpRequest, obj: TenantQueue | None = None) -> Any:
        return self.key + self.editable + (self.shown if obj else ())

    def get_readonly_fields(self, request: HttpRequest, obj: TenantQueue | None = None) -> Any:
        return self.key + self.shown if obj else ()

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        if db_field.name == "queue":
            names = [(name, name) for name in getattr(settings, "RQ_QUEUES", {})]
            return forms.ChoiceField(choices=names, label=capfirst(db_field.verbose_name), help_text=db_field.help_text)
        if db_field.name == "max_job":
            kwargs |= {"min_value": 0, "max_value": HIGHEST_LIMIT}
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: TenantQueue, form: Any, change: bool) -> None:
        """Writes only what was changed here, so that it reverts nothing that another person changed meanwhile."""
        if not change:
            super().save_model(request, obj, form, change)
            return
        stored = {field.name for field in obj._meta.concrete_fields}
        obj.save(update_fields=stored.intersection(form.changed_data))

    @admin.display(description=_("tenant"), ordering="tenant")
    def tenant_name(self, row: TenantQueue) -> str:
        return row.tenant or gettext("no tenant")

    @admin.display(description=_("in use"), ordering="current_job")
    def usage(self, row: TenantQueue) -> str:
        return f"{row.current_job} / {row.max_job}"

    @admin.display(description=_("waiting"), ordering="waiting")
    def waiting(self, row: Any) -> int:
        waiting: int = row.waiting
        return waiting

    @admin.action(permissions=["change"], description=_("Pause selected tenant queues"))
    def pause(self, request: HttpRequest, queryset: QuerySet[TenantQueue]) -> None:
        count = self._apply(request, queryset.filter(paused=False), tenants.pause, gettext("Paused."))
        self.message_user(
            request,
            ngettext("%(count)d tenant queue was paused.", "%(count)d tenant queues were paused.", count)
            % {"count": count},
        )

    @admin.action(permissions=["change"], description=_("Resume selected tenant queues"))
    def resume(self, request: HttpRequest, queryset: QuerySet[TenantQueue]) -> None:
        count = self._apply(request, queryset.filter(paused=True), tenants.resume, gettext("Resumed."))
        self.message_user(
            request,
            ngettext("%(count)d tenant queue was resumed.", "%(count)d tenant queues were resumed.", count)
            % {"count": count},
        )

    def _apply(
        self,
        request: HttpRequest,
        rows: QuerySet[TenantQueue],
        change: Callable[[TenantQueue], object],
        log_message: str,
    ) -> int:
        """Changes the rows in a transaction each, as none may hold several tenants' rows. Returns how many."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        changed = list(rows)
        for row in changed:
            change(row)
            self.log_change(request, row, log_message)
        return len(changed)

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
            self.message_user(request, str(error), messages.ERROR)
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
            self.message_user(request, str(error), messages.ERROR)
            return None


@admin.register(TenantJob)
class TenantJobAdmin(JobModelAdmin):
    list_display = ("uuid", "task", "tenant", "queue", "state", "enqueued_at", "started_at", "ended_at", "attempt")
    list_filter = ("state", ("tenant_queue__queue", admin.AllValuesFieldListFilter), TenantFilter)
    list_select_related = ("tenant_queue",)
    search_fields = ("uuid", "tenant_queue__tenant", "task")
    search_help_text = _("A job's id, or a part of a tenant or a task")
    ordering = ("-pk",)
    sortable_by = ()  # a click on a column's head must not sort a million rows
    show_facets = admin.ShowFacets.NEVER  # nor count them
    show_full_result_count = False
    paginator = CappedPaginator
    actions = ("cancel",)
    private = ("args", "kwargs")
    fields = (
        "uuid",
        ("task", "key"),
        ("tenant", "queue"),
        ("state", "position", "priority"),
        ("attempt", "failures", "crashes"),
        ("worker", "host"),
        ("enqueued_at", "run_after", "admitted_at"),
        ("started_at", "beat_at", "ended_at"),
        "cancel_requested_at",
        "args",
        "kwargs",
        "result",
        "error",
    )
    readonly_fields = ("tenant", "queue", "position")

    def get_queryset(self, request: HttpRequest) -> QuerySet[TenantJob]:
        return super().get_queryset(request).defer("args", "kwargs", "options", "result", "error")

    def get_fields(self, request: HttpRequest, obj: TenantJob | None = None) -> Any:
        if self.has_view_arguments_permission(request):
            return self.fields
        return [name for name in self.fields if name not in self.private]

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Who may not see the arguments may not guess them with ``?kwargs__token__startswith=a`` either."""
        if lookup.split("__")[0] in self.private:
            return request is not None and self.has_view_arguments_permission(request)
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
        return super().has_change_permission(request)

    @admin.display(description=_("tenant"))
    def tenant(self, job: TenantJob) -> str:
        return job.tenant_queue.tenant or gettext("no tenant")

    @admin.display(description=_("queue"))
    def queue(self, job: TenantJob) -> str:
        return job.tenant_queue.queue

    @admin.display(description=_("position in line"))
    def position(self, job: TenantJob) -> int | None:
        return stats.position_in_line(job)

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
        return "stopping" if job.state == State.RUNNING else "canceled"

    def _report(self, request: HttpRequest, outcomes: Counter[str]) -> None:
        count = outcomes["canceled"]
        text = ngettext("%(count)d job was canceled.", "%(count)d jobs were canceled.", count)
        self.message_user(request, text % {"count": count})
        if count := outcomes["stopping"]:
            text = ngettext(
                "%(count)d running job is being stopped.", "%(count)d running jobs are being stopped.", count
            )
            self.message_user(request, text % {"count": count})
        if count := outcomes["ended"]:
            text = ngettext("%(count)d job had already ended.", "%(count)d jobs had already ended.", count)
            self.message_user(request, text % {"count": count}, messages.WARNING)
