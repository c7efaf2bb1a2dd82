"""`on_success` and `on_failure` of a function: called in the job's process once it is decided how the job has ended.

They change nothing about that: what they raise is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from rq import Retry, get_current_job
from rq.defaults import CALLBACK_TIMEOUT
from rq.timeouts import JobTimeoutException

from tenant_slots import alarm, logs
from tenant_slots.db import transactions
from tenant_slots.exceptions import RetriesExceeded
from tenant_slots.models import State, TenantJob
from tenant_slots.running import recording
from tenant_slots.running.coroutines import completed_in_context
from tenant_slots.tasks.registry import registered

logger = logging.getLogger("tenant_slots")

SECONDS = CALLBACK_TIMEOUT
"""As RQ gives its own callbacks, a minute (RQ 2.12): the slot may still be taken, and the worker waits."""


class Unnamed:
    """What came of a job, in frames that are none of the project's: tools for errors show their variables."""

    def __init__(self, value: Any) -> None:
        self.value = value


HasBecome = Callable[[State], bool]
"""Whether the job is in this state by now, which may take a query: asked only where somebody is to be told."""


def tell_success(job: TenantJob, result: Any, has_become: HasBecome) -> None:
    """Not of a plain RQ job that has asked RQ to run it again."""
    task = registered.get(job.task)
    if task is None or task.on_success is None or isinstance(result, Retry):
        return
    if has_become(State.FINISHED):
        _call(task.on_success, job, State.FINISHED, Unnamed(result))


def tell_failure(job: TenantJob, error: BaseException, has_become: HasBecome) -> None:
    """Not of a plain RQ job that RQ has retries left for."""
    task = registered.get(job.task)
    if task is None or task.on_failure is None or _is_retried_by_rq(job, error):
        return
    if has_become(State.FAILED):
        _call(task.on_failure, job, State.FAILED, Unnamed(error))


def _is_retried_by_rq(job: TenantJob, error: BaseException) -> bool:
    """What RQ has left for errors is not for a Retry that the function has returned too often."""
    if isinstance(error, RetriesExceeded):
        return False
    rq_job = get_current_job() if job.rq_job_id else None
    return rq_job is not None and rq_job.should_retry


def _call(callback: Callable[[TenantJob, Any], object], job: TenantJob, state: State, came: Unnamed) -> None:
    """With the job as it is by now, in its context; its row may be written a moment later, by its worker."""
    job.state = state
    before = recording.found()
    try:
        with alarm.kept(), transactions.kept_unbroken(), alarm.time_limit(SECONDS, JobTimeoutException):
            completed_in_context(job, lambda: callback(job, came.value))
    except KeyboardInterrupt:
        raise
    except BaseException:
        name = getattr(callback, "__qualname__", callback)
        logger.exception("%s of job %s failed", name, job.uuid, extra=logs.about(job))
    finally:
        recording.leave_leftovers(job, before)
