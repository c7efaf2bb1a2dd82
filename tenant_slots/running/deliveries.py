"""What RQ's record of a job of ours says, or does not say, of a delivery.

Of an error it says whose it is: RQ's pages are open to all staff, whoever may see errors in our admin.

For a delivery that is not to run the record stays as it was, by what the function returns. RQ may deliver a job twice:
after a cleanup of its registries, or a push whose answer was lost. It takes what the second delivery returns for a
success: it would call the job finished while the first still runs, overwrite its result and start its dependents. All
that leans on RQ's private parts here was read in RQ 2.12.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from math import ceil
from typing import Any, NamedTuple
from uuid import UUID

from redis.client import Pipeline
from redis.exceptions import RedisError
from rq import Queue, Retry
from rq.defaults import DEFAULT_FAILURE_TTL, DEFAULT_RESULT_TTL
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.results import Result
from rq.utils import as_text, now

from tenant_slots import rq_copies
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.models import State, TenantJob
from tenant_slots.rq_copies import Times, Told
from tenant_slots.running import beside
from tenant_slots.running.recording import persistently

STATUS = {State.FINISHED: JobStatus.FINISHED, State.FAILED: JobStatus.FAILED}
"""RQ's words for how a job ended; where nothing came of it the delivery was canceled."""

STATUS_BY_RESULT = {Result.Type.SUCCESSFUL: JobStatus.FINISHED, Result.Type.FAILED: JobStatus.FAILED}
"""The same where the row is gone, by what RQ has kept of it."""


class Earlier(NamedTuple):
    """Of what is delivered here, another delivery that has run, or was canceled."""

    job: TenantJob | None
    """Its row; None where nobody knows which, as that, or RQ's record, was deleted since."""


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
        status = _status_of(job, rq_job)
        rq_job.set_status(status)
        rq_job.cleanup(_seconds_kept(rq_job, status), remove_from_queue=False)
    return _left_as_it_was(rq_job)


def copy_ignored(rq_job: Job, job: TenantJob | None) -> Retry:
    """As `ignored`, for another delivery of what has run, while RQ may have the job run again for reasons of its own.

    Args:
        job: as of `ignored`: the row of a later run, if there is one.
    """
    if job is None or job.has_ended:
        if rq_copies.is_scheduled(rq_job):
            rq_job.set_status(JobStatus.SCHEDULED)
            return _left_as_it_was(rq_job)
        if rq_copies.is_enqueued_anew(rq_job):
            rq_job.set_status(JobStatus.QUEUED)
            return _left_as_it_was(rq_job)
        if job is not None and _is_forgotten_by_its_run(rq_job, job):
            return _left_as_it_was(rq_job)
    return ignored(rq_job, job)


def _is_forgotten_by_its_run(rq_job: Job, job: TenantJob) -> bool:
    """Whether the record goes as soon as RQ has noted the end of the run, unless another call needs it.

    That may be one that looks as if this run stood for it, as its delivery has not found out yet that it cannot begin.
    """
    status = STATUS.get(State(job.state))
    return status is not None and not _seconds_kept(rq_job, status)


def again(rq_job: Job) -> Retry:
    """For a delivery that changed RQ's record of the job: the job is the next one of its queue, as it is now.

    As with `deferred`, that is all where somebody has canceled it, or told RQ of another call, since.
    """
    return _recorded_by(rq_job, partial(_made_first, rq_job))


def again_after_claim(rq_job: Job) -> Retry:
    """As `again`, for a delivery that has said that a run stands for it, see `rq_copies.belong_to`, and did not begin.

    What RQ was told by then it has said this of too. So a delivery of that may have come and gone as a copy of the run:
    the id is pushed once more, unless it is scheduled. Where that delivery did not go, this is a copy of it.
    """

    def record(queue: Queue, *_: Any, **__: Any) -> None:
        _made_first(rq_job, queue)
        if rq_copies.is_enqueued_anew(rq_job) and not (_is_canceled(rq_job) or rq_copies.is_scheduled(rq_job)):
            queue.push_job_id(rq_job.id, at_front=True)

    return _recorded_by(rq_job, record)


def deferred(rq_job: Job, until: datetime | None = None, seconds: float | None = None) -> Retry:
    """What a plain RQ job returns to run again at a time or so much later, ``RESCHEDULE_DELAY`` seconds without either.

    Waiting is no run. RQ would count it against the limit of the function's own Retry, and keep it among the last few
    results of the job (RQ 2.12, ``Job._handle_retry_result``), where others take it for what came of the job.

    What somebody has enqueued or scheduled anew since is left as it is: another delivery of it comes.
    """
    if seconds is None:
        seconds = (until - clock.now()).total_seconds() if until else app_settings.RESCHEDULE_DELAY
    due = int((now() + timedelta(seconds=max(1, ceil(seconds)))).timestamp())

    def record(queue: Queue, pipeline: Pipeline) -> None:
        """As RQ's schedule_job, which adds the entry before all else is written (RQ 2.12)."""
        pipeline.sadd(queue.redis_queues_keys, queue.key)
        queue._persist_job(rq_job, pipeline, status=JobStatus.SCHEDULED)
        pipeline.zadd(queue.scheduled_job_registry.key, {rq_job.id: due - 1 + rq_copies.FRACTION})
        rq_copies.is_put_off(rq_job, pipeline)

    return _recorded_by(rq_job, partial(_unless_told_since, rq_job, record))


def later(rq_job: Job, job: TenantJob, *, is_anew: bool) -> Retry:
    """For another delivery while one runs: it comes back, see ``beside.py``."""
    _name_the_worker_of(job, rq_job)
    beside.comes_back(rq_job, job, is_anew=is_anew)
    return _left_as_it_was(rq_job)


def earlier(rq_job: Job) -> Earlier | None:
    """The run that this delivery has waited for, as it came while that went on, or that it is a copy of.

    None where there is no such run, or it has not ended, or was lost: this delivery may take its place. The mark of a
    delivery that has waited is taken away, as that has come. Where RQ's record is gone since a worker has read it, a
    run has ended whose result is not kept, or somebody has deleted the job.
    """
    if (uuid := beside.waited_for(rq_job)) and (found := _came_of(uuid)):
        beside.forget(rq_job)
        return found
    try:
        uuid = rq_copies.row_of(rq_job)
    except NoSuchJobError:
        return Earlier(None)
    return None if uuid is None else _came_of(uuid)


def ended_meanwhile(rq_job: Job, job: TenantJob) -> Earlier | None:
    """As `earlier`, asked again when this delivery has its row: no other one can be made from now on.

    Another delivery may have begun since, and ended: with this row, or with one before it.
    """
    if job.has_ended:
        return _came_of(job.uuid)
    try:
        uuid = rq_copies.row_of_either(rq_job)
    except NoSuchJobError:
        return Earlier(None)
    except RedisError:
        return None
    return None if uuid in (None, job.uuid) else _came_of(uuid)


def is_of_a_later_call(rq_job: Job, job: TenantJob) -> bool:
    """Whether this row, which a delivery of what has run has found or made, is that of a call which is still to come.

    Raises:
        RedisError: Redis cannot be asked.
    """
    with suppress(NoSuchJobError):
        return rq_copies.row_of_latest(rq_job) in (None, job.uuid)
    return False


def ended_with(rq_job: Job, job: TenantJob) -> bool:
    """Whether the end of this row's run is that of what is delivered here; False for a later call under the id.

    Raises:
        RedisError: Redis cannot be asked.
    """
    with suppress(NoSuchJobError):
        return rq_copies.row_of_latest(rq_job) == job.uuid
    return True


def _came_of(uuid: UUID) -> Earlier | None:
    return persistently(lambda: _ended(uuid))


def _ended(uuid: UUID) -> Earlier | None:
    job = TenantJob.objects.filter(uuid=uuid).select_related("tenant_queue").first()
    if job is not None and (not job.has_ended or _was_lost(job)):
        return None
    return Earlier(job)


def _was_lost(job: TenantJob) -> bool:
    return bool(job.state == State.FAILED and (job.crashes or job.interruptions))


def _status_of(job: TenantJob | None, rq_job: Job) -> JobStatus:
    if job is not None:
        return STATUS.get(State(job.state), JobStatus.CANCELED)
    result = rq_job.latest_result()
    return JobStatus.CANCELED if result is None else STATUS_BY_RESULT.get(result.type, JobStatus.CANCELED)


def _seconds_kept(rq_job: Job, status: JobStatus) -> int:
    """For which RQ keeps the record of a job that has ended so."""
    if status == JobStatus.FAILED:
        return DEFAULT_FAILURE_TTL if rq_job.failure_ttl is None else rq_job.failure_ttl
    return rq_job.get_result_ttl(DEFAULT_RESULT_TTL)


def _made_first(rq_job: Job, queue: Queue, *_: Any, **__: Any) -> None:
    _unless_told_since(rq_job, lambda its_queue, pipe: its_queue._enqueue_job(rq_job, pipe, at_front=True), queue)


def _unless_told_since(
    rq_job: Job, record: Callable[[Queue, Pipeline], object], queue: Queue, *_: Any, **__: Any
) -> None:
    """RQ writes the whole record of a job, as it was read: not over another call that is enqueued in this moment."""
    delivered = rq_copies.times_of(rq_job)

    def change(pipeline: Pipeline) -> bool:
        if is_to_come_back := _is_to_come_back(rq_job, delivered):
            pipeline.multi()
            record(queue, pipeline)
        return is_to_come_back

    redis: Any = rq_job.connection  # whose types know of no answer
    if not redis.transaction(change, rq_job.key, value_from_callable=True):
        rq_copies.forget_remains(rq_job)


def _is_to_come_back(rq_job: Job, delivered: Times) -> bool:
    """Not where it was canceled in RQ since this delivery of it was taken: its row, if any, ends when its turn comes.

    Nor where RQ's record of it was deleted, or another delivery of it has begun meanwhile, or RQ was told of it anew:
    another one comes.
    """
    if _is_canceled(rq_job) or rq_copies.is_gone(rq_job) or rq_copies.is_anothers_since(rq_job, delivered):
        return False
    return rq_copies.told_since(rq_job, delivered) is not Told.ANEW


def _is_canceled(rq_job: Job) -> bool:
    status = rq_job.connection.hget(rq_job.key, "status")
    return status is not None and as_text(status) == JobStatus.CANCELED


def _left_as_it_was(rq_job: Job) -> Retry:
    return _recorded_by(rq_job, lambda *_, **__: rq_copies.forget_remains(rq_job))


def _recorded_by(rq_job: Job, record: Callable[..., None]) -> Retry:
    """A Retry, for which RQ starts no dependents and calls nothing finished; what it records of one is replaced."""

    def recorded(queue: Queue, *args: Any, **known: Any) -> None:
        record(_queue_of(rq_job, queue), *args, **known)

    rq_job._handle_retry_result = recorded  # type: ignore[method-assign]
    return Retry(max=sys.maxsize)


def _queue_of(rq_job: Job, queue: Queue) -> Queue:
    """Where it was enqueued last, and where RQ looks for it: its id may be in the list of another queue, too."""
    if rq_job.origin == queue.name:
        return queue
    return Queue(rq_job.origin, connection=queue.connection, serializer=queue.serializer)


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
