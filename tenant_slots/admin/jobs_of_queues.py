"""What the actions on the jobs of tenant queues do: on those that wait, and on those that have failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import audit, chosen
from tenant_slots.admin.bulk.ways import UNCHANGED, JobsOfQueues
from tenant_slots.admin.confirmed import DONE, JOBS, Confirmed
from tenant_slots.admin.forms import STYLED, JobsField, ReasonForm
from tenant_slots.admin.job_actions import canceled_too
from tenant_slots.admin.queue_actions import LEFT, describe
from tenant_slots.admin.refusals import NOT_TAKEN, fails_alone
from tenant_slots.admin.snapshots import forget_shared
from tenant_slots.db.compiled import among
from tenant_slots.enqueueing import cancel, retry
from tenant_slots.exceptions import NotRetryable, TenantQueueLocked
from tenant_slots.locks import locked
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.stats.expressions import UNLISTED


class AsShown(ReasonForm):
    """Jobs that the page has not counted are left, whenever they were enqueued or have come to be like those."""

    jobs = JobsField(required=False)


class CountForm(AsShown):
    """The person types how many jobs will be canceled, as the page said it."""

    typed = forms.IntegerField(
        label=_("Type the number of jobs to confirm"), min_value=0, widget=forms.NumberInput(attrs=STYLED)
    )

    field_order = ("typed", "reason")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if "typed" in cleaned and "jobs" in cleaned and cleaned["typed"] != len(cleaned["jobs"]):
            message = gettext("There are %(count)s jobs, not %(typed)s.")
            self.add_error("typed", message % {"count": len(cleaned["jobs"]), "typed": cleaned["typed"]})
        return cleaned


def _cancel_waiting(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    waiting = _waiting().filter(among(values["jobs"]), tenant_queue=row).order_by("pk")
    with audit.with_its_entries(model_admin, row):
        count = cancel.cancel_waiting(row, list(waiting.values_list("pk", flat=True)))
        _note_count(model_admin, request, row, _("waiting jobs canceled:"), count, values["reason"])
    return _counted(count)


def _note_count(model_admin: Any, request: HttpRequest, row: TenantQueue, what: Any, count: int, reason: str) -> None:
    """How many jobs of a row an action has changed."""
    if count:
        audit.note(model_admin, request, row, what, new=str(count), reason=reason)


def _counted(count: int) -> str:
    """The outcome, once that is committed."""
    if not count:
        return UNCHANGED
    forget_shared()
    return DONE


def _waiting() -> QuerySet[TenantJob]:
    return TenantJob.objects.waiting()


def _failed() -> QuerySet[TenantJob]:
    return TenantJob.objects.retryable().filter(state=State.FAILED)


def _shown(jobs: QuerySet[TenantJob], pks: list[int]) -> dict[str, Any]:
    """What the page counts of these jobs, for these tenant queues: as many as one action may change."""
    own = jobs.filter(among(pks, "tenant_queue")).order_by()
    return {"jobs": list(own.values_list("pk", flat=True)[: chosen.MOST])}


def _theirs(model_admin: Any, request: HttpRequest, jobs: list[int], pks: list[int]) -> list[int]:
    """Those of the jobs that are of these tenant queues, for who may see some only: a form may be sent with any."""
    if model_admin.own_tenant_queues(request) is None:
        return jobs
    own = TenantJob.objects.filter(among(jobs), among(pks, "tenant_queue")).order_by()
    return list(own.values_list("pk", flat=True))


def _failed_among(model_admin: Any, request: HttpRequest, pks: list[int], values: dict[str, Any]) -> list[str]:
    count = len(values.get("jobs", ()))
    text = ngettext("%(count)d failed job will run again.", "%(count)d failed jobs will run again.", count)
    return [text % {"count": count}, *_are_most(count)]


def _waiting_among(model_admin: Any, request: HttpRequest, pks: list[int], values: dict[str, Any]) -> list[str]:
    jobs = values.get("jobs", [])
    text = ngettext("%(count)d job waits.", "%(count)d jobs wait.", len(jobs)) % {"count": len(jobs)}
    return [text, *canceled_too(_theirs(model_admin, request, jobs, pks)), *_are_most(len(jobs))]


def _are_most(count: int) -> list[str]:
    text = gettext("No more than %(count)d jobs can be changed at once. If there are others, do the same again.")
    return [text % {"count": count}] if count == chosen.MOST else []


def _retry_failed(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    with audit.with_its_entries(model_admin, row):
        count, error = _retried_together(row, values["jobs"])
        _note_count(model_admin, request, row, _("failed jobs retried:"), count, values["reason"])
    outcome = _counted(count)
    if error is not None:
        raise error
    return outcome


def _retried_together(row: TenantQueue, pks: list[int]) -> tuple[int, Exception | None]:
    """As `_retried_in_turn`, and the row is held for a tenth of the time where no job is refused."""
    try:
        with locked(row.pk) as held:
            return _retry_some(held, pks), None
    except NOT_TAKEN as error:
        if isinstance(error, TenantQueueLocked) or not fails_alone(error):
            raise
        return _retried_in_turn(_failed().filter(among(pks), tenant_queue=row).order_by("pk").defer(*UNLISTED))


def _retried_in_turn(jobs: QuerySet[TenantJob]) -> tuple[int, Exception | None]:
    """How many, and what kept one from it: those before it run again all the same."""
    count = 0
    try:
        for job in jobs:
            count += _retried(job)
    except NOT_TAKEN as error:
        return count, error
    return count, None


def _retried(job: TenantJob) -> bool:
    try:
        job.retry()
    except NotRetryable:  # it is not failed any more, or somebody else has retried it
        return False
    return True


def _still_like_that(jobs: QuerySet[TenantJob], pks: list[int], values: dict[str, Any]) -> int:
    return jobs.filter(among(values.get("jobs", ())), among(pks, "tenant_queue")).count()


def _cancel_some(row: TenantQueue, pks: Sequence[int]) -> int:
    """A step of `_cancel_waiting`; see `JobsOfQueues`."""
    return len(cancel.cancel_those(row, pks))


def _retry_some(row: TenantQueue, pks: Sequence[int]) -> int:
    """A step of `_retry_failed`."""
    failed = _failed().filter(among(pks), tenant_queue=row).order_by("pk")
    return len(retry.retry_all(row, list(failed.defer(*UNLISTED))))


CANCEL_WAITING = Confirmed(
    permission="cancel_waiting",
    label=_("Cancel the waiting jobs of selected tenant queues"),
    title=_("Cancel waiting jobs"),
    form=CountForm,
    apply=_cancel_waiting,
    describe=describe,
    warnings=_waiting_among,
    outcomes={
        DONE: ngettext_lazy(
            "The waiting jobs of %(count)d tenant queue were canceled.",
            "The waiting jobs of %(count)d tenant queues were canceled.",
            "count",
        ),
        JOBS: ngettext_lazy("%(count)d job was canceled.", "%(count)d jobs were canceled.", "count"),
        **LEFT,
    },
    initial=lambda pks: _shown(_waiting(), pks),
    rows_changed=lambda pks, values: _still_like_that(_waiting(), pks, values),
    in_background=JobsOfQueues(_cancel_some, _("waiting jobs canceled:")),
    counts=JOBS,
)
RETRY_FAILED = Confirmed(
    permission="retry_failed",
    label=_("Retry the failed jobs of selected tenant queues"),
    title=_("Retry failed jobs"),
    form=AsShown,
    apply=_retry_failed,
    describe=str,
    warnings=_failed_among,
    outcomes={
        DONE: ngettext_lazy(
            "The failed jobs of %(count)d tenant queue will run again.",
            "The failed jobs of %(count)d tenant queues will run again.",
            "count",
        ),
        JOBS: ngettext_lazy("%(count)d job will run again.", "%(count)d jobs will run again.", "count"),
        **LEFT,
    },
    initial=lambda pks: _shown(_failed(), pks),
    rows_changed=lambda pks, values: _still_like_that(_failed(), pks, values),
    in_background=JobsOfQueues(_retry_some, _("failed jobs retried:")),
    counts=JOBS,
)
