"""What the actions on jobs do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import audit, spared
from tenant_slots.admin.bulk.ways import Jobs
from tenant_slots.admin.changes import name_of
from tenant_slots.admin.confirmed import DONE, Confirmed
from tenant_slots.admin.forms import STYLED, ReasonForm, numbers_as_text, numbers_by_key
from tenant_slots.admin.words import state_of
from tenant_slots.db.compiled import among
from tenant_slots.enqueueing import cancel, priority, retry
from tenant_slots.exceptions import NotRetryable
from tenant_slots.models import State, TenantJob
from tenant_slots.repair import lost_runs
from tenant_slots.repair.lost_runs import ByHand
from tenant_slots.stats import dependencies
from tenant_slots.tasks.options import HIGHEST_PRIORITY

OTHER_STATE = "other state"
ASKED = "asked"
STOPPED = "stopped"
NOT_STOPPED = "not stopped"
ENDED = "ended"
MOVED_ON = "moved on"

STOPPING = ngettext_lazy(
    "%(count)d running job is being stopped.", "%(count)d running jobs are being stopped.", "count"
)
ASKED_TO_END = ngettext_lazy(
    "%(count)d reservation was asked to end: its process cannot be stopped from here.",
    "%(count)d reservations were asked to end: their processes cannot be stopped from here.",
    "count",
)
LEFT_ALONE = ngettext_lazy(
    "%(count)d job was left alone: it had moved on.", "%(count)d jobs were left alone: they had moved on.", "count"
)


Apply = Callable[[Any, HttpRequest, TenantJob, dict[str, Any]], str]


class ReleaseForm(ReasonForm):
    runs = forms.CharField(widget=forms.HiddenInput, required=False)
    """The attempts that had slots when the page was shown: those that came or began since keep theirs. Empty where none
    had one, and None where no page was shown, as to a script.
    """
    force = forms.BooleanField(
        label=_("Even if the job seems to be alive"),
        required=False,
        help_text=_(
            "The job then fails, and whatever its run still does is not recorded. "
            "This needs a permission of its own and a reason."
        ),
    )

    def clean_runs(self) -> str | None:
        return self.cleaned_data["runs"] if "runs" in self.data else None

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("force") and not cleaned.get("reason"):
            self.add_error("reason", gettext("Give a reason for taking the slot of a job that seems to be running."))
        return cleaned


class PriorityForm(ReasonForm):
    priority = forms.IntegerField(
        label=_("Priority"),
        min_value=-HIGHEST_PRIORITY,
        max_value=HIGHEST_PRIORITY,
        help_text=_("In the backlog of a tenant queue, jobs with a higher priority go first."),
        widget=forms.NumberInput(attrs=STYLED),
    )

    field_order = ("priority", "reason")


def describe(job: TenantJob) -> str:
    return f"{job} · {job.tenant_queue} · {job.get_state_display()}"


def canceled_too(pks: Iterable[int]) -> list[str]:
    """What a page that asks says of jobs that nobody has chosen."""
    text = ngettext_lazy(
        "%(count)d other job runs after these, and is canceled with the one that it runs after.",
        "%(count)d other jobs run after these, and are canceled with those that they run after.",
        "count",
    )
    return _of_others(pks, text)


def _of_others(pks: Iterable[int], text: Any) -> list[str]:
    count = dependencies.canceled_with(list(pks))
    return [text % {"count": count}] if count else []


def _behind_canceled(model_admin: Any, request: HttpRequest, pks: list[int], values: dict[str, Any]) -> list[str]:
    """What has ended is left alone, and so is a run where the viewer may stop none."""
    jobs = TenantJob.objects.filter(among(pks))
    may_stop = model_admin.has_stop_permission(request)
    return canceled_too(_pks(jobs.not_ended() if may_stop else jobs.not_started()))


def _behind_stopped(model_admin: Any, request: HttpRequest, pks: list[int], values: dict[str, Any]) -> list[str]:
    return canceled_too(_pks(TenantJob.objects.running().filter(among(pks))))


def _behind_released(model_admin: Any, request: HttpRequest, pks: list[int], values: dict[str, Any]) -> list[str]:
    """Those that only force takes the slots of fail; a stale one may also run again."""
    jobs = TenantJob.objects.filter(among(pks))
    may_force = model_admin.has_force_release_permission(request)
    text = ngettext_lazy(
        "%(count)d other job runs after these, and is canceled if the one that it runs after fails.",
        "%(count)d other jobs run after these, and are canceled if those that they run after fail.",
        "count",
    )
    return _of_others(_pks(jobs.holding() if may_force else jobs.stale()), text)


def _pks(jobs: QuerySet[TenantJob]) -> Iterable[int]:
    return jobs.order_by().values_list("pk", flat=True)


def _with_its_entry(apply: Apply) -> Apply:
    """The job is changed with its entry in the log of the admin, or not at all."""

    @wraps(apply)
    def together(model_admin: Any, request: HttpRequest, job: TenantJob, values: dict[str, Any]) -> str:
        with audit.with_its_entries(model_admin, job):
            return apply(model_admin, request, job, values)

    return together


@_with_its_entry
def _cancel(model_admin: Any, request: HttpRequest, job: TenantJob, values: dict[str, Any]) -> str:
    """A run is stopped only by who may stop jobs, even if it begins right now."""
    before = state_of(job)
    if cancel.cancel_unstarted(job):
        after = state_of(job)
        audit.note(model_admin, request, job, _("state"), before, after, values["reason"])
        return DONE
    if job.has_ended:
        return ENDED
    if not model_admin.has_stop_permission(request):
        return NOT_STOPPED
    stopped = _stop(model_admin, request, job, values)
    return STOPPED if stopped == DONE else stopped


@_with_its_entry
def _stop(model_admin: Any, request: HttpRequest, job: TenantJob, values: dict[str, Any]) -> str:
    if job.state != State.RUNNING:
        return OTHER_STATE
    if not cancel.stop(job):
        return MOVED_ON
    audit.note(model_admin, request, job, _("stop requested"), reason=values["reason"])
    return ASKED if job.is_reservation else DONE


@_with_its_entry
def _retry(model_admin: Any, request: HttpRequest, job: TenantJob, values: dict[str, Any]) -> str:
    before = state_of(job)
    try:
        job.retry()
    except NotRetryable:
        return OTHER_STATE
    after = state_of(job)
    audit.note(model_admin, request, job, _("retry"), before, after, values["reason"])
    return DONE


@_with_its_entry
def _set_priority(model_admin: Any, request: HttpRequest, job: TenantJob, values: dict[str, Any]) -> str:
    before = str(job.priority)
    if not job.set_priority(values["priority"]):
        return OTHER_STATE
    audit.note(model_admin, request, job, _("priority"), before, str(job.priority), values["reason"])
    return DONE


def _runs(pks: list[int]) -> dict[str, Any]:
    """What a `ReleaseForm` begins with."""
    holding = TenantJob.objects.holding().filter(among(pks)).order_by()
    runs = holding.values_list("pk", "attempt", "state")
    return {"runs": numbers_as_text((pk, _run(attempt, state)) for pk, attempt, state in runs)}


def _run(attempt: int, state: str) -> int:
    """An attempt that has only got its slot is another one than once it runs: as a number, as pages remember it."""
    return 2 * attempt + (state == State.RUNNING)


@lru_cache(maxsize=1)
def _runs_shown(runs: str) -> dict[int, int]:
    """Read once for all jobs of an action."""
    return numbers_by_key(runs)


@_with_its_entry
def _release(model_admin: Any, request: HttpRequest, job: TenantJob, values: dict[str, Any]) -> str:
    runs = values.get("runs")
    if runs is not None and _runs_shown(runs).get(job.pk) != _run(job.attempt, job.state):
        return str(ByHand.NO_SLOT.value)
    force = bool(values["force"]) and model_admin.has_force_release_permission(request)
    reason = f"released by {name_of(request)}: {values['reason']}"
    before = state_of(job)
    outcome = lost_runs.release_by_hand(job, reason, force=force)
    if outcome is not ByHand.RELEASED:
        return str(outcome.value)
    job.refresh_from_db()
    after = state_of(job)
    audit.note(model_admin, request, job, _("slot released"), before, after, values["reason"])
    return DONE


CANCEL = Confirmed(
    permission="cancel",
    label=_("Cancel selected tenant jobs"),
    title=_("Cancel jobs"),
    form=ReasonForm,
    apply=_cancel,
    describe=describe,
    outcomes={
        DONE: ngettext_lazy("%(count)d job was canceled.", "%(count)d jobs were canceled.", "count"),
        STOPPED: STOPPING,
        ASKED: ASKED_TO_END,
        NOT_STOPPED: ngettext_lazy(
            "%(count)d running job was left alone: stopping needs a permission of its own.",
            "%(count)d running jobs were left alone: stopping needs a permission of its own.",
            "count",
        ),
        ENDED: ngettext_lazy("%(count)d job had already ended.", "%(count)d jobs had already ended.", "count"),
        OTHER_STATE: ngettext_lazy("%(count)d job is not running.", "%(count)d jobs are not running.", "count"),
        MOVED_ON: LEFT_ALONE,
        **spared.OF_JOBS,
    },
    warnings=_behind_canceled,
    in_background=Jobs(
        change=lambda row, jobs, values: cancel.cancel_unadmitted(row, jobs),
        what=_("state"),
        old=state_of,
        new=lambda values: State.CANCELED.label,
        otherwise=lambda job: ENDED if job.has_ended else "",
    ),
)
STOP = Confirmed(
    permission="stop",
    label=_("Stop selected running jobs"),
    title=_("Stop running jobs"),
    form=ReasonForm,
    apply=_stop,
    describe=describe,
    outcomes={
        DONE: STOPPING,
        ASKED: ASKED_TO_END,
        OTHER_STATE: ngettext_lazy("%(count)d job is not running.", "%(count)d jobs are not running.", "count"),
        MOVED_ON: LEFT_ALONE,
        **spared.OF_JOBS,
    },
    warnings=_behind_stopped,
)
RETRY = Confirmed(
    permission="retry",
    label=_("Retry selected failed jobs"),
    title=_("Retry jobs"),
    form=ReasonForm,
    apply=_retry,
    describe=describe,
    outcomes={
        DONE: ngettext_lazy("%(count)d job will run again.", "%(count)d jobs will run again.", "count"),
        OTHER_STATE: ngettext_lazy(
            "%(count)d job was left unchanged: only a failed or canceled one can be retried.",
            "%(count)d jobs were left unchanged: only failed or canceled ones can be retried.",
            "count",
        ),
        **spared.OF_JOBS,
    },
    in_background=Jobs(
        change=lambda row, jobs, values: retry.retry_all(row, jobs),
        what=_("retry"),
        old=state_of,
        new=lambda values: State.WAITING.label,
        otherwise=lambda job: OTHER_STATE,
    ),
    in_rounds=True,
)
SET_PRIORITY = Confirmed(
    permission="prioritize",
    label=_("Change the priority of selected waiting jobs"),
    title=_("Change the priority"),
    form=PriorityForm,
    apply=_set_priority,
    describe=describe,
    outcomes={
        DONE: ngettext_lazy(
            "The priority of %(count)d job was changed.", "The priority of %(count)d jobs was changed.", "count"
        ),
        OTHER_STATE: ngettext_lazy(
            "%(count)d job was left unchanged: it is no longer waiting.",
            "%(count)d jobs were left unchanged: they are no longer waiting.",
            "count",
        ),
        **spared.OF_JOBS,
    },
    in_background=Jobs(
        change=lambda row, jobs, values: priority.set_priority_of_all(jobs, values["priority"]),
        what=_("priority"),
        old=lambda job: str(job.priority),
        new=lambda values: str(values["priority"]),
        otherwise=lambda job: OTHER_STATE,
    ),
)
RELEASE = Confirmed(
    permission="release",
    label=_("Release the stuck slots of selected jobs"),
    title=_("Release stuck slots"),
    form=ReleaseForm,
    apply=_release,
    describe=describe,
    outcomes={
        DONE: ngettext_lazy("%(count)d slot was released.", "%(count)d slots were released.", "count"),
        ByHand.ALIVE.value: ngettext_lazy(
            "%(count)d slot was left alone: its job seems to be alive.",
            "%(count)d slots were left alone: their jobs seem to be alive.",
            "count",
        ),
        ByHand.NO_SLOT.value: ngettext_lazy(
            "%(count)d job was left alone: it holds no slot, or does so with another run by now.",
            "%(count)d jobs were left alone: they hold no slots, or do so with other runs by now.",
            "count",
        ),
        **spared.OF_JOBS,
    },
    initial=_runs,
    warnings=_behind_released,
)
