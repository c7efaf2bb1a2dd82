"""The pages of bulk changes: all of them, and how far one is, with a button that stops it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import audit
from tenant_slots.admin.bases import AnyConcern
from tenant_slots.admin.bulk import report, run
from tenant_slots.admin.bulk.commission import action_of, is_of_this_place, key_of, restored
from tenant_slots.admin.bulk.report import LOST, Report
from tenant_slots.admin.bulk.start import enqueue, queue_for
from tenant_slots.admin.cells import html
from tenant_slots.admin.confirmed import Confirmed
from tenant_slots.admin.pages import address, view_name
from tenant_slots.admin.permissions import Restricted, may
from tenant_slots.admin.polling import INTERVALS, clamped, conditional
from tenant_slots.admin.refusals import NOT_TAKEN, refusal
from tenant_slots.admin.words import moment
from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.transactions import kept_unbroken
from tenant_slots.models import BulkChange, Ending, TenantJob

MOST_SHOWN = 100
"""Bulk changes on the page that lists them."""

LIVE = forms.Media(css={"all": ["tenant_slots/admin.css"]}, js=["tenant_slots/admin_live.js"])

SEES_ALL = "view_bulkchange"


class BulkPages(Restricted, AnyConcern):
    """Everybody sees their own bulk changes. Those of others, which may name any tenant, need a permission, and are not
    shown to who is restricted to some tenants.
    """

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        return [
            path("bulk/", view(self.bulk_changes_view), name=view_name(self, "bulk_changes")),
            path("bulk/<int:change_id>/", view(self.bulk_change_view), name=view_name(self, "bulk_change")),
            path("bulk/<int:change_id>/live/", view(self.bulk_live_view), name=view_name(self, "bulk_live")),
            *super().get_urls(),
        ]

    def bulk_changes_view(self, request: HttpRequest) -> HttpResponse:
        changes = list(self._bulk_changes(request).order_by("-pk")[:MOST_SHOWN])
        shown = zip(changes, report.in_short(changes, lambda one: action_of(self, one.action)), strict=True)
        context = {
            "title": gettext("Bulk changes"),
            "changes": [
                (
                    change,
                    self._bulk_title(change),
                    report.in_words(state),
                    numbers,
                    address(self, "bulk_change", change.pk),
                )
                for change, (state, numbers) in shown
            ],
        }
        return self._bulk_page(request, "admin/tenant_slots/bulk_changes.html", context)

    def bulk_change_view(self, request: HttpRequest, change_id: int) -> HttpResponse:
        change = self._bulk_change(request, change_id)
        if request.method == "POST":
            try:
                with kept_unbroken():
                    self._bulk_command(request, change)
            except NOT_TAKEN as error:
                self.message_user(request, refusal(error).text, messages.ERROR)
            return HttpResponseRedirect(request.path)
        one = self._bulk_report(request, change)
        texts = report.cells(one)
        context = {
            "title": self._bulk_title(change),
            "change": change,
            "values": _shown_values(change, action_of(self, change.action)),
            "state": one.state,
            "texts": {place.partition(".")[2]: html(texts, place, "span") for place in texts},
            "bar": html(texts, "bulk.bar", "progress"),
            "lines": [html(texts, place, "li") for place in texts if place.startswith("bulk.line.")],
            "may_command": self._may_command(request, change),
            "may_go_on": is_of_this_place(change),
            "slots_intervals": INTERVALS,
            "slots_live_url": address(self, "bulk_live", change.pk),
            "slots_every": INTERVALS[1],
            "slots_bulk_url": address(self, "bulk_changes"),
        }
        return self._bulk_page(request, "admin/tenant_slots/bulk_change.html", context)

    def bulk_live_view(self, request: HttpRequest, change_id: int) -> HttpResponse:
        """The figures of the page, as the live list has its own."""
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        texts = report.cells(self._bulk_report(request, self._bulk_change(request, change_id)))
        return conditional(request, JsonResponse({"every": clamped(request.GET.get("every")), "cells": texts}))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return super().changelist_view(
            request, {"slots_bulk_url": address(self, "bulk_changes"), **(extra_context or {})}
        )

    def _bulk_changes(self, request: HttpRequest) -> QuerySet[BulkChange]:
        if not self.has_view_permission(request):
            raise PermissionDenied
        changes: QuerySet[BulkChange] = BulkChange.objects.filter(
            model=self.opts.label_lower, site=self.admin_site.name
        )
        return changes if self._sees_all(request) else changes.filter(user_key=key_of(request.user))

    def _sees_all(self, request: HttpRequest) -> bool:
        return may(request, SEES_ALL) and self.own_tenant_queues(request) is None

    def _bulk_change(self, request: HttpRequest, change_id: int) -> BulkChange:
        change = self._bulk_changes(request).filter(pk=change_id).first()
        if change is None:
            raise Http404
        return change

    def _bulk_report(self, request: HttpRequest, change: BulkChange) -> Report:
        shows_error = may(request, "view_job_arguments")
        action, names_others = action_of(self, change.action), self._sees_all(request)
        return report.of(change, action, shows_error=shows_error, names_others=names_others)

    def _bulk_title(self, change: BulkChange) -> str:
        action = action_of(self, change.action)
        return str(action.title) if action else change.action

    def _may_command(self, request: HttpRequest, change: BulkChange) -> bool:
        """Who may do what it does may also stop it."""
        action = action_of(self, change.action)
        return action is not None and bool(getattr(self, f"has_{action.permission}_permission")(request))

    def _bulk_command(self, request: HttpRequest, change: BulkChange) -> None:
        """Stop it, or go on with it. In another schema it would end: whoever has confirmed it is none of its users."""
        if not self._may_command(request, change) or ("go_on" in request.POST and not is_of_this_place(change)):
            raise PermissionDenied
        if "stop" in request.POST:
            self._stop_bulk_change(request, change)
        elif "go_on" in request.POST and self._bulk_report(request, change).state == LOST:
            self._go_on_with_bulk_change(request, change)

    def _go_on_with_bulk_change(self, request: HttpRequest, change: BulkChange) -> None:
        """Of several who ask for it at once the first one does, and none where it has been ended meanwhile."""
        job = TenantJob.objects.filter(uuid=change.job).select_related("tenant_queue").first()
        queue = queue_for([job.tenant_queue.queue] if job else [])
        still_lost = BulkChange.objects.filter(pk=change.pk, job=change.job, ended_at=None)
        with audit.with_its_entries(self, change):
            with transaction.atomic(using=app_settings.DATABASE):
                is_first = still_lost.update(cancel_requested_at=None)
                if is_first:
                    enqueue(change, queue)
            if is_first:
                audit.note_command(self, request, change, _("bulk change gone on with:"))

    def _stop_bulk_change(self, request: HttpRequest, change: BulkChange) -> None:
        """One that nobody goes on with ends at once, as there is no job that could look."""
        is_lost = self._bulk_report(request, change).state == LOST
        unasked = BulkChange.objects.filter(pk=change.pk, ended_at=None, cancel_requested_at=None)
        with audit.with_its_entries(self, change):
            is_first = unasked.update(cancel_requested_at=DatabaseNow())
            if is_lost:
                run.end(change, Ending.STOPPED)
            if is_first or is_lost:
                audit.note_command(self, request, change, _("bulk change stopped:"))

    def _bulk_page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        common = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media + LIVE,
            "back": address(self, "changelist"),
        }
        return TemplateResponse(request, template, common | context)


def _shown_values(change: BulkChange, action: Confirmed | None) -> list[tuple[str, Any]]:
    """What was typed into the form, by the labels of its fields."""
    fields = action.form.base_fields if action else {}
    typed = {name: field for name, field in fields.items() if name != "reason" and not field.widget.is_hidden}
    values = restored(change.values)
    return [
        (str(field.label), _in_words(values[name])) for name, field in typed.items() if values.get(name) is not None
    ]


def _in_words(value: Any) -> Any:
    return moment(value) if isinstance(value, datetime) else value
