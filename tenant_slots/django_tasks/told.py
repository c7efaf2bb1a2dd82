"""Django's signals of Tasks, sent where ours are: after the commit, in the process that ours are sent in."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.dispatch import Signal

from tenant_slots import signals
from tenant_slots.django_tasks import results
from tenant_slots.django_tasks.api import task_enqueued, task_finished, task_started
from tenant_slots.exceptions import UnknownJob
from tenant_slots.models import TenantJob
from tenant_slots.tasks import attempts


def connect() -> None:
    """Once in a process, however often it is called."""
    for signal, receiver in (
        ("jobs_enqueued", tell_enqueued),
        ("job_started", tell_started),
        ("job_ended", tell_finished),
    ):
        signals.connect_ours(signal, receiver)


def tell_enqueued(*, jobs: list[TenantJob], **_: Any) -> None:
    for job in jobs:
        if attempts.is_call(job):
            _tell(task_enqueued, job)


def tell_started(*, job: TenantJob, **_: Any) -> None:
    if stored := _call_as_stored(job):
        job.started_at, job.worker = stored.started_at, stored.worker  # for what is noted if this run fails
        _tell(task_started, stored)


def tell_finished(*, job: TenantJob, **_: Any) -> None:
    if stored := _call_as_stored(job):
        _tell(task_finished, stored)


def _call_as_stored(job: TenantJob) -> TenantJob | None:
    """None for a job that is no call of a Task, or was deleted since."""
    with suppress(TenantJob.DoesNotExist):
        return results.as_stored(job) if attempts.is_call(job) else None
    return None


def _tell(signal: Signal, job: TenantJob) -> None:
    """Nothing of a Task that this process does not know: why its job waits, or has failed, is told of the job."""
    try:
        result = results.result_of(job)
    except UnknownJob:
        return
    signals.sent_robustly(signal.send_robust, type(result.task.get_backend()), task_result=result)
