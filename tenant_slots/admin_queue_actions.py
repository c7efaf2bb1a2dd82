"""What the actions on tenant queues do."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import Max
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from tenant_slots import admin_audit, line, tenants
from tenant_slots.admin_actions import DONE, Confirmed, CountForm, SeenForm, seen
from tenant_slots.admin_limits import LimitForm, ReasonForm, future_field, name_of, set_limit
from tenant_slots.admin_live import forget_shared
from tenant_slots.exceptions import StaleVersion, TenantSlotsError
from tenant_slots.models import State, TenantJob, TenantQueue

RETRIED_AT_ONCE = 500
"""Failed jobs of a tenant queue that one click puts back, one by one, while somebody waits for the page."""

CHANGED_MEANWHILE = "changed meanwhile"
UNCHANGED = "unchanged"


class PauseForm(SeenForm, ReasonForm):
    until = future_field(_("Resume at"), _("Empty: somebody has to resume it."))


class ResumeForm(SeenForm, ReasonForm):
    pass


class RetryForm(ReasonForm):
    up_to = forms.IntegerField(widget=forms.HiddenInput)


class BulkLimitForm(SeenForm, LimitForm):
    version = None  # type: ignore[assignment]


def describe(row: Any) -> str:
    return gettext("%(row)s: running %(running)s, limit %(limit)s, waiting %(waiting)s") % {
        "row": row,
        "running": row.current_job,
        "limit": row.max_job,
        "waiting": row.waiting,
    }


def _facts(request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> dict[str, Any]:
    return {"by": name_of(request), "reason": values["reason"], "version": values["seen"].get(row.pk)}


def _pause(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    return _changed(
        model_admin,
        request,
        row,
        lambda: tenants.pause(row, until=values["until"], **_facts(request, row, values)),
    )


def _resume(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    return _changed(model_admin, request, row, lambda: tenants.resume(row, **_facts(request, row, values)))


def _set_limit(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    def change() -> Any:
        return set_limit(
            request,
            row,
            max_job=values["max_job"],
            until=values["until"],
            reason=values["reason"],
            version=values["seen"].get(row.pk),
        )

    return _changed(model_admin, request, row, change)


def _changed(model_admin: Any, request: HttpRequest, row: TenantQueue, change: Any) -> str:
    """Each row in a transaction of its own, as none may hold several tenants' rows."""
    try:
        changes = change()
    except StaleVersion:
        return CHANGED_MEANWHILE
    admin_audit.log_changes(model_admin, request, row, changes)
    forget_shared()
    return DONE if changes else UNCHANGED


def _cancel_waiting(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    count = line.cancel_waiting(row, up_to=values["up_to"])
    return _counted(model_admin, request, row, gettext("waiting jobs canceled:"), count, values["reason"])


def _counted(model_admin: Any, request: HttpRequest, row: TenantQueue, what: str, count: int, reason: str) -> str:
    """Note how many jobs of a row an action has changed."""
    if not count:
        return UNCHANGED
    admin_audit.note(model_admin, request, row, what, new=str(count), reason=reason)
    forget_shared()
    return DONE


def describe_failed(row: Any) -> str:
    failed = _failed(row).count()
    text = ngettext("%(row)s: %(count)d failed job", "%(row)s: %(count)d failed jobs", failed)
    if failed > RETRIED_AT_ONCE:
        text = gettext("%(row)s: %(count)d failed jobs, the first %(most)d of them")
    return text % {"row": row, "count": failed, "most": RETRIED_AT_ONCE}


def _failed(row: TenantQueue) -> Any:
    return row.jobs.retryable().filter(state=State.FAILED)


def _retry_failed(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    failed = _failed(row).filter(pk__lte=values["up_to"]).order_by("pk")
    count = sum(map(_retried, failed.defer("args", "kwargs", "options", "result", "error")[:RETRIED_AT_ONCE]))
    return _counted(model_admin, request, row, gettext("failed jobs retried:"), count, values["reason"])


def _retried(job: TenantJob) -> bool:
    try:
        job.retry()
    except TenantSlotsError:  # it was retried by somebody else, or a new one like it waits
        return False
    return True


def _last_job(rows: Any) -> dict[str, Any]:
    """A job that is enqueued after the page was shown is not retried, however soon it fails."""
    return {"up_to": TenantJob.objects.aggregate(last=Max("pk"))["last"] or 0}


def _waiting_of(rows: Any) -> dict[str, Any]:
    """How many wait now, and the last of them: a job that is enqueued after the page was shown is not canceled."""
    waiting = TenantJob.objects.waiting().filter(tenant_queue__in=[row.pk for row in rows])
    return {"count": waiting.count(), "up_to": waiting.aggregate(last=Max("pk"))["last"] or 0}


def _left(count: int) -> str:
    return ngettext(
        "%(count)d tenant queue was left: somebody else has changed it meanwhile.",
        "%(count)d tenant queues were left: somebody else has changed them meanwhile.",
        count,
    ) % {"count": count}


def _as_it_was(count: int) -> str:
    return ngettext(
        "%(count)d tenant queue was like that already.", "%(count)d tenant queues were like that already.", count
    ) % {"count": count}


def _paused(count: int) -> str:
    return ngettext("%(count)d tenant queue was paused.", "%(count)d tenant queues were paused.", count) % {
        "count": count
    }


def _resumed(count: int) -> str:
    return ngettext("%(count)d tenant queue was resumed.", "%(count)d tenant queues were resumed.", count) % {
        "count": count
    }


def _limited(count: int) -> str:
    return ngettext(
        "The limit of %(count)d tenant queue was set.", "The limits of %(count)d tenant queues were set.", count
    ) % {"count": count}


def _emptied(count: int) -> str:
    return ngettext(
        "The waiting jobs of %(count)d tenant queue were canceled.",
        "The waiting jobs of %(count)d tenant queues were canceled.",
        count,
    ) % {"count": count}


def _in_line_again(count: int) -> str:
    return ngettext(
        "The failed jobs of %(count)d tenant queue are in line again.",
        "The failed jobs of %(count)d tenant queues are in line again.",
        count,
    ) % {"count": count}


LEFT = {CHANGED_MEANWHILE: _left, UNCHANGED: _as_it_was}

PAUSE = Confirmed("pause", _("Pause"), PauseForm, _pause, describe, {DONE: _paused, **LEFT}, seen)
RESUME = Confirmed("resume", _("Resume"), ResumeForm, _resume, describe, {DONE: _resumed, **LEFT}, seen)
SET_LIMIT = Confirmed("set_limit", _("Set limit"), BulkLimitForm, _set_limit, describe, {DONE: _limited, **LEFT}, seen)
RETRY_FAILED = Confirmed(
    "retry_failed",
    _("Retry failed jobs"),
    RetryForm,
    _retry_failed,
    describe_failed,
    {DONE: _in_line_again, **LEFT},
    _last_job,
)
CANCEL_WAITING = Confirmed(
    "cancel_waiting",
    _("Cancel waiting jobs"),
    CountForm,
    _cancel_waiting,
    describe,
    {DONE: _emptied, **LEFT},
    _waiting_of,
)
