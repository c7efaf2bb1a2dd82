"""What the actions on jobs do."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from tenant_slots import admin_audit, recovery
from tenant_slots.admin_actions import DONE, Confirmed
from tenant_slots.admin_limits import STYLED, ReasonForm, name_of, reason_field
from tenant_slots.exceptions import NotRetryable
from tenant_slots.models import State, TenantJob
from tenant_slots.options import HIGHEST_PRIORITY
from tenant_slots.recovery import ByHand

OTHER_STATE = "other state"
ASKED = "asked"


class ReleaseForm(forms.Form):
    reason = reason_field()
    force = forms.BooleanField(
        label=_("Also where the lease is alive"),
        required=False,
        help_text=_(
            "The job then fails and its run is fenced off: whatever it still does is not recorded. "
            "Needs a permission of its own and a reason."
        ),
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("force") and not cleaned.get("reason"):
            self.add_error("reason", gettext("Say why a slot is taken from a job that seems to run."))
        return cleaned


class PriorityForm(ReasonForm):
    priority = forms.IntegerField(
        label=_("Priority"),
        min_value=-HIGHEST_PRIORITY,
        max_value=HIGHEST_PRIORITY,
        help_text=_("A higher one goes first among the waiting jobs of a tenant queue."),
        widget=forms.NumberInput(attrs={"class": STYLED}),
    )

    field_order = ("priority", "reason")


def describe(job: TenantJob) -> str:
    return f"{job} · {job.tenant_queue} · {job.get_state_display()}"


def _stop(model_admin: Any, request: HttpRequest, job: TenantJob, values: dict[str, Any]) -> str:
    if job.state != State.RUNNING or not job.cancel():
        return OTHER_STATE
    admin_audit.note(model_admin, request, job, gettext("stop asked for"), reason=values["reason"])
    return ASKED if job.is_hold else DONE


def _retry(model_admin: Any, request: HttpRequest, job: TenantJob, values: dict[str, Any]) -> str:
    before = str(job.get_state_display())
    try:
        job.retry()
    except NotRetryable:
        return OTHER_STATE
    after = str(job.get_state_display())
    admin_audit.note(model_admin, request, job, gettext("retry"), before, after, values["reason"])
    return DONE


def _set_priority(model_admin: Any, request: HttpRequest, job: TenantJob, values: dict[str, Any]) -> str:
    before = str(job.priority)
    if not job.set_priority(values["priority"]):
        return OTHER_STATE
    admin_audit.note(model_admin, request, job, gettext("priority"), before, str(job.priority), values["reason"])
    return DONE


def _release(model_admin: Any, request: HttpRequest, job: TenantJob, values: dict[str, Any]) -> str:
    force = bool(values["force"]) and model_admin.has_force_release_permission(request)
    reason = f"released by {name_of(request)}: {values['reason']}"
    before = str(job.get_state_display())
    outcome = recovery.release_by_hand(job, reason, force=force)
    if outcome is not ByHand.RELEASED:
        return str(outcome.value)
    job.refresh_from_db()
    after = str(job.get_state_display())
    admin_audit.note(model_admin, request, job, gettext("slot released"), before, after, values["reason"])
    return DONE


def _stopping(count: int) -> str:
    return ngettext("%(count)d running job is being stopped.", "%(count)d running jobs are being stopped.", count) % {
        "count": count
    }


def asked(count: int) -> str:
    return ngettext(
        "%(count)d hold was asked to end: its process cannot be stopped from here.",
        "%(count)d holds were asked to end: their processes cannot be stopped from here.",
        count,
    ) % {"count": count}


def _not_running(count: int) -> str:
    return ngettext("%(count)d job does not run.", "%(count)d jobs do not run.", count) % {"count": count}


def _retried(count: int) -> str:
    return ngettext("%(count)d job is in line again.", "%(count)d jobs are in line again.", count) % {"count": count}


def _not_failed(count: int) -> str:
    return ngettext(
        "%(count)d job was left: only a failed or canceled one can be retried.",
        "%(count)d jobs were left: only failed or canceled ones can be retried.",
        count,
    ) % {"count": count}


def _moved(count: int) -> str:
    return ngettext(
        "The priority of %(count)d job was changed.", "The priority of %(count)d jobs was changed.", count
    ) % {"count": count}


def _not_waiting(count: int) -> str:
    return ngettext(
        "%(count)d job was left: it does not wait any more.",
        "%(count)d jobs were left: they do not wait any more.",
        count,
    ) % {"count": count}


def _released(count: int) -> str:
    return ngettext("%(count)d slot was released.", "%(count)d slots were released.", count) % {"count": count}


def _alive(count: int) -> str:
    return ngettext(
        "%(count)d slot was left: its lease is alive.", "%(count)d slots were left: their leases are alive.", count
    ) % {"count": count}


def _gone(count: int) -> str:
    return ngettext("%(count)d job held no slot.", "%(count)d jobs held no slot.", count) % {"count": count}


STOP = Confirmed(
    "stop",
    _("Stop running jobs"),
    ReasonForm,
    _stop,
    describe,
    {DONE: _stopping, ASKED: asked, OTHER_STATE: _not_running},
)
RETRY = Confirmed("retry", _("Retry jobs"), ReasonForm, _retry, describe, {DONE: _retried, OTHER_STATE: _not_failed})
SET_PRIORITY = Confirmed(
    "prioritize",
    _("Change the priority"),
    PriorityForm,
    _set_priority,
    describe,
    {DONE: _moved, OTHER_STATE: _not_waiting},
)
RELEASE = Confirmed(
    "release",
    _("Release stuck slots"),
    ReleaseForm,
    _release,
    describe,
    {DONE: _released, ByHand.ALIVE.value: _alive, ByHand.GONE.value: _gone},
)
