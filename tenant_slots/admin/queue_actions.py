"""What the actions on tenant queues do."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import Max
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import audit
from tenant_slots.admin.actions import DONE, Confirmed
from tenant_slots.admin.changes import name_of, set_limit
from tenant_slots.admin.forms import STYLED, LimitForm, ReasonForm, SeenForm, future_field, seen, share_field
from tenant_slots.admin.snapshots import forget_shared
from tenant_slots.admin.words import origin
from tenant_slots.enqueueing import cancel
from tenant_slots.exceptions import NotRetryable, StaleVersion
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.stats.expressions import LARGE

RETRIED_AT_ONCE = 500
"""Failed jobs of a tenant queue that one click puts back, one by one, while somebody waits for the page."""

CHANGED_MEANWHILE = "changed meanwhile"
UNCHANGED = "unchanged"

LEFT = {
    CHANGED_MEANWHILE: ngettext_lazy(
        "%(count)d tenant queue was left unchanged: somebody else has changed it in the meantime.",
        "%(count)d tenant queues were left unchanged: somebody else has changed them in the meantime.",
        "count",
    ),
    UNCHANGED: ngettext_lazy(
        "%(count)d tenant queue needed no change.", "%(count)d tenant queues needed no change.", "count"
    ),
}


class PauseForm(SeenForm, ReasonForm):
    until = future_field(_("Resume at"), _("Leave empty to pause until somebody resumes it."))


class ResumeForm(SeenForm, ReasonForm):
    pass


class BulkLimitForm(SeenForm, LimitForm):
    version = None  # type: ignore[assignment]


class ShareForm(SeenForm, ReasonForm):
    share = share_field()

    field_order = ("share", "reason")


class RetryForm(ReasonForm):
    up_to = forms.IntegerField(widget=forms.HiddenInput)


class CountForm(ReasonForm):
    """The person types how many jobs will be canceled, as the page said it."""

    typed = forms.IntegerField(
        label=_("Type the number of jobs to confirm"), min_value=0, widget=forms.NumberInput(attrs=STYLED)
    )
    count = forms.IntegerField(widget=forms.HiddenInput)
    up_to = forms.IntegerField(widget=forms.HiddenInput)

    field_order = ("typed", "reason")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if "typed" in cleaned and "count" in cleaned and cleaned["typed"] != cleaned["count"]:
            message = gettext("There are %(count)s jobs, not %(typed)s.")
            self.add_error("typed", message % {"count": cleaned["count"], "typed": cleaned["typed"]})
        return cleaned


def describe(row: Any) -> str:
    return gettext("%(row)s: running %(running)s, limit %(limit)s, waiting %(waiting)s") % {
        "row": row,
        "running": row.in_use,
        "limit": row.max_job,
        "waiting": row.waiting,
    }


def describe_limit(row: Any) -> str:
    return f"{describe(row)}, {origin(row)}" if row.override_until else describe(row)


def _overrides_among(pks: list[int]) -> list[str]:
    count = TenantQueue.objects.filter(pk__in=pks, override_until__isnull=False).count()
    text = ngettext(
        "%(count)d of them has a temporary limit. It ends with this change, and the new limit replaces it.",
        "%(count)d of them have temporary limits. These end with this change, and the new limit replaces them.",
        count,
    )
    return [text % {"count": count}] if count else []


def describe_share(row: Any) -> str:
    return gettext("%(row)s: share %(share)s") % {"row": row, "share": row.share}


def _facts(request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> dict[str, Any]:
    return {"by": name_of(request), "reason": values["reason"], "version": values["seen"].get(row.pk)}


def _pause(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    return _changed(
        model_admin,
        request,
        row,
        lambda: row.pause(until=values["until"], **_facts(request, row, values)),
    )


def _resume(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    """Jobs may start again, whatever has kept them: a pause, or a rest."""
    facts = _facts(request, row, values)
    return _changed(model_admin, request, row, lambda: [*row.end_rest(**facts), *row.resume(**facts)])


def _set_limit(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    limit = {"max_job": values["max_job"], "until": values["until"]}
    return _changed(model_admin, request, row, lambda: set_limit(row, **limit, **_facts(request, row, values)))


def _set_share(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    return _changed(model_admin, request, row, lambda: row.set_share(values["share"], **_facts(request, row, values)))


def _changed(model_admin: Any, request: HttpRequest, row: TenantQueue, change: Any) -> str:
    """Each row in a transaction of its own, as none may hold several tenants' rows."""
    try:
        changes = change()
    except StaleVersion:
        return CHANGED_MEANWHILE
    audit.log_changes(model_admin, request, row, changes)
    forget_shared()
    return DONE if changes else UNCHANGED


def _cancel_waiting(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    count = cancel.cancel_waiting(row, up_to=values["up_to"])
    return _counted(model_admin, request, row, gettext("waiting jobs canceled:"), count, values["reason"])


def _counted(model_admin: Any, request: HttpRequest, row: TenantQueue, what: str, count: int, reason: str) -> str:
    """Note how many jobs of a row an action has changed."""
    if not count:
        return UNCHANGED
    audit.note(model_admin, request, row, what, new=str(count), reason=reason)
    forget_shared()
    return DONE


def describe_failed(row: Any) -> str:
    failed = _failed(row).count()
    text = ngettext("%(row)s: %(count)d failed job", "%(row)s: %(count)d failed jobs", failed)
    if failed > RETRIED_AT_ONCE:
        text = gettext("%(row)s: the first %(most)d of %(count)d failed jobs")
    return text % {"row": row, "count": failed, "most": RETRIED_AT_ONCE}


def _failed(row: TenantQueue) -> Any:
    return row.jobs.retryable().filter(state=State.FAILED)


def _retry_failed(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    failed = _failed(row).filter(pk__lte=values["up_to"]).order_by("pk")
    count = sum(map(_retried, failed.defer(*LARGE)[:RETRIED_AT_ONCE]))
    return _counted(model_admin, request, row, gettext("failed jobs retried:"), count, values["reason"])


def _retried(job: TenantJob) -> bool:
    try:
        job.retry()
    except NotRetryable:  # it is not failed any more, or somebody else has retried it
        return False
    return True


def _last_job(pks: list[int]) -> dict[str, Any]:
    """A job that is enqueued after the page was shown is not retried, however soon it fails."""
    return {"up_to": TenantJob.objects.aggregate(last=Max("pk"))["last"] or 0}


def _waiting_of(pks: list[int]) -> dict[str, Any]:
    """How many wait now, and the last of them: a job that is enqueued after the page was shown is not canceled."""
    waiting = TenantJob.objects.waiting().filter(tenant_queue__in=pks)
    return {"count": waiting.count(), "up_to": waiting.aggregate(last=Max("pk"))["last"] or 0}


PAUSE = Confirmed(
    permission="pause",
    label=_("Pause selected tenant queues"),
    title=_("Pause"),
    form=PauseForm,
    apply=_pause,
    describe=describe,
    outcomes={
        DONE: ngettext_lazy("%(count)d tenant queue was paused.", "%(count)d tenant queues were paused.", "count"),
        **LEFT,
    },
    initial=seen,
)
RESUME = Confirmed(
    permission="resume",
    label=_("Resume selected tenant queues"),
    title=_("Resume"),
    form=ResumeForm,
    apply=_resume,
    describe=describe,
    outcomes={
        DONE: ngettext_lazy("%(count)d tenant queue was resumed.", "%(count)d tenant queues were resumed.", "count"),
        **LEFT,
    },
    initial=seen,
)
SET_LIMIT = Confirmed(
    permission="set_limit",
    label=_("Set the limit of selected tenant queues"),
    title=_("Set limit"),
    form=BulkLimitForm,
    apply=_set_limit,
    describe=describe_limit,
    warnings=_overrides_among,
    outcomes={
        DONE: ngettext_lazy(
            "The limit of %(count)d tenant queue was set.", "The limits of %(count)d tenant queues were set.", "count"
        ),
        **LEFT,
    },
    initial=seen,
)
SET_SHARE = Confirmed(
    permission="set_limit",
    label=_("Set the share of selected tenant queues"),
    title=_("Set share"),
    form=ShareForm,
    apply=_set_share,
    describe=describe_share,
    outcomes={
        DONE: ngettext_lazy(
            "The share of %(count)d tenant queue was set.", "The shares of %(count)d tenant queues were set.", "count"
        ),
        **LEFT,
    },
    initial=seen,
)
CANCEL_WAITING = Confirmed(
    permission="cancel_waiting",
    label=_("Cancel the waiting jobs of selected tenant queues"),
    title=_("Cancel waiting jobs"),
    form=CountForm,
    apply=_cancel_waiting,
    describe=describe,
    outcomes={
        DONE: ngettext_lazy(
            "The waiting jobs of %(count)d tenant queue were canceled.",
            "The waiting jobs of %(count)d tenant queues were canceled.",
            "count",
        ),
        **LEFT,
    },
    initial=_waiting_of,
)
RETRY_FAILED = Confirmed(
    permission="retry_failed",
    label=_("Retry the failed jobs of selected tenant queues"),
    title=_("Retry failed jobs"),
    form=RetryForm,
    apply=_retry_failed,
    describe=describe_failed,
    outcomes={
        DONE: ngettext_lazy(
            "The failed jobs of %(count)d tenant queue will run again.",
            "The failed jobs of %(count)d tenant queues will run again.",
            "count",
        ),
        **LEFT,
    },
    initial=_last_job,
)
