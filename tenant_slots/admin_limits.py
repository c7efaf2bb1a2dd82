"""Editing a limit: in place from the list, on a page of its own without JavaScript, and on the change form."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from tenant_slots import admin_audit, admin_cells, tenants
from tenant_slots.admin_live import forget_shared, shared_rows
from tenant_slots.admin_words import NOTHING, effect_of, origin
from tenant_slots.conf import app_settings
from tenant_slots.exceptions import StaleVersion
from tenant_slots.limits import Change
from tenant_slots.models import HIGHEST_LIMIT, LimitSource, TenantQueue
from tenant_slots.stats import rows

if TYPE_CHECKING:
    Base = admin.ModelAdmin[TenantQueue]
    QueueModelForm = forms.ModelForm[TenantQueue]
else:
    Base = object
    QueueModelForm = forms.ModelForm

CONFLICT = 409

LONGEST_REASON = 200

STYLED = "slots-input"
"""The class of our own inputs, which a theme that replaces the widgets of model fields knows nothing of."""


def reason_field() -> forms.CharField:
    widget = forms.TextInput(attrs={"class": STYLED})
    return forms.CharField(
        label=_("Reason"),
        max_length=LONGEST_REASON,
        required=False,
        help_text=_("Kept in the history."),
        widget=widget,
    )


def future_field(label: Any, help_text: Any) -> forms.DateTimeField:
    return moment_field(label, help_text, validators=[require_future])


def moment_field(label: Any, help_text: Any, **options: Any) -> forms.DateTimeField:
    """One input with one label, which the browser helps with; Django's two have a label for none of them."""
    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "class": STYLED}, format="%Y-%m-%dT%H:%M")
    return forms.DateTimeField(label=label, required=False, help_text=help_text, widget=widget, **options)


def require_future(time: datetime) -> None:
    if time <= timezone.now():
        raise ValidationError(_("This time has passed already."))


class LimitForm(forms.Form):
    """A number, how long it is to last, why, and which version of the row the person has seen."""

    max_job = forms.IntegerField(
        label=_("Limit"),
        min_value=0,
        max_value=HIGHEST_LIMIT,
        widget=forms.NumberInput(attrs={"class": STYLED}),
    )
    until = future_field(_("Until"), _("The limit of now comes back then. Empty: the new one stays."))
    reason = reason_field()
    version = forms.IntegerField(widget=forms.HiddenInput)


class ReasonForm(forms.Form):
    reason = reason_field()


class ResetForm(ReasonForm):
    version = forms.IntegerField(widget=forms.HiddenInput)


class TenantQueueForm(QueueModelForm):
    """Carries the values and the version that it was loaded with, so that it reverts nothing that it does not show."""

    reason = reason_field()
    seen_version = forms.IntegerField(required=False, widget=forms.HiddenInput)
    conflict = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance._state.adding:
            self.instance._state.db = app_settings.DATABASE  # where it is looked for duplicates, and saved
            return
        self.stored_version, self.stored_limit = self.instance.version, self.instance.max_job
        self.initial["seen_version"] = self.instance.version
        for name, field in self.fields.items():
            # Somebody who posts without having loaded the form means the values as compared with the row.
            sent = not self.is_bound or self.add_initial_prefix(name) in self.data
            field.show_hidden_initial = sent and name not in ("reason", "seen_version")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for name in ("override_until", "resume_at"):
            if name in self.changed_data and cleaned.get(name):
                self._require_future(name, cleaned[name])
        seen = cleaned.get("seen_version")
        if seen is not None and not self.instance._state.adding and seen != self.stored_version:
            self.conflict = True
            raise ValidationError(conflict_text(self.stored_limit, cleaned.get("max_job")), code="conflict")
        return cleaned

    def _require_future(self, name: str, time: datetime) -> None:
        try:
            require_future(time)
        except ValidationError as error:
            self.add_error(name, error)


def conflict_text(theirs: int, yours: int | None) -> str:
    return gettext(
        "Somebody else has changed this row meanwhile. Their limit: %(theirs)s. Yours: %(yours)s. Nothing was saved."
    ) % {"theirs": theirs, "yours": NOTHING if yours is None else yours}


class LimitEditing(Base):
    """For a ModelAdmin of TenantQueue."""

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        view = self.admin_site.admin_view
        return [
            path("<path:object_id>/limit/", view(self.limit_view), name=f"{name}_limit"),
            path("<path:object_id>/reset/", view(self.reset_view), name=f"{name}_reset"),
            *super().get_urls(),
        ]

    def has_set_limit_permission(self, request: HttpRequest, obj: TenantQueue | None = None) -> bool:
        """Who may change the whole row may set its limit too."""
        own: bool = request.user.has_perm(f"{self.opts.app_label}.set_limit_tenantqueue")
        return own or self.has_change_permission(request, obj)

    def limit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Set a limit, for good or until a time. Its script in the list asks for JSON."""
        row = self._row_to_limit(request, object_id)
        form = LimitForm(request.POST if request.method == "POST" else None, initial=initial_of(row))
        if request.method == "POST" and form.is_valid():
            try:
                changes = set_limit(request, row, **form.cleaned_data)
            except StaleVersion as error:
                return self._conflict(request, form, error)
            admin_audit.log_changes(self, request, row, changes)
            return self._limited(request, row)
        if request.method == "POST" and wants_json(request):
            return JsonResponse({"errors": form.errors}, status=400)
        return self._limit_page(request, row, form)

    def reset_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Give the row the default limit, after a page that says which one it is."""
        row = self._row_to_limit(request, object_id)
        default = tenants.default_max_job(row.tenant, row.queue)
        form = ResetForm(request.POST if request.method == "POST" else None, initial={"version": row.version})
        status = 200
        if request.method == "POST" and form.is_valid():
            try:
                changes = tenants.reset_to_default(row, by=name_of(request), **form.cleaned_data)
            except StaleVersion as error:
                status = refused(form, error, default)
            else:
                admin_audit.log_changes(self, request, row, changes)
                return self._limited(request, row)
        text = gettext("The limit becomes %(limit)s, the default.") % {"limit": default}
        effects = [text, effect_of(default, row.current_job)]
        return self._page(request, row, form, gettext("Reset the limit to the default"), effects, status)

    def save_model(self, request: HttpRequest, obj: TenantQueue, form: Any, change: bool) -> None:
        """Writes only what was changed here, and only while nobody else has changed the row since."""
        if not change:
            obj.limit_source, obj.limit_set_by = LimitSource.SET, name_of(request)
            super().save_model(request, obj, form, change)
            return
        form.changes = changes_of_form(request, obj, form)
        if any(one.what == "limit" for one in form.changes):
            self.message_user(request, effect_of(obj.max_job, obj.current_job))
        forget_shared()

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        if add:
            return super().construct_change_message(request, form, formsets, add)
        messages: list[Any] = []
        for one in getattr(form, "changes", ()):
            facts = {**admin_audit.in_words(one), "reason": one.reason}
            messages.append({"changed": {"fields": [admin_audit.sentence(**facts)], **facts}})
        return messages

    def changeform_view(self, request: HttpRequest, object_id: Any = None, *args: Any, **kwargs: Any) -> Any:
        try:
            response = super().changeform_view(request, object_id, *args, **kwargs)
        except StaleVersion as error:
            # It came between our look at the version and our lock: the form is shown anew with what is stored.
            self.message_user(request, conflict_text(error.max_job, None), messages.ERROR)  # type: ignore[attr-defined]
            return HttpResponseRedirect(request.get_full_path())
        context = getattr(response, "context_data", None) or {}
        if "adminform" in context and getattr(context["adminform"].form, "conflict", False):
            response.status_code = CONFLICT
        return response

    def _row_to_limit(self, request: HttpRequest, object_id: str) -> TenantQueue:
        row = self.get_object(request, object_id)
        if row is None or not self.has_set_limit_permission(request, row):
            raise PermissionDenied
        return row

    def _limited(self, request: HttpRequest, row: TenantQueue) -> HttpResponse:
        effect = effect_of(row.max_job, row.current_job)
        fresh = rows.measured([row.pk])
        forget_shared()
        shared_rows.put(fresh)
        if wants_json(request):
            return JsonResponse({"effect": effect, "cells": admin_cells.of_row(fresh[row.pk])})
        text = gettext("%(row)s: limit %(limit)s.") % {"row": row, "limit": row.max_job}
        self.message_user(request, f"{text} {effect}")
        return HttpResponseRedirect(list_page(self))

    def _conflict(self, request: HttpRequest, form: LimitForm, error: Any) -> HttpResponse:
        text = conflict_text(error.max_job, form.cleaned_data["max_job"])
        if wants_json(request):
            theirs = {"max_job": error.max_job, "version": error.version}
            yours = {"max_job": form.cleaned_data["max_job"]}
            return JsonResponse({"message": text, "theirs": theirs, "yours": yours}, status=CONFLICT)
        status = refused(form, error, form.cleaned_data["max_job"])
        return self._limit_page(request, error.tenant_queue, form, status)

    def _limit_page(self, request: HttpRequest, row: TenantQueue, form: LimitForm, status: int = 200) -> HttpResponse:
        text = gettext("The limit is %(limit)s (%(origin)s).") % {
            "limit": row.max_job,
            "origin": origin(row),
        }
        effects = [text, gettext("Running: %(count)s. A lower limit stops none of them.") % {"count": row.current_job}]
        return self._page(request, row, form, gettext("Set limit"), effects, status)

    def _page(
        self,
        request: HttpRequest,
        row: TenantQueue,
        form: forms.Form,
        title: str,
        effects: list[str],
        status: int = 200,
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "subtitle": str(row),
            "objects": [row],
            "effects": effects,
            "form": form,
            "media": self.media,
            "back": list_page(self),
        }
        return TemplateResponse(request, "admin/tenant_slots/confirm.html", context, status=status)


def refused(form: forms.Form, error: Any, yours: int) -> int:
    """Show both values; who sends the form again has seen them. Returns the status of the answer."""
    form.add_error(None, conflict_text(error.max_job, yours))
    form.data = {**form.data.dict(), "version": str(error.version)}  # type: ignore[attr-defined]
    return CONFLICT


def set_limit(
    request: HttpRequest, row: TenantQueue, *, max_job: int, until: datetime | None, reason: str, version: int | None
) -> list[Change]:
    facts: dict[str, Any] = {"by": name_of(request), "reason": reason, "version": version}
    if until is not None:
        return tenants.set_override(row, max_job, until, **facts)
    return tenants.set_limit(row, max_job, **facts)


def changes_of_form(request: HttpRequest, row: TenantQueue, form: TenantQueueForm) -> list[Change]:
    """Apply what was changed on the change form; the version that was seen guards the first step."""
    values, changed = form.cleaned_data, set(form.changed_data)
    facts: dict[str, Any] = {
        "by": name_of(request),
        "reason": values.get("reason", ""),
        "version": values.get("seen_version"),
    }
    changes: list[Change] = []
    if changed & {"max_job", "override_until"}:
        if "max_job" not in changed and not values["override_until"]:
            changes += tenants.end_override(row, **facts)
        else:
            until = values["override_until"]
            changes += set_limit(request, row, max_job=values["max_job"], until=until, **_without_by(facts))
        facts["version"] = row.version
    for name, change in (("max_job_per_key", tenants.set_max_job_per_key), ("max_waiting", tenants.set_max_waiting)):
        if name in changed:
            changes += change(row, values[name], **facts)
            facts["version"] = row.version
    if changed & {"paused", "resume_at"}:
        if values["paused"]:
            changes += tenants.pause(row, until=values["resume_at"], **facts)
        else:
            changes += tenants.resume(row, **facts)
    return changes


def _without_by(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "by"}


def initial_of(row: TenantQueue) -> dict[str, Any]:
    return {"max_job": row.max_job, "version": row.version, "until": row.override_until}


def name_of(request: HttpRequest) -> str:
    return str(request.user.get_username())


def wants_json(request: HttpRequest) -> bool:
    return request.headers.get("Accept", "").startswith("application/json")


def list_page(model_admin: Any) -> str:
    opts = model_admin.opts
    return reverse(f"{model_admin.admin_site.name}:{opts.app_label}_{opts.model_name}_changelist")
