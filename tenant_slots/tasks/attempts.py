"""What a call of one of Django's Tasks keeps of its runs: each one that failed. A row itself has only the last one.

It stands among the options of the job, beside what marks it as such a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenant_slots.models import TenantJob

MARK = "task"
"""Of a job's options: that it is a call of one of Django's Tasks, by which backend, and its runs that failed."""

RUN_LOST = "tenant_slots.exceptions.TaskRunLost"
"""The error of a run whose process died."""

LONGEST_TEXT = 4000
"""Characters kept of the error of each run, from its end. The row has more of the last one."""

MOST_TEXTS = 25
"""Runs whose errors are kept as text; of those before it is known where they were, and what they raised."""


def is_call(job: TenantJob) -> bool:
    """Whether the job is a call of one of Django's Tasks."""
    return MARK in job.options


def failed_runs(job: TenantJob) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = job.options[MARK].get("runs", [])
    return runs


def noted(job: TenantJob, error: str, text: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the outcome of a run that has failed says besides; nothing unless the job is a call of a Task.

    Args:
        job: as it was while it ran.
        error: the dotted path of the class of what was raised.
        text: its traceback, or what happened.
        options: those that the job is to have, if they are others than it has.
    """
    if not is_call(job):
        return {}
    mark = job.options[MARK]
    run = {
        "attempt": job.attempt,
        "started": job.started_at.isoformat() if job.started_at else None,
        "worker": job.worker,
        "error": error,
        "text": text[-LONGEST_TEXT:],
    }
    earlier = mark.get("runs", [])
    older, recent = earlier[: -MOST_TEXTS + 1], earlier[-MOST_TEXTS + 1 :]
    runs = [*({**one, "text": ""} for one in older), *recent, run]
    return {"options": {**(job.options if options is None else options), MARK: {**mark, "runs": runs}}}
