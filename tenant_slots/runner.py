"""What RQ calls: take note of the start, run the function, record how it ended.

Recording never changes the outcome of a job: it is tried for half a minute, then left to the sweep.
"""

from __future__ import annotations

import json
import logging
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connections
from rq import Retry, get_current_job
from rq.job import Job
from rq.timeouts import BaseDeathPenalty

from tenant_slots import dispatch, holders, line, recovery, signals, slots, tenants
from tenant_slots.arguments import json_problem
from tenant_slots.conf import app_settings
from tenant_slots.decorators import TenantTask, resolve
from tenant_slots.holders import Holder, this_process
from tenant_slots.models import DatabaseNow, State, TenantJob

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")

PAUSES = (0.05, 0.1, 0.2, 0.5, *[1.0] * 29)
"""Seconds between tries to record something: together the half minute that a database needs to restart."""

ERROR_LENGTH = 20_000
"""Characters kept of an error, from its end, where a traceback says what happened."""

RESULT_BYTES = 1024 * 1024
"""Largest result kept in a row: a page that lists jobs should never have to read more."""

_running_here: ContextVar[str] = ContextVar("tenant_slots_running_here", default="")


def run_job(job_id: int, attempt: int) -> Any:
    """The function of every RQ job that `.enqueue()` leads to. Runs nothing when the attempt is not current."""
    job = _persistently(lambda: _fetched(job_id))
    if job is None or job.attempt != attempt or not _start(job):
        logger.warning(
            "attempt %s of job %s is not to be run: it ended, was canceled or runs elsewhere", attempt, job_id
        )
        return None
    return _run_in_slot(job, lambda: resolve(job.task).function(*job.args, **job.kwargs))


def call(task: TenantTask[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What calling a decorated function does: as the function of a plain RQ job it takes a slot, else it just runs."""
    rq_job = get_current_job()
    if rq_job is None or _running_here.get() == rq_job.id or _task_of(rq_job) is not task:
        return task.function(*args, **kwargs)
    return _run_plain(task, rq_job, args, kwargs)


def warm_up() -> None:
    """Load what the first queries of a process load: a horse that is forked afterwards starts 25 ms sooner."""
    nobody = TenantJob(pk=0, attempt=0, tenant_queue_id=0)
    _fetched(0)
    slots.start(nobody, this_process("", beats=False))
    slots.release(nobody, state=State.FINISHED, ended_at=DatabaseNow())
    connections[app_settings.DATABASE].close()


def _fetched(job_id: int) -> TenantJob | None:
    job: TenantJob | None = TenantJob.objects.select_related("tenant_queue").filter(pk=job_id).first()
    return job


def _task_of(rq_job: Job) -> object:
    try:
        return getattr(rq_job.func, "tenant_task", None)
    except Exception:  # an RQ job whose function this process cannot import is none of ours
        return None


def _run_plain(task: TenantTask[..., Any], rq_job: Job, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    tenant = tenants.tenant_of(task, args, kwargs)
    if tenant == tenants.NO_TENANT:
        return task.function(*args, **kwargs)
    job = _persistently(lambda: _joined(task, tenant, rq_job.id))
    if job is not None and job.state == State.RUNNING:
        logger.warning("RQ delivered job %s a second time while it runs; this delivery does nothing", rq_job.id)
        return None
    if job is None or job.state != State.QUEUED or not _start(job):
        return dispatch.put_off(rq_job)
    token = _running_here.set(rq_job.id)
    try:
        return _run_in_slot(job, lambda: task.function(*args, **kwargs))
    finally:
        _running_here.reset(token)


def _joined(task: TenantTask[..., Any], tenant: str, rq_job_id: str) -> TenantJob:
    """The job in its tenant's line, after the line has had a chance to move."""
    row = tenants.tenant_queue_for(tenant, task.queue)
    job = line.join(row, task, rq_job_id)
    if job.state == State.RUNNING and recovery.reclaim_if_dead(job):
        job = line.join(row, task, rq_job_id)
    if job.state == State.WAITING:
        _admit_for(job)
    return job


def _admit_for(job: TenantJob) -> None:
    """Let the line move; `job` is up to date afterwards. It starts here, so it is not pushed."""
    admitted = slots.admit(job.tenant_queue_id)
    line.push([other for other in admitted if other.pk != job.pk])
    job.refresh_from_db(fields=["state", "attempt"])


def _start(job: TenantJob) -> bool:
    rq_job = get_current_job()
    holder = this_process((rq_job and rq_job.worker_name) or "", beats=holders.this.beats)
    holders.this.witness.taking(job)
    if not _persistently(_starting(job, holder)):
        holders.this.witness.idle()
        return False
    holders.this.witness.holding(job)
    signals.job_started.send_robust(sender=TenantJob, job=job)
    return True


def _starting(job: TenantJob, holder: Holder) -> Callable[[], bool]:
    """A start that may be tried again: the first try may have been committed although its answer was lost."""
    tries = 0

    def start() -> bool:
        nonlocal tries
        tries += 1
        return slots.start(job, holder) or (tries > 1 and slots.is_run_by(job, holder))

    return start


def _run_in_slot(job: TenantJob, function: Callable[[], T]) -> T | None:
    try:
        result = function()
        _disarm_timeout()
    except BaseException as error:
        _disarm_timeout()
        _record_end(job, **_after_error(job, error))
        raise
    if isinstance(result, Retry) and not job.rq_job_id:
        _record_end(job, **_after_retry(job, result.max, result.intervals, "the job asked to run again"))
        return None
    _record_end(job, state=State.FINISHED, result=_storable(result))
    return result


def _record_end(job: TenantJob, **changes: Any) -> None:
    if changes["state"] in (State.FINISHED, State.FAILED):
        changes["ended_at"] = DatabaseNow()
    holders.this.witness.ending()
    released = _persistently(lambda: _release(job, changes))
    if released is None:
        logger.error("the end of job %s could not be recorded; the sweep will find it", job.uuid)
        return
    holders.this.witness.idle()
    if not released:
        logger.warning("job %s ended after its slot had been taken away", job.uuid)
        return
    line.push(released.admitted)
    line.end_signal(job, **changes)


def _release(job: TenantJob, changes: dict[str, Any]) -> slots.Release:
    try:
        return slots.release(job, **changes)
    except (OperationalError, InterfaceError):
        raise
    except DatabaseError:
        logger.exception("the result or error of job %s cannot be stored; its end is", job.uuid)
        bare = {name: value for name, value in changes.items() if name not in ("result", "error")}
        return slots.release(job, **bare)


def _after_error(job: TenantJob, error: BaseException) -> dict[str, Any]:
    text = "".join(traceback.format_exception(error)).replace("\0", "\\0")
    text = text.encode(errors="backslashreplace").decode()[-ERROR_LENGTH:]
    retry = None if job.rq_job_id else job.options.get("retry")
    if retry is None:
        return {"state": State.FAILED, "error": text, "failures": job.failures + 1}
    return _after_retry(job, retry["max"], retry["intervals"], text)


def _after_retry(job: TenantJob, most: int, intervals: list[int], error: str) -> dict[str, Any]:
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
        "run_after": slots.in_seconds(seconds),
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


def _persistently(action: Callable[[], T]) -> T | None:
    """The action's answer; None when the database stayed out of reach for the sum of `PAUSES`."""
    for pause in PAUSES:
        try:
            _leave_users_transaction()
            return action()
        except (OperationalError, InterfaceError) as error:
            logger.warning("the database did not answer, trying again: %s", error)
            connections[app_settings.DATABASE].close()
            time.sleep(pause)
    return None


def _leave_users_transaction() -> None:
    """A function that switched autocommit off and left work behind must not swallow what we record."""
    connection = connections[app_settings.DATABASE]
    if connection.connection is not None and not connection.autocommit and not connection.in_atomic_block:
        connection.close()


def _disarm_timeout() -> None:
    """RQ's alarm is for the function; from here on it would interrupt the recording of a job that has ended."""
    if hasattr(signal, "SIGALRM"):
        handler = signal.getsignal(signal.SIGALRM)
        if isinstance(getattr(handler, "__self__", None), BaseDeathPenalty):
            signal.alarm(0)
