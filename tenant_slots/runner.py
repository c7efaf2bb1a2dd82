"""What RQ calls: find the function, run it in the job's slot, say how it ended."""

from __future__ import annotations

import json
import logging
import signal
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar
from uuid import UUID

from rq import Retry, get_current_job
from rq.job import Job
from rq.timeouts import BaseDeathPenalty

from tenant_slots import dispatch, line, methods, recording, recovery, shared, slots, tenants
from tenant_slots.arguments import json_problem
from tenant_slots.busy import WAIT
from tenant_slots.coroutines import completed
from tenant_slots.decorators import TenantTask, resolve
from tenant_slots.models import State, TenantJob
from tenant_slots.progress import reporting
from tenant_slots.recording import Outcome

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")

RESULT_BYTES = 1024 * 1024
"""Largest result kept in a row: a page that lists jobs should never have to read more."""

_running_here: ContextVar[str] = ContextVar("tenant_slots_running_here", default="")


def run_job(job_id: str, attempt: int) -> Any:
    """The function of every RQ job that `.enqueue()` leads to. Runs nothing when the attempt is not current.

    Args:
        job_id: the job's UUID.
        attempt: the fence: what the job's row must say too.
    """
    uuid = UUID(job_id)
    job = _started_by_worker(uuid, attempt) or recording.begin(uuid, attempt, _worker_name())
    if job is None:
        logger.warning("attempt %s of job %s is not to be run: it ended, was canceled or runs", attempt, uuid)
        return None
    return _run_in_slot(job, lambda: _run_stored(job))


def _run_stored(job: TenantJob) -> Any:
    task = resolve(job.task)
    return completed(task.function(*methods.object_of(task, job), *job.args, **job.kwargs))


def call(task: TenantTask[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What calling a decorated function does: as the function of a plain RQ job it takes a slot, else it just runs."""
    rq_job = get_current_job()
    if rq_job is None or _running_here.get() == rq_job.id or _task_of(rq_job) is not task:
        return task.function(*args, **kwargs)
    return _run_plain(task, rq_job, args, kwargs)


def _started_by_worker(uuid: UUID, attempt: int) -> TenantJob | None:
    job, shared.this.started = shared.this.started, None
    return job if job is not None and (job.uuid, job.attempt) == (uuid, attempt) else None


def _worker_name() -> str:
    rq_job = get_current_job()
    return (rq_job and rq_job.worker_name) or ""


def _task_of(rq_job: Job) -> object:
    try:
        return getattr(rq_job.func, "tenant_task", None)
    except Exception:  # an RQ job whose function this process cannot import is none of ours
        return None


def _run_plain(task: TenantTask[..., Any], rq_job: Job, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    tenant = tenants.tenant_of(task, args, kwargs)
    if tenant == tenants.NO_TENANT:
        return completed(task.function(*args, **kwargs))
    key = tenants.key_of(task, args, kwargs)
    job = recording.persistently(lambda: _joined(task, tenant, rq_job, key))
    if job is not None and job.state == State.RUNNING:
        logger.warning("RQ delivered job %s a second time while it runs; this delivery does nothing", rq_job.id)
        return None
    if job is not None and job.state == State.WAITING and task.on_busy != WAIT:
        recording.persistently(lambda: _turn_away(job))
        if job.has_ended:
            return None
        if job.state == State.SCHEDULED:
            return dispatch.put_off(rq_job, until=job.run_after)
    if job is None or job.state != State.QUEUED or not recording.start(job, _worker_name()):
        return dispatch.put_off(rq_job)
    token = _running_here.set(rq_job.id)
    try:
        return _run_in_slot(job, lambda: completed(task.function(*args, **kwargs)))
    finally:
        _running_here.reset(token)


def _turn_away(job: TenantJob) -> None:
    line.turn_away(job.tenant_queue_id, [job])
    job.refresh_from_db()


def _joined(task: TenantTask[..., Any], tenant: str, rq_job: Job, key: str) -> TenantJob:
    """The job in its tenant's line, after the line has had a chance to move."""
    row = tenants.tenant_queue_for(tenant, task.queue)
    job = line.join(row, task, rq_job, key)
    if job.state == State.RUNNING and recovery.reclaim_if_dead(job):
        job = line.join(row, task, rq_job, key)
    if job.state == State.WAITING:
        _admit_for(job)
    return job


def _admit_for(job: TenantJob) -> None:
    """Let the line move; `job` is up to date afterwards. It starts here, so it is not pushed."""
    admitted = slots.admit(job.tenant_queue_id)
    line.push([other for other in admitted if other.pk != job.pk])
    job.refresh_from_db(fields=["state", "attempt"])


def _run_in_slot(job: TenantJob, function: Callable[[], T]) -> T | None:
    with reporting(job) as reporter:
        try:
            result = function()
            _disarm_timeout()
        except BaseException as error:
            _disarm_timeout()
            _hand_in(job, _after_error(job, error) | reporter.end())
            raise
    reported = reporter.end()
    if isinstance(result, Retry) and not job.rq_job_id:
        again = _after_retry(job, result.max, result.intervals, "the job asked to run again")
        _hand_in(job, again | reported)
        return None
    _hand_in(job, {"state": State.FINISHED, "result": _storable(result)} | reported)
    return result


def _hand_in(job: TenantJob, outcome: Outcome) -> None:
    """Leave the outcome to the worker where it has started the job, else record it here."""
    if shared.this.outbox is not None and not job.rq_job_id:
        shared.this.outbox.put(outcome)
    else:
        recording.end(job, outcome)


def _after_error(job: TenantJob, error: BaseException) -> Outcome:
    text = recording.storable_error("".join(traceback.format_exception(error)))
    retry = None if job.rq_job_id else job.options.get("retry")
    if retry is None:
        return {"state": State.FAILED, "error": text, "failures": job.failures + 1}
    return _after_retry(job, retry["max"], retry["intervals"], text)


def _after_retry(job: TenantJob, most: int, intervals: list[int], error: str) -> Outcome:
    """What becomes of a job that is to run again: at most `most` more times, after the next of `intervals` seconds."""
    failures = job.failures + 1
    if failures > most:
        return {"state": State.FAILED, "error": error, "failures": failures}
    seconds = intervals[min(failures, len(intervals)) - 1]
    if not seconds:
        return {"state": State.WAITING, "error": error, "failures": failures}
    return {
        "state": State.SCHEDULED,
        "error": error,
        "failures": failures,
        "later": seconds,
    }


def _storable(result: Any) -> Any:
    """The result if it is JSON of a sensible size; RQ keeps any one in Redis for ``result_ttl`` seconds."""
    problem = json_problem(result)
    if not problem and len(json.dumps(result)) > RESULT_BYTES:
        problem = f"it takes more than {RESULT_BYTES} bytes"
    if problem:
        logger.info("the result is kept by RQ only: %s", problem)
        return None
    return result


def _disarm_timeout() -> None:
    """RQ's alarm is for the function; from here on it would interrupt the recording of a job that has ended."""
    if hasattr(signal, "SIGALRM"):
        handler = signal.getsignal(signal.SIGALRM)
        if isinstance(getattr(handler, "__self__", None), BaseDeathPenalty):
            signal.alarm(0)
