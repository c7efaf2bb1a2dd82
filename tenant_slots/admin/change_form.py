"""The change form of a tenant queue: it writes only what was changed in it, and reverts nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import router
from django.http import HttpRequest, HttpResponseRedirect, QueryDict
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from tenant_slots import limits, rates
from tenant_slots.admin import audit
from tenant_slots.admin.bases import QueueConcern, QueueModelForm
from tenant_slots.admin.changes import CONFLICT, conflict_text, name_of, set_limit, set_rate
from tenant_slots.admin.forms import burst_field, moment_field, rate_field, reason_field, require_future_in
from tenant_slots.admin.permissions import Restricted
from tenant_slots.admin.refusals import NOT_TAKEN, Refusal, refusal
from tenant_slots.admin.snapshots import forget_shared
from tenant_slots.admin.words import effect_of
from tenant_slots.conf import app_settings
from tenant_slots.db.transactions import bounded_at_once, seeing_others
from tenant_slots.exceptions import InvalidRate, StaleVersion
from tenant_slots.models import HIGHEST_LIMIT, HIGHEST_SHARE, Change, LimitSource, TenantQueue
from tenant_slots.queue_names import usable_queues
from tenant_slots.rates import Rate
from tenant_slots.stats import held

REFUSED = "slots_refused"
"""Of a request: the reason."""

OK = 200


class TenantQueueForm(QueueModelForm):
    """Carries the values and the version that it was loaded with, so that it reverts nothing that it does not show."""

    rate = rate_field()
    burst = burst_field()
    reason = reason_field()
    seen_version = forms.IntegerField(required=False, widget=forms.HiddenInput)
    conflict = False
    refused = ""
    """Why what was sent has not been saved, which is known only once that was tried."""
    may_have: Callable[[str, str], bool] | None = None
    """Whether whoever adds a row may have one of this tenant and queue."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if rate := self.instance.rate:
            self.initial.update(rate=rate.notation, burst=rate.burst)
        if self.instance._state.adding:
            self.instance._state.db = app_settings.DATABASE  # where it is looked for duplicates, and saved
            return
        self.stored = copy(self.instance)  # Django sets on the instance what was sent
        self.initial["seen_version"] = self.instance.version
        for name, field in self.fields.items():
            # Somebody who posts without having loaded the form means the values as compared with the row.
            sent = not self.is_bound or self.add_initial_prefix(name) in self.data
            field.show_hidden_initial = sent and name not in ("reason", "seen_version")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if self.refused:
            self.add_error(None, self.refused)
        self._keep_seconds(cleaned)
        changed = set(self.changed_data)
        for name, sets_it in (("override_until", {"override_until", "max_job"}), ("resume_at", {"resume_at"})):
            if changed & sets_it:
                require_future_in(self, name)
        if "resume_at" in changed and cleaned.get("resume_at") and not cleaned.get("paused"):
            self.add_error("resume_at", _("Only a pause ends by itself: choose paused as well."))
        if not self.errors.keys() & {"rate", "burst"}:
            cleaned["new_rate"] = self._rate(cleaned.get("rate", ""), cleaned.get("burst"))
        if self.instance._state.adding and not self.refused and not self._may_be_added(cleaned):
            self.add_error("tenant", _("You may add no tenant queue of this tenant."))
        seen = cleaned.get("seen_version")
        if seen is not None and not self.instance._state.adding and seen != self.stored.version:
            self.conflict = True
            raise ValidationError(conflict_text(self.stored, cleaned.get("max_job")), code="conflict")
        return cleaned

    def show_stored(self) -> None:
        """After a conflict: what is stored where nothing was touched, so that whoever sends the form again has seen it.

        What was touched stays as it was typed, and is compared with what is stored now.
        """
        touched, data = set(self.changed_data), QueryDict(mutable=True)
        data.update(self.data)
        data["seen_version"] = str(self.stored.version)
        stored = type(self)(instance=self.stored)
        for name in self.fields.keys() - {"reason", "seen_version"}:
            value, field = stored[name].value(), stored.fields[name]
            data[self.add_initial_prefix(name)] = field.hidden_widget().format_value(value) or ""
            if name not in touched:
                data[name] = _typed(field, value)
        self.data = data

    def _keep_seconds(self, cleaned: dict[str, Any]) -> None:
        """Of a time that was left alone: its input has none."""
        for name in {"override_until", "resume_at"} & cleaned.keys() - set(self.changed_data):
            cleaned[name] = getattr(self.stored, name)

    def _may_be_added(self, cleaned: dict[str, Any]) -> bool:
        """What is no row at all is left to the errors of its fields."""
        if self.may_have is None or not cleaned.get("tenant") or not cleaned.get("queue"):
            return True
        return self.may_have(cleaned["tenant"], cleaned["queue"])

    def clean_share(self) -> int:
        """Left empty, or not sent at all, it stays as it is."""
        share: int | None = self.cleaned_data["share"]
        return self.instance.share if share is None else share

    def _rate(self, text: str, burst: int | None) -> Rate | None:
        """Of both fields together. A burst that is left over where the rate is taken away means nothing."""
        if not text and burst is not None and "burst" in self.changed_data:
            self.add_error("rate", _("A burst needs a rate."))
        if not text:
            return None
        try:
            return rates.parse(text, burst)
        except InvalidRate:
            self.add_error("burst", _("At this rate, so large a burst takes more than a year to come back."))
            return None


def _typed(field: forms.Field, value: Any) -> str:
    """As a browser sends it; a box that is not ticked as the text that means so."""
    return str(bool(value)) if isinstance(field, forms.BooleanField) else field.widget.format_value(value) or ""


class ChangeForm(Restricted, QueueConcern):
    form = TenantQueueForm

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)  # a class of its own for each request
        form.may_have = staticmethod(partial(self.may_have, request))  # type: ignore[attr-defined]
        form.refused = vars(request).get(REFUSED, "")  # type: ignore[attr-defined]
        return form

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        if db_field.name == "queue":
            names = [(name, name) for name in usable_queues()]
            return forms.ChoiceField(choices=names, label=capfirst(db_field.verbose_name), help_text=db_field.help_text)
        if db_field.name in ("override_until", "resume_at"):
            return moment_field(label=capfirst(db_field.verbose_name), help_text=db_field.help_text)
        if db_field.name == "max_job":
            kwargs |= {"min_value": 0, "max_value": HIGHEST_LIMIT}
        if db_field.name == "share":
            kwargs |= {"min_value": 1, "max_value": HIGHEST_SHARE, "required": False}
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: TenantQueue, form: Any, change: bool) -> None:
        """Writes only what was changed here, and only while nobody else has changed the row since."""
        if not change:
            obj.limit_source, obj.limit_set_by = LimitSource.SET, limits.stored_name(name_of(request))
            for name, value in rates.fields_of(form.cleaned_data["new_rate"]).items():
                setattr(obj, name, value)
            with bounded_at_once(app_settings.DATABASE, obj):  # somebody else may be about to add the same row
                super().save_model(request, obj, form, change)
            return
        with seeing_others(app_settings.DATABASE):  # Django's own transaction is where a router says
            form.changes = apply_changes(request, obj, form)
        if any(one.what == "limit" for one in form.changes):
            self.message_user(request, effect_of(obj.max_job, held.running(obj)))
        forget_shared()

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        if add:
            return super().construct_change_message(request, form, formsets, add)
        return [audit.message_of(one) for one in getattr(form, "changes", ())]

    def changeform_view(self, request: HttpRequest, object_id: Any = None, *args: Any, **kwargs: Any) -> Any:
        try:
            with _around_that_of_django(request):
                response = super().changeform_view(request, object_id, *args, **kwargs)
        except StaleVersion as error:
            # It came between our look at the version and our lock: the form is shown anew with what is stored.
            self.message_user(request, conflict_text(error.tenant_queue, None), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        except NOT_TAKEN as error:
            if request.method != "POST":
                raise
            return self._shown_again(request, object_id, refusal(error), *args, **kwargs)
        context = getattr(response, "context_data", None) or {}
        if "adminform" in context and getattr(context["adminform"].form, "conflict", False):
            context["adminform"].form.show_stored()
            response.status_code = CONFLICT
        return response

    def _shown_again(self, request: HttpRequest, object_id: Any, why: Refusal, *args: Any, **kwargs: Any) -> Any:
        """The form as it was sent, with the reason. Nothing of it was saved."""
        vars(request)[REFUSED] = why.text
        response = super().changeform_view(request, object_id, *args, **kwargs)
        if response.status_code == OK:
            response.status_code = why.status
        return response


def _around_that_of_django(request: HttpRequest) -> AbstractContextManager[None]:
    """Django's transaction for what is sent is of the project's isolation level, in which a row that has changed since
    it was read cannot be locked. Where a router has it elsewhere, ours is around the changes alone.
    """
    is_ours = request.method == "POST" and router.db_for_write(TenantQueue) == app_settings.DATABASE
    return seeing_others(app_settings.DATABASE) if is_ours else nullcontext()


def apply_changes(request: HttpRequest, row: TenantQueue, form: TenantQueueForm) -> list[Change]:
    """What was changed on the form; the version that was seen guards the first step."""
    values, changed = form.cleaned_data, set(form.changed_data)
    facts: dict[str, Any] = {
        "by": name_of(request),
        "reason": values.get("reason", ""),
        "version": values.get("seen_version"),
    }
    changes: list[Change] = []
    if changed & {"max_job", "override_until"}:
        until = values["override_until"]
        if "max_job" in changed or until:
            changes += set_limit(row, max_job=values["max_job"], until=until, **facts)
        else:
            changes += row.end_override(**facts)
        facts["version"] = row.version
    steps = {"share": row.set_share, "max_job_per_key": row.set_max_job_per_key, "max_waiting": row.set_max_waiting}
    for name, change in steps.items():
        if name in changed:
            changes += change(values[name], **facts)
            facts["version"] = row.version
    if changed & {"rate", "burst"}:
        changes += set_rate(row, values["new_rate"], **facts)
        facts["version"] = row.version
    if changed & {"paused", "resume_at"}:
        if values["paused"]:
            changes += row.pause(until=values["resume_at"], **facts)
        else:
            changes += row.resume(**facts)
    return changes
