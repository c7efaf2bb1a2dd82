"""What RQ's record of a job of ours says, or does not say, of a delivery.

Of an error it says whose it is: RQ's pages are open to all staff, whoever may see errors in our admin.

For a delivery that is not to run the record stays as it was, by what the function returns. RQ may deliver a job twice:
after a cleanup of its registries, a requeue by hand, a push whose answer was lost. It takes what the second delivery
returns for a success: it would call the job finished while the first still runs, overwrite its result and start its
dependents. All that leans on RQ's private parts here was read in RQ 2.12.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from redis.client import Pipeline
from rq import Queue, Retry
from rq.job import Job, JobStatus
from rq.registry import ScheduledJobRegistry
from rq.utils import as_text, now

from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.models import State, TenantJob

AGAIN = "tenant_slots_again"
"""Field of RQ's record of a job: the run that a second delivery waits for."""

STATUS = {State.FINISHED: JobStatus.FINISHED, State.FAILED: JobStatus.FAILED}
"""RQ's words for how a job ended; where nothing came of it the delivery was canceled."""

DEFAULT_TTL = 500
"""Seconds for which RQ keeps the record of a job whose project did not say (RQ 2.12, DEFAULT_RESULT_TTL)."""


def says_nothing_of_errors(rq_job: Job, uuid: str) -> None:
    """Whatever the delivery raises, RQ keeps `failure_text` of it; exception handlers get the error itself."""
    handle_failure = rq_job._handle_failure

    def handle(exc_string: str, *args: Any, **kwargs: Any) -> None:
        handle_failure(failure_text(uuid), *args, **kwargs)

    rq_job._handle_failure = handle  # type: ignore[method-assign]


def failure_text(uuid: str) -> str:
    """In place of the traceback of a job of ours."""
    return (
        f"Job {uuid} of tenant_slots has failed. Its error is on its page under Tenant jobs, for those who may see it."
    )


def ignored(rq_job: Job, job: TenantJob | None) -> Retry:
    """For a delivery that is not to run, now or later.

    Args:
        job: the row as it is now: it runs, has ended, or waits for another delivery; None when there is none.
    """
    if job is not None and job.state == State.RUNNING:
        _name_the_worker_of(job, rq_job)
    else:
        rq_job.set_status(STATUS[State(job.state)] if job and job.state in STATUS else JobStatus.CANCELED)
        rq_job.connection.hdel(rq_job.key, AGAIN)
        rq_job.cleanup(rq_job.get_result_ttl(DEFAULT_TTL), remove_from_queue=False)
    return _recorded_by(rq_job, lambda **_: None)


def again(rq_job: Job) -> Retry:
    """For a delivery that changed RQ's record of the job: the job is the next one of its queue, as it is now."""

    def record(queue: Queue, pipeline: Pipeline, **_: object) -> None:
        queue._enqueue_job(rq_job, pipeline=pipeline, at_front=True)

    return _recorded_by(rq_job, record)


def deferred(rq_job: Job, until: datetime | None = None, seconds: float | None = None) -> Retry:
    """What a plain RQ job returns to run again at a time or so much later, ``RESCHEDULE_DELAY`` seconds without either.

    Waiting is no run. RQ would count it against the limit of the function's own Retry, and keep it among the last few
    results of the job (RQ 2.12, ``Job._handle_retry_result``), where others take it for what came of the job.
    """
    if seconds is None:
        seconds = (until - clock.now()).total_seconds() if until else app_settings.RESCHEDULE_DELAY
    when = now() + timedelta(seconds=max(1, ceil(seconds)))

    def record(queue: Queue, pipeline: Pipeline, **_: object) -> None:
        queue.schedule_job(rq_job, when, pipeline=pipeline)

    return _recorded_by(rq_job, record)


def later(rq_job: Job, job: TenantJob) -> Retry:
    """For a second delivery while the first seems to run: it comes back, in case that one was lost.

    `forget_later` takes it back when the first has ended as it should.
    """
    when = now() + timedelta(seconds=app_settings.RESCHEDULE_DELAY)
    _name_the_worker_of(job, rq_job)
    return _recorded_by(rq_job, lambda pipeline, **_: _schedule(rq_job, job, when, pipeline))


def forget_later(rq_job: Job) -> None:
    """The run has ended: a second delivery of it that has come meanwhile is not to come back.

    The mark is left to one that is on its way, see `has_run`.
    """
    if rq_job.connection.zrem(_scheduled(rq_job).key, rq_job.id):
        rq_job.connection.hdel(rq_job.key, AGAIN)


def has_run(rq_job: Job) -> TenantJob | None:
    """The run that this delivery has waited for, as it came while that went on, if it has finished and was not lost."""
    mark = rq_job.connection.hget(rq_job.key, AGAIN)
    if mark is None:
        return None
    return TenantJob.objects.filter(uuid=as_text(mark), state=State.FINISHED).first()


def _scheduled(rq_job: Job) -> ScheduledJobRegistry:
    return ScheduledJobRegistry(rq_job.origin, connection=rq_job.connection)  # type: ignore[no-untyped-call]


def _schedule(rq_job: Job, job: TenantJob, when: datetime, pipeline: Pipeline) -> None:
    pipeline.hset(rq_job.key, AGAIN, str(job.uuid))
    # RQ's ScheduledJobRegistry.schedule takes a pipeline, and does not use it.
    pipeline.zadd(_scheduled(rq_job).key, {rq_job.id: int(when.timestamp())})


def _recorded_by(rq_job: Job, record: Callable[..., None]) -> Retry:
    """A Retry, for which RQ starts no dependents and calls nothing finished; what it records of one is replaced."""
    rq_job._handle_retry_result = record  # type: ignore[method-assign]
    return Retry(max=sys.maxsize)


def _name_the_worker_of(job: TenantJob, rq_job: Job) -> None:
    """RQ has just noted that our worker runs the job; a stop command must go to the one that does.

    Not where the worker is a stock one: the sweep knows by the name whose heartbeats RQ has, see
    `fleet.last_heartbeat`.
    """
    ours = (rq_job.worker_name or "").encode()

    def change(pipeline: Pipeline) -> None:
        is_ours = pipeline.hget(rq_job.key, "worker_name") == ours
        pipeline.multi()
        if is_ours:
            pipeline.hset(rq_job.key, "worker_name", job.worker)

    if job.beats:
        rq_job.connection.transaction(change, rq_job.key)
