"""What RQ calls for a job that was enqueued with ``.enqueue()``, and running any job's function in its slot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, cast
from uuid import UUID

from django.db import Error
from rq import Retry, get_current_job
from rq.job import Job

from tenant_slots import alarm, logs, transitions
from tenant_slots.db import clock
from tenant_slots.db.commits import after_commit
from tenant_slots.exact_json import size_of
from tenant_slots.exceptions import InvalidOption, RetriesExceeded
from tenant_slots.interruptions import EndedAtOnce
from tenant_slots.models import EXPIRED, State, TenantJob
from tenant_slots.models.shapes import is_retry
from tenant_slots.running import busy, callbacks, deliveries, errors, unknown_tasks
from tenant_slots.running.coroutines import completed_in_context, in_same_loop
from tenant_slots.running.progress import reporting
from tenant_slots.running.recording import NOT_BEGUN, Outcome, storable_error
from tenant_slots.running.run import Run, job_around
from tenant_slots.running.stock_horse import parting_after_it
from tenant_slots.tasks import attempts, context, methods
from tenant_slots.tasks.arguments import json_problem
from tenant_slots.tasks.options import LONGEST
from tenant_slots.tasks.registry import registered, task_of
from tenant_slots.tasks.tenant_busy import TenantBusy
from tenant_slots.validation import one_more

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")

RESULT_BYTES = 1024 * 1024
"""Largest result kept in a row: a page that lists jobs should never have to read more."""


def run_job(job_id: str, attempt: int) -> Any:
    """The function of every RQ job that `.enqueue()` leads to. Runs nothing when the attempt is not current.

    Args:
        job_id: the job's UUID.
        attempt: the fence: what the job's row must say too.
    """
    with context.delivered(), parting_after_it():
        return _run_delivered(get_current_job(), job_id, attempt)


def _run_delivered(rq_job: Job | None, job_id: str, attempt: int) -> Any:
    if rq_job:
        deliveries.says_nothing_of_errors(rq_job, job_id)
    run = Run.of(rq_job)
    if not run.begin(UUID(job_id), attempt):
        text = "attempt %s of job %s is not to be run: it ended, was canceled or runs"
        logger.warning(text, attempt, job_id, extra=logs.about_named(job=job_id, attempt=attempt))
        if rq_job:  # it has left RQ's list, so that there is room for another one
            after_commit(partial(transitions.feed, rq_job.origin))
        return deliveries.ignored(rq_job, _row_of(job_id, attempt)) if rq_job else None
    if run.is_overtaken():
        run.end(NOT_BEGUN)
        return None
    with suppress(TenantBusy):  # RQ has this attempt as one that ended; another one comes
        return run_in_slot(run, run_stored)
    return None


def _row_of(job_id: str, attempt: int) -> TenantJob | None:
    """The job, if this attempt is its last one, for RQ's record of the attempt."""
    with suppress(Error):
        return TenantJob.objects.filter(uuid=job_id, attempt=attempt).first()
    return None


def run_in_slot(run: Run, function: Callable[[TenantJob], T]) -> T | None:
    """Call the function of a run that has begun, and record how it ended.

    It gives `require_possible` what came of the job.

    Raises:
        TenantBusy: the function has; the job is back in its backlog.
        EndedAtOnce: its end is not recorded.
        BaseException: whatever else it raises, or an error in its place.
    """
    try:
        with alarm.kept() if job_around() is not None else nullcontext():
            return _called_and_recorded(run, function)
    finally:
        run.charge_what_followed()


def _called_and_recorded(run: Run, function: Callable[[TenantJob], T]) -> T | None:
    job = run.job
    assert job is not None, "a function is called whose run has not begun"
    if _is_expired(job):
        run.end({"state": State.CANCELED, "error": EXPIRED, "unstarted": True})
        return None
    failure: BaseException | None = None
    with reporting(job) as reporter:
        try:
            run.require_time()
            with in_same_loop():
                result = function(job)
            alarm.disarm()
        except EndedAtOnce:
            alarm.disarm()
            raise  # its worker records that
        except BaseException as error:
            alarm.disarm()
            if back := unknown_tasks.put_back(job, error):
                run.end(back)
                return None
            if back := busy.put_back(error):
                run.end(back | _noted(run, job, attempts.NO_ERROR, back["error"]) | reporter.end())
                raise
            described, failure = errors.described(error)
            text = storable_error(described)
            outcome = _failed_or_again(job, text, error) | {"error_class": errors.class_of(error)}
            run.end(outcome | _noted(run, job, errors.class_path(error), text) | reporter.end())
            callbacks.tell_failure(job, error, run.has_become)
            if isinstance(error, RetriesExceeded) and job.rq_job_id:
                return cast(T, error.retry)  # RQ counts as we have done, and notes why the job has failed
            if failure is error:
                failure = None  # by this frame, which its traceback holds, it would hold itself
                raise
    if failure is not None:
        try:
            raise failure  # here, where it gets no context: RQ would format that too
        finally:
            failure = None
    reported = reporter.end()
    if isinstance(result, Retry) and not job.rq_job_id:
        text = "the job asked to run again"
        again = _after_retry(job, result.max, result.intervals, text)
        run.end(again | _noted(run, job, attempts.NO_ERROR, text) | reported)
        return None
    run.end({"state": State.FINISHED, "result": _storable(job, result)} | reported)
    callbacks.tell_success(job, result, run.has_become)
    return result


def _is_expired(job: TenantJob) -> bool:
    """Whether its first run begins when its time is over: no sweep has come to it before a worker.

    What had begun before has no such time any more.
    """
    if job.expires_at is None:
        return False
    began: datetime = job.started_at or clock.now()
    expires_at: datetime = job.expires_at
    return began >= expires_at


def run_stored(job: TenantJob) -> Any:
    """Call the function of a job as its row has it."""
    job.require_readable("context")
    return completed_in_context(job, _call_of(job), require_possible)


def _call_of(job: TenantJob) -> Callable[[], Any]:
    """What calls the function; or raises why it cannot be called, in the job's context: errors are told of there.

    Raises:
        UnknownJob: the job is to go back, which is no failure.
    """
    try:
        task = task_of(job)
        job.require_readable("args", "kwargs", "options")
        function = task.called_for(job)
    except Exception as error:
        if unknown_tasks.put_back(job, error):
            raise
        return partial(_fail, error)
    return partial(task.result_of, lambda: function(*methods.object_of(task, job), *job.args, **job.kwargs))


def _fail(error: Exception) -> None:
    raise error


def _noted(run: Run, job: TenantJob, error: str | None, text: str) -> Outcome:
    """That this run has not ended well, for the page of the job."""
    return attempts.noted(job, error, text, run.worker, run.seconds_since_start)


def _failed_or_again(job: TenantJob, text: str, error: BaseException) -> Outcome:
    retry = None if job.rq_job_id else job.options.get("retry")
    if retry is None or not _is_retried_for(job, error):
        failed = {"state": State.FAILED, "error": text, "failures": one_more(job.failures)}
        return failed | unknown_tasks.forgotten(job)
    return _after_retry(job, retry["max"], retry["intervals"], text)


def _is_retried_for(job: TenantJob, error: BaseException) -> bool:
    task = registered.get(job.task)
    return not isinstance(error, RetriesExceeded) and (task is None or isinstance(error, task.retry_for))


def require_possible(job: TenantJob, result: Any) -> None:
    """Raises InvalidOption or RetriesExceeded for a Retry with which the job cannot run again."""
    _require_meaning(job, result)
    _require_retries_left(job, result)


def _require_meaning(job: TenantJob, result: Any) -> None:
    """Raises InvalidOption for a Retry that does not say when the job is to run again; RQ makes such ones (2.12)."""
    if isinstance(result, Retry) and not is_retry({"max": result.max, "intervals": result.intervals}):
        problem = "give a whole number of runs, and for each of them, or for all, how many seconds to wait"
        raise InvalidOption(option="retry", value=result, task=job.task, problem=problem)


def _require_retries_left(job: TenantJob, result: Any) -> None:
    """Raises RetriesExceeded for a Retry that allows no more runs. Of a plain job RQ knows how many there were."""
    if not isinstance(result, Retry):
        return
    rq_job = get_current_job() if job.rq_job_id else None
    times = (rq_job.number_of_retries or 0) if rq_job else job.failures
    if times >= result.max:
        raise RetriesExceeded(task=job.task, retry=result)


def _after_retry(job: TenantJob, most: int, intervals: list[int], error: str) -> Outcome:
    """What becomes of a job that is to run again: at most `most` more times, after the next of `intervals` seconds."""
    failures = one_more(job.failures)
    if failures > most:
        return {"state": State.FAILED, "error": error, "failures": failures} | unknown_tasks.forgotten(job)
    seconds = min(intervals[min(failures, len(intervals)) - 1], LONGEST.total_seconds())
    if not seconds:
        return {"state": State.WAITING, "error": error, "failures": failures}
    return {
        "state": State.SCHEDULED,
        "error": error,
        "failures": failures,
        "later": seconds,
    }


def _storable(job: TenantJob, result: Any) -> Any:
    """The result if it is JSON of a sensible size; RQ keeps any one in Redis for ``result_ttl`` seconds."""
    if problem := result_problem(result):
        logger.info("the result is kept by RQ only: %s", problem, extra=logs.about(job))
        return None
    return result


def result_problem(result: Any) -> str:
    """Why a row does not keep it; empty when it does."""
    if problem := json_problem(result):
        return problem
    try:
        is_large = size_of(result) > RESULT_BYTES
    except Exception as error:  # of a class of its own that pretends to be one of JSON's
        return f"writing it raises {type(error).__name__}"
    return f"it takes more than {RESULT_BYTES} bytes" if is_large else ""
