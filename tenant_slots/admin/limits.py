"""Setting and resetting a limit: in place from the list, and on pages of their own without JavaScript."""

from __future__ import annotations

import logging
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import path
from django.utils.translation import gettext

from tenant_slots import logs, tenants
from tenant_slots.admin import audit, cells
from tenant_slots.admin.bases import QueueConcern
from tenant_slots.admin.changes import CONFLICT, conflict_text, name_of, set_limit_and_share
from tenant_slots.admin.forms import LimitAndShareForm, LimitForm, ResetForm, as_typed
from tenant_slots.admin.pages import address, confirmation, view_name
from tenant_slots.admin.permissions import QueuePermissions
from tenant_slots.admin.refusals import NOT_TAKEN, Refusal, refusal
from tenant_slots.admin.snapshots import forget_shared, shared_rows, worker_time_for
from tenant_slots.admin.words import effect_of, origin
from tenant_slots.db.transactions import kept_unbroken
from tenant_slots.exceptions import StaleVersion, TenantSlotsError
from tenant_slots.models import TenantQueue
from tenant_slots.stats import held, rows

logger = logging.getLogger("tenant_slots")


class LimitPages(QueuePermissions, QueueConcern):
    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        return [
            path("<path:object_id>/limit/", view(self.limit_view), name=view_name(self, "limit")),
            path("<path:object_id>/reset/", view(self.reset_view), name=view_name(self, "reset")),
            *super().get_urls(),
        ]

    def limit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Set a limit, for good or until a time. The script of the live list asks for JSON."""
        row = self._row_to_limit(request, object_id)
        initial = {"max_job": row.max_job, "until": row.override_until, "share": row.share, "version": row.version}
        initial["shown_until"] = as_typed(row.override_until)
        form = LimitAndShareForm(request.POST if request.method == "POST" else None, initial=initial)
        if request.method == "POST" and form.is_valid():
            try:
                with kept_unbroken(), audit.with_its_entries(self, row):
                    changes = set_limit_and_share(row, by=name_of(request), **form.cleaned_data)
                    audit.log_changes(self, request, row, changes)
            except StaleVersion as error:
                return self._conflict(request, form, error)
            except NOT_TAKEN as error:
                return self._not_taken(request, object_id, row, form, refusal(error))
            return self._limited(request, row)
        if request.method == "POST" and wants_json(request):
            return JsonResponse({"errors": form.errors_by_name()}, status=400)
        return self._limit_page(request, row, form)

    def reset_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Give the row the default limit, after a page that says which one it is."""
        row = self._row_to_limit(request, object_id)
        try:
            default = tenants.default_max_job(row.tenant, row.queue)
        except Exception as error:  # of a callable of the project
            return self._without_default(request, row, error)
        form = ResetForm(request.POST if request.method == "POST" else None, initial={"version": row.version})
        status = 200
        if request.method == "POST" and form.is_valid():
            try:
                with kept_unbroken(), audit.with_its_entries(self, row):
                    changes = row.reset_to_default(by=name_of(request), **form.cleaned_data)
                    audit.log_changes(self, request, row, changes)
            except StaleVersion as error:
                status = refused(form, error, default)
            except NOT_TAKEN as error:
                text, status = refusal(error)
                form.add_error(None, text)
            else:
                return self._limited(request, row)
        text = gettext("The limit will be %(limit)s, the default.") % {"limit": default}
        effects = [text, effect_of(default, held.running(row))]
        return self._page(request, row, form, gettext("Reset the limit to the default"), effects, status)

    def _without_default(self, request: HttpRequest, row: TenantQueue, error: Exception) -> HttpResponse:
        """The text of an error of the project's own is for the log."""
        about_row = logs.about_named(tenant=row.tenant, queue=row.queue)
        logger.exception("a limit cannot be reset, because its default is not known", extra=about_row)
        raised = gettext("DEFAULT_MAX_JOB raised %(error)s.") % {"error": type(error).__name__}
        text = gettext("The limit of %(row)s stays %(limit)s, as its default is not known: %(problem)s")
        problem = str(error) if isinstance(error, TenantSlotsError) else raised
        facts = {"row": row, "limit": row.max_job, "problem": problem}
        self.message_user(request, text % facts, messages.ERROR)
        return HttpResponseRedirect(address(self, "changelist"))

    def _row_to_limit(self, request: HttpRequest, object_id: str) -> TenantQueue:
        row = self.get_object(request, object_id)
        if row is None or not self.has_set_limit_permission(request, row):
            raise PermissionDenied
        return row

    def _limited(self, request: HttpRequest, row: TenantQueue) -> HttpResponse:
        effect = effect_of(row.max_job, held.running(row))
        fresh = rows.measured([row.pk])
        forget_shared()
        shared_rows.put(fresh)
        if wants_json(request):
            found = cells.of_row(fresh[row.pk], worker_time_for(self, request))
            return JsonResponse({"effect": effect, "cells": found})
        text = gettext("Limit of %(row)s: %(limit)s.") % {"row": row, "limit": row.max_job}
        self.message_user(request, f"{text} {effect}")
        return HttpResponseRedirect(address(self, "changelist"))

    def _conflict(self, request: HttpRequest, form: LimitForm, error: Any) -> HttpResponse:
        text = conflict_text(error.tenant_queue, form.cleaned_data["max_job"])
        if wants_json(request):
            until = as_typed(error.tenant_queue.override_until)
            theirs = {"max_job": error.max_job, "version": error.version, "until": until}
            yours = {"max_job": form.cleaned_data["max_job"]}
            return JsonResponse({"message": text, "theirs": theirs, "yours": yours}, status=CONFLICT)
        status = refused(form, error, form.cleaned_data["max_job"])
        return self._limit_page(request, error.tenant_queue, form, status)

    def _not_taken(
        self, request: HttpRequest, object_id: str, row: TenantQueue, form: LimitAndShareForm, why: Refusal
    ) -> HttpResponse:
        """What the row was to become in memory is forgotten."""
        form.add_error(None, why.text)
        if wants_json(request):
            return JsonResponse({"errors": form.errors_by_name()}, status=why.status)
        return self._limit_page(request, self.get_object(request, object_id) or row, form, why.status)

    def _limit_page(self, request: HttpRequest, row: TenantQueue, form: LimitForm, status: int = 200) -> HttpResponse:
        text = gettext("The limit is %(limit)s (%(origin)s).") % {"limit": row.max_job, "origin": origin(row)}
        running = held.running(row)
        effects = [text, gettext("Running: %(count)s. A lower limit stops none of them.") % {"count": running}]
        return self._page(request, row, form, gettext("Set limit"), effects, status)

    def _page(
        self, request: HttpRequest, row: TenantQueue, form: forms.Form, title: str, effects: list[str], status: int
    ) -> HttpResponse:
        return confirmation(
            self,
            request,
            title=title,
            subtitle=str(row),
            effects=effects,
            objects=[row],
            form=form,
            status=status,
        )


def refused(form: forms.Form, error: Any, yours: int) -> int:
    """Show both values; who sends the form again has seen them. Returns the status of the answer."""
    form.add_error(None, conflict_text(error.tenant_queue, yours))
    shown = {"version": str(error.version), "shown_until": as_typed(error.tenant_queue.override_until)}
    form.data = {**form.data.dict(), **shown}  # type: ignore[attr-defined]
    return CONFLICT


def wants_json(request: HttpRequest) -> bool:
    return request.headers.get("Accept", "").startswith("application/json")
