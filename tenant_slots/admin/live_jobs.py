"""The live list of jobs: the places of its rows that change, and the JSON that its script polls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.urls import path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import cells, job_cells
from tenant_slots.admin.bases import JobConcern
from tenant_slots.admin.pages import address, view_name
from tenant_slots.admin.permissions import Restricted
from tenant_slots.admin.polling import INTERVALS, asked_rows, clamped, conditional
from tenant_slots.admin.snapshots import seen_among, shared_job_sight, shared_jobs
from tenant_slots.db.compiled import among
from tenant_slots.models import TenantJob, TenantQueue


def column(place: str, description: Any, css: str = "") -> Callable[[Any, TenantJob], SafeString]:
    """A method of a ModelAdmin that shows one cell."""

    @admin.display(description=description)
    def shown(model_admin: Any, job: TenantJob) -> SafeString:
        return cells.html(_cells_of(job), f"{job.pk}.{place}", css=css)

    return shown


class LiveJobs(Restricted, JobConcern):
    state_shown = column("state", _("state"), css="slots-pill")
    priority_shown = column("priority", _("priority"))
    started = column("started", _("started"))
    ended = column("ended", _("ended"))
    attempt_shown = column("attempt", _("attempt"))

    @admin.display(description=_("progress"))
    def reported(self, job: TenantJob) -> SafeString:
        def place(name: str, tag: str, css: str = "") -> SafeString:
            return cells.html(_cells_of(job), f"{job.pk}.{name}", tag, css)

        lines = format_html_join("", "{}", ((place(name, "div"),) for name in job_cells.LINES))
        return format_html("{} {}{}", place("bar", "progress"), place("numbers", "bdi", "slots-number"), lines)

    def get_urls(self) -> list[Any]:
        poll = path("live/", self.admin_site.admin_view(self.live_view), name=view_name(self, "live"))
        return [poll, *super().get_urls()]

    def live_view(self, request: HttpRequest) -> HttpResponse:
        """What changes in the rows on a page, shared with whoever else looks at them in this second."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        shown = self._jobs_to_poll(request)
        texts: cells.Cells = {}
        for job in shared_jobs.get(shown, _read).values():
            texts |= job_cells.of_job(job)
        return conditional(request, JsonResponse({"every": clamped(request.GET.get("every")), "cells": texts}))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        context = {
            "slots_intervals": INTERVALS,
            "slots_every": INTERVALS[2],
            "slots_live_url": address(self, "live"),
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)

    def _jobs_to_poll(self, request: HttpRequest) -> list[int]:
        return seen_among(shared_job_sight, asked_rows(request), self.own_tenant_queues(request), _theirs)


def _theirs(pks: list[int], own: QuerySet[TenantQueue]) -> Iterable[int]:
    theirs = TenantJob.objects.filter(among(pks), tenant_queue__in=own.order_by().values("pk"))
    return theirs.order_by().values_list("pk", flat=True)


def _read(pks: list[int]) -> dict[int, TenantJob]:
    return {job.pk: job for job in TenantJob.objects.filter(among(pks)).only(*job_cells.FIELDS)}


def _cells_of(job: Any) -> cells.Cells:
    """Once per row, for all its columns."""
    if not hasattr(job, "cells"):
        job.cells = job_cells.of_job(job)
    made: cells.Cells = job.cells
    return made
