"""The page of tasks: how long their jobs ran lately."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext

from tenant_slots.admin.charts import figure
from tenant_slots.admin.pages import address, view_name
from tenant_slots.admin.permissions import JobPermissions
from tenant_slots.admin.words import duration
from tenant_slots.stats import run_times


class TasksPage(JobPermissions):
    def get_urls(self) -> list[Any]:
        page = path("tasks/", self.admin_site.admin_view(self.tasks_view), name=view_name(self, "tasks"))
        return [page, *super().get_urls()]

    def tasks_view(self, request: HttpRequest) -> TemplateResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        times, are_more = run_times.run_times(self.get_queryset(request))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": gettext("Tasks"),
            "media": self.media,
            "back": address(self, "changelist"),
            "times": [(one, shown(one.p50), shown(one.p95)) for one in times],
            "sample": run_times.SAMPLE if are_more else 0,
        }
        return TemplateResponse(request, "admin/tenant_slots/tasks.html", context)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return super().changelist_view(request, {"slots_tasks_url": address(self, "tasks"), **(extra_context or {})})


def shown(seconds: float) -> str:
    """Two digits of what takes less than a minute: most jobs do."""
    return f"{figure(seconds)} s" if seconds < 60 else duration(seconds)
