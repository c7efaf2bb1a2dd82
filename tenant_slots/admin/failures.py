"""The page of failures: failed jobs by function and class of error, and a group of them run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models.functions import Right
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin.actions import run
from tenant_slots.admin.job_actions import RETRY
from tenant_slots.admin.pages import address, page_of, view_name
from tenant_slots.admin.permissions import JobPermissions
from tenant_slots.admin.queue_charts import SPANS
from tenant_slots.admin.search import row_ids
from tenant_slots.db.compiled import among
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.stats import failures
from tenant_slots.stats.failures import Asked, Group
from tenant_slots.stats.latest import latest

ALL = "all"

TIMES: dict[str, tuple[Any, float | None]] = {
    **{span.key: (span.name, span.periods * span.seconds) for span in SPANS.values()},
    ALL: (_("All that are kept"), None),
}
"""Name and seconds by what the address says."""

FIELDS = ("task", "error", "key", "tenant")
"""That are typed."""

MOST_LISTED = 50
"""Jobs below the groups."""

ERROR_LENGTH = 500
"""Characters at the end of an error among which its last line is looked for."""


@dataclass(frozen=True)
class Filters:
    """As the address has them."""

    time: str
    typed: dict[str, str]
    group: tuple[str, str] | None = None
    """Task and class of the one group that is shown."""

    @classmethod
    def of(cls, query: QueryDict) -> Filters:
        time = query.get("time", "")
        typed = {name: query.get(name, "").strip() for name in FIELDS}
        group = (query.get("group_task", ""), query.get("group_error", "")) if "group_task" in query else None
        return cls(time if time in TIMES else "24h", typed, group)

    def asked(self) -> Asked:
        tenant = self.typed["tenant"]
        return Asked(
            TIMES[self.time][1],
            self.typed["task"],
            self.typed["error"],
            self.typed["key"],
            tuple(row_ids(tenant)) if tenant else None,
            self.group,
        )

    def address_of(self, group: Group) -> str:
        """What shows the same for one group."""
        query = QueryDict(mutable=True)
        query.update({"time": self.time, **self.typed, "group_task": group.task, "group_error": group.error_class})
        return query.urlencode()


class FailuresPage(JobPermissions):
    def get_urls(self) -> list[Any]:
        page = path("failures/", self.admin_site.admin_view(self.failures_view), name=view_name(self, "failures"))
        return [page, *super().get_urls()]

    def failures_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._retry_group(request)
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"])
        filters = Filters.of(request.GET)
        failed, are_more_jobs = latest(filters.asked().of(self._jobs(request)), failures.MOST_COUNTED)
        groups, are_more_groups = failures.groups(failed)
        trusted = self.has_view_arguments_permission(request)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": gettext("Failures"),
            "media": self.media,
            "back": address(self, "changelist"),
            "times": [(key, name) for key, (name, _) in TIMES.items()],
            "time": filters.time,
            "typed": filters.typed,
            "is_filtered": any(filters.typed.values()) or filters.group is not None,
            "groups": self._with_names(groups, filters),
            "are_more_groups": are_more_groups,
            "most_counted": failures.MOST_COUNTED if are_more_jobs else 0,
            "jobs": self._listed(request, failures.last_ones(failed, MOST_LISTED), trusted=trusted),
            "shows_error": trusted,
            "may_retry": self.has_retry_permission(request),
            "slots_job_url": f"{self.admin_site.name}:{view_name(self, 'change')}",
            "row_url": self._row_url(request),
        }
        return TemplateResponse(request, "admin/tenant_slots/failures.html", context)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return super().changelist_view(
            request, {"slots_failures_url": address(self, "failures"), **(extra_context or {})}
        )

    def _jobs(self, request: HttpRequest) -> Any:
        """Those of the viewer's tenants."""
        return self.get_queryset(request)

    def _with_names(self, groups: list[Group], filters: Filters) -> list[tuple[Group, list[tuple[Any, int]], str]]:
        """With the tenant queues that have the most, and the address that shows the group alone."""
        rows = TenantQueue.objects.in_bulk([pk for group in groups for pk, _ in group.most])
        return [
            (group, [(rows[pk], jobs) for pk, jobs in group.most if pk in rows], filters.address_of(group))
            for group in groups
        ]

    def _listed(self, request: HttpRequest, pks: list[int], *, trusted: bool) -> list[TenantJob]:
        """The jobs with the last line of their error, which only those may see who may see arguments."""
        jobs = self._jobs(request).filter(among(pks)).select_related("tenant_queue").order_by("-ended_at")
        found = list(jobs.annotate(end_of_error=Right("error", ERROR_LENGTH)) if trusted else jobs)
        for job in found:
            job.last_line = job.end_of_error.strip().rpartition("\n")[2] if trusted else ""
        return found

    def _retry_group(self, request: HttpRequest) -> HttpResponse:
        """As the action of the list does: it asks first, and what it has shown is what it does."""
        task, error_class = request.POST.get("task", ""), request.POST.get("error_class", "")
        failed = Filters.of(request.GET).asked().of(self._jobs(request))
        is_possible = "\0" not in task + error_class
        group = failures.of_group(failed, task, error_class) if is_possible else failed.none()
        return run(self, request, group, RETRY) or HttpResponseRedirect(request.get_full_path())

    def _row_url(self, request: HttpRequest) -> str:
        return page_of(self, request, TenantQueue, "change")
