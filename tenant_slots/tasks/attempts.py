"""What a job keeps of its runs that did not bring it to its end well: a row itself has the times of the last one only.

A job that ends well at its first attempt has none of it, and none is written for it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tenant_slots.db import clock
from tenant_slots.models import State, TenantJob
from tenant_slots.models.shapes import MOST_RUNS_NUMBERED

MARK = "task"
"""Of a job's options: that it is a call of one of Django's Tasks, and by which backend."""

RUN_LOST = "tenant_slots.exceptions.TaskRunLost"
"""The error of a run whose process died."""

CANCELED = "tenant_slots.exceptions.TaskCanceled"
"""The error of a run that somebody canceled."""

NO_ERROR = None
"""Of a run that asked to be put back, as it is no failure. A class may have a name that cannot be read: ""."""

NOT_RAISED = (NO_ERROR, RUN_LOST, CANCELED)

LONGEST_TEXT = 4000
"""Characters kept of the error of each run, from its end. The row has more of the last one."""

MOST_TEXTS = 25
"""Runs whose errors are kept as text; of those before it is known where they were, and what they raised."""

MOST_RUNS = 200
"""That are kept, the latest ones."""


def is_call(job: TenantJob) -> bool:
    """Whether the job is a call of one of Django's Tasks."""
    return MARK in job.options


def ended_runs(job: TenantJob) -> list[dict[str, Any]]:
    """The earliest first: ``number``, ``attempt``, ``started``, ``ended``, ``worker``, ``error`` and ``text``."""
    runs: list[dict[str, Any]] = job.runs or []
    return runs


def raised(job: TenantJob) -> str:
    """The class of the error with which the run has ended that `job` was released from; empty where it raised none.

    As far as it was read: no database is asked.
    """
    for run in (vars(job).get("runs") or [])[-1:]:
        if run["attempt"] == job.attempt and run["error"] not in NOT_RAISED:
            return class_raised(run) or "an error"
    return ""


def class_raised(run: dict[str, Any]) -> str:
    """By a run that has raised, as a traceback names it; empty where its name cannot be read."""
    path: str = run["error"]
    return path.removeprefix("builtins.")


def forgotten_runs(job: TenantJob) -> int:
    """How many there were before those that are kept."""
    return sum(run["number"] - 1 for run in ended_runs(job)[:1])


def noted(job: TenantJob, error: str | None, text: str, worker: str, seconds: float | None) -> dict[str, Any]:
    """What the outcome of a run says besides that has not ended well.

    Args:
        job: as it was while it ran.
        error: the dotted path of the class of what was raised, or `NO_ERROR`.
        text: its traceback, or what happened.
        worker: who ran it; the process that did may have read the job before it was marked as running.
        seconds: for which it has run since the start that `job` has; None if only its row knows when that was.
    """
    is_of_this_run = seconds is not None or job.state == State.RUNNING  # or it is the start of the run before
    started = job.started_at if is_of_this_run else None
    ended = clock.now() if seconds is None or started is None else started + timedelta(seconds=seconds)
    kept = ended_runs(job)
    run = {
        "number": min(kept[-1]["number"] + 1, MOST_RUNS_NUMBERED) if kept else 1,
        "attempt": job.attempt,
        "started": started.isoformat() if started else None,
        "ended": ended.isoformat(),
        "worker": worker,
        "error": error,
        "text": text[-LONGEST_TEXT:],
    }
    earlier = kept[-MOST_RUNS + 1 :]
    older, recent = earlier[: -MOST_TEXTS + 1], earlier[-MOST_TEXTS + 1 :]
    return {"runs": [*({**one, "text": ""} for one in older), *recent, run]}


def has_ended_by_itself(job: TenantJob) -> bool:
    """Whether the last run of a job that does not run has said how it ended: one that is taken for lost is noted so."""
    if job.state == State.FINISHED:
        return True
    attempt = job.attempt - (job.state == State.QUEUED)  # which has been counted when it was admitted again
    return any(run["attempt"] == attempt and run["error"] not in (RUN_LOST, CANCELED) for run in ended_runs(job)[-1:])


def time_of(run: dict[str, Any], name: str) -> datetime | None:
    return datetime.fromisoformat(run[name]) if run[name] else None
