"""The page of one job: how it fares, why it waits, what may be done with it, and what has become of it."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.options import IS_POPUP_VAR
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import arguments, errors, job_chains, progress, reasons, timeline
from tenant_slots.admin.hosts import name_hosts
from tenant_slots.admin.pages import address, address_of
from tenant_slots.admin.permissions import JobPermissions
from tenant_slots.admin.polling import INTERVALS
from tenant_slots.admin.words import NOTHING
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.stats import dependencies, sweeps
from tenant_slots.stats.sweeps import Look

ACTIONS: dict[str, tuple[str, ...]] = {
    State.SCHEDULED: ("cancel", "set_priority"),
    State.WAITING: ("cancel", "set_priority"),
    State.QUEUED: ("cancel", "release"),
    State.RUNNING: ("stop", "release"),
    State.FAILED: ("retry",),
    State.CANCELED: ("retry",),
}
"""What the page offers in each state, of the actions of the list that the viewer may run."""

LABELS = {
    "cancel": _("Cancel this job"),
    "stop": _("Stop this job"),
    "retry": _("Retry this job"),
    "set_priority": _("Change its priority"),
    "release": _("Release its slot"),
}


class JobPage(JobPermissions):
    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """With all of its columns, which the list does without, and its tenant queue. Read once for a page."""
        if from_field:
            return super().get_object(request, object_id, from_field)
        read = vars(request).setdefault("slots_jobs", {})
        if object_id not in read:
            read[object_id] = self._read(request, object_id)
        return read[object_id]

    def _read(self, request: HttpRequest, object_id: str) -> TenantJob | None:
        try:
            key = self.opts.pk.to_python(object_id)
        except ValidationError:
            return None
        jobs = self.get_queryset(request).defer(None).select_related("tenant_queue")
        looked = jobs.annotate(seen_at=DatabaseNow(), swept_until=sweeps.claimed_until())
        return looked.annotate(has_dependencies=dependencies.exist()).filter(pk=key).first()

    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        context = {**self._summary(request, object_id), **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)

    def _summary(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        job = self.get_object(request, object_id)
        if job is None or not self.has_view_permission(request, job):
            return {}
        if job.state == State.RUNNING:
            name_hosts([job])
        trusted = self.has_view_arguments_permission(request)
        return {
            "title": job.task,
            "subtitle": None,
            "slots_job": job,
            "slots_facts": self._facts(request, job),
            "slots_why": reasons.why_waiting(
                job, job_chains.seen_by(self, request), look=Look(job.seen_at, job.swept_until)
            ),
            "slots_chains": job_chains.of(self, request, job),
            "slots_progress": "" if (bar := progress.bar(job)) == NOTHING else bar,
            "slots_statistics": "" if (figures := progress.statistics(job)) == NOTHING else figures,
            "slots_durations": timeline.durations_of(job, timezone.now()),
            "slots_events": timeline.events_of(job, shows_errors=trusted),
            "slots_earlier": timeline.earlier_attempts(job),
            "slots_error": job.error if trusted else _class_of_error(job),
            "slots_result": arguments.shown_result(job) if trusted else "",
            "slots_actions": self._actions(request, job),
            "slots_actions_url": address(self, "changelist"),
            "slots_workers_url": self._of_queues(request, "workers"),
            "slots_intervals": INTERVALS,
            "slots_every": INTERVALS[2],
        }

    def _facts(self, request: HttpRequest, job: TenantJob) -> dict[str, Any]:
        row = job.tenant_queue
        queue_url = self._of_queues(request, "change", row.pk)
        return {
            "row": row,
            "row_url": queue_url,
            "rq_queue": "" if job.rq_queue_name == row.queue else job.rq_queue_name,
        }

    def _of_queues(self, request: HttpRequest, page: str, *args: Any) -> str:
        """The address of a page of tenant queues, "" for those who have none."""
        return address_of(self, request, TenantQueue, page, *args)

    def _actions(self, request: HttpRequest, job: TenantJob) -> list[tuple[str, str]]:
        """Name and label. They ask first, as from the list."""
        offered = {} if IS_POPUP_VAR in request.GET else self.get_actions(request)
        names = ACTIONS.get(job.state, ())
        if "retry" in names and not TenantJob.objects.retryable().filter(pk=job.pk).exists():
            names = ()
        return [(name, str(LABELS[name])) for name in names if name in offered]


def _class_of_error(job: TenantJob) -> str:
    """Not a word more, for who may not see arguments."""
    return job.error_class or errors.class_of(job) or (arguments.HIDDEN if job.error else "")
