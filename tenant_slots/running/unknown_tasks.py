"""What becomes of a job whose function this worker does not know.

While a deploy goes on, workers of the old release meet jobs of the new one. Such a job goes back, and another worker,
or this one's successor, runs it. That ends after ``UNKNOWN_TASK_WAIT`` seconds: then nobody knows the function.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tenant_slots.conf import app_settings
from tenant_slots.exceptions import UnknownJob
from tenant_slots.models import UNKNOWN_TASK, State, TenantJob
from tenant_slots.running.recording import Outcome

PAUSE = 10
"""Seconds until such a job is tried again: each try costs a work-horse."""


def put_back(job: TenantJob, error: BaseException) -> Outcome | None:
    """The job is to wait: neither a failure nor a crash. None when the error is another, or the wait is over."""
    if not isinstance(error, UnknownJob) or job.admitted_at is None:
        return None
    since = _first_met(job, job.admitted_at)
    if job.admitted_at - since >= timedelta(seconds=app_settings.UNKNOWN_TASK_WAIT):
        return None
    mark = {"since": since.isoformat(), "attempt": job.attempt}
    return {
        "state": State.SCHEDULED,
        "error": f"waits for a worker that knows its function: {error}",
        "options": {**job.options, UNKNOWN_TASK: mark},
        "later": PAUSE,
        "unstarted": True,
    }


def forgotten(job: TenantJob) -> dict[str, Any]:
    """Without the mark, for a job that fails: if somebody retries it, it waits as long again."""
    if UNKNOWN_TASK not in job.options:
        return {}
    return {"options": {name: job.options[name] for name in job.options if name != UNKNOWN_TASK}}


def _first_met(job: TenantJob, now: datetime) -> datetime:
    """By the database's clock, as the time of an admission is. An attempt between that ran ends one wait."""
    mark = job.options.get(UNKNOWN_TASK)
    return datetime.fromisoformat(mark["since"]) if mark and mark["attempt"] == job.attempt - 1 else now
