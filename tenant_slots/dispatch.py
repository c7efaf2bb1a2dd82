"""Our jobs in RQ's queues: push an admitted one, remove it, stop it.

``workers/`` and ``running/deliveries.py`` touch these queues too, but only for what RQ delivers. How a queue of RQ is
reached says `queue_directory`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID

from django.db import Error
from django_rq.queues import get_result_ttl
from redis.client import Pipeline
from rq import Queue
from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job, JobStatus
from rq.utils import as_text, current_timestamp

from tenant_slots import logs, queue_directory, rq_copies
from tenant_slots.conf import app_settings
from tenant_slots.exceptions import UnreadableColumn
from tenant_slots.models import State, TenantJob, rq_id_of, rq_queue_of

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")

RUNNER = "tenant_slots.run_job"
"""The function of every RQ job of ours; see the package's ``__getattr__`` for why it is named there."""

RQ_ID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9]{1,10})")
"""See `models.rq_id_of`."""

PUSHED_AT_ONCE = 100
"""Most jobs in one request to Redis, which serves nobody else meanwhile."""

IDS_SEEN = 100
"""Of a queue's list that is looked at for plain RQ jobs; of ours there are a few where no worker is idle."""

NUDGE = "tenant_slots-look"
"""In RQ's list, in place of a job's id: a worker of ours that waits there is to ask again who is next.

It has last asked before a tenant was told to wait for a moment, so that it would sleep through that. Or somebody who
was to push a job could not ask the database for one. RQ passes over ids of which it has no job.
"""

FORGOTTEN = "RQ lost it with its arguments while it was put off, as when its ttl has run out"

NO_SUCH_JOB = (NoSuchJobError, ValueError)
"""ValueError: what SQL from outside has put in place of its id is no id to RQ (RQ 2.12)."""

DEFER_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16)
"""Seconds between looks for a job that RQ is deferring; RQ needs about five milliseconds for it."""


class CameOf(NamedTuple):
    """A plain RQ job that was put off, and that RQ is not to run any more."""

    state: State
    error: str


GivenUp = tuple[TenantJob, CameOf]

SAYS_RQ = {
    JobStatus.CANCELED: CameOf(State.CANCELED, "RQ's record of it was canceled"),
    JobStatus.STOPPED: CameOf(State.CANCELED, "RQ's record of it says that it was stopped"),
    JobStatus.FINISHED: CameOf(State.CANCELED, "RQ's record of it says that it has finished"),
    JobStatus.FAILED: CameOf(State.FAILED, "RQ's record of it says that it has failed"),
}
"""By RQ's word for it, which somebody has changed while the job was put off: RQ's API or pages, or RQ itself, for a
worker that died over it. Its function has not run here, whatever has finished.
"""


class Pushed(NamedTuple):
    jobs: int
    """How many of ours RQ has now."""
    given_up: list[GivenUp]
    """Plain RQ jobs that it does not know any more, with their arguments, or that have ended there."""


def push(jobs: Iterable[TenantJob]) -> Pushed:
    """Give admitted jobs to RQ. A Redis that cannot be reached is logged: the jobs keep their slots for the sweep.

    It is tried once, not for each job. A reservation never goes there: its own process looks whether it was admitted.
    """
    fresh: dict[str, list[TenantJob]] = {}
    given_up: list[GivenUp] = []
    for job in jobs:
        if job.rq_job_id:
            _logging_absence(partial(_bring_forward, job, given_up), [job])
        elif not job.is_reservation:
            fresh.setdefault(job.rq_queue_name, []).append(job)
    pushed = sum(len(own) * _logging_absence(partial(_push_fresh, name, own), own) for name, own in fresh.items())
    return Pushed(pushed, given_up)


def _logging_absence(action: Callable[[], object], jobs: list[TenantJob]) -> bool:
    try:
        action()
    except queue_directory.OUT_OF_REACH as error:
        names = ", ".join(str(job.uuid) for job in jobs)
        logger.warning("admitted, but could not be pushed to RQ: job %s: %s", names, error, extra=logs.about(*jobs))
        return False
    return True


def remove(job: TenantJob) -> None:
    """Take a job out of RQ that will not run. One that never was there costs a look."""
    if not _may_be_in_rq(job):
        return

    rq_id = job.last_rq_id

    def delete(queue: Queue) -> None:
        queue.remove(rq_id)
        if rq_job := queue.fetch_job(rq_id):
            _cancel_plain(rq_job, job) if job.rq_job_id else rq_job.delete()

    tolerant(delete, job)


def _cancel_plain(rq_job: Job, job: TenantJob) -> None:
    """A worker may have taken it from RQ's list a moment ago."""
    rq_copies.belong_to(job.uuid, rq_job)
    rq_job.cancel()


def _may_be_in_rq(job: TenantJob) -> bool:
    """Not a reservation; in immediate mode, which asks no Redis, nothing but what plain RQ has enqueued."""
    return not job.is_reservation and bool(job.rq_job_id or not app_settings.IMMEDIATE)


class Missing(NamedTuple):
    """What Redis knows of admitted jobs."""

    jobs: list[int]
    """The primary keys of those that are in no list of Redis where a worker would find them."""
    unasked: dict[str, Exception]
    """By queue: why its server could not be asked, or that there is no such queue. Its jobs are not among the above."""


def missing(jobs: Iterable[tuple[int, UUID, int, str, str, str]]) -> Missing:
    """Which admitted jobs Redis has lost. A server that is away says nothing about what is on another one.

    A plain RQ job that a worker has taken and not yet begun is not lost. One of ours is pushed under its own id at any
    time, and starts once.

    Args:
        jobs: pk, uuid, attempt, rq_job_id, rq_queue and the tenant queue's queue of each.
    """
    by_queue: dict[str, dict[str, int]] = {}
    for pk, uuid, attempt, rq_job_id, rq_queue, queue in jobs:
        by_queue.setdefault(rq_queue_of(rq_queue, queue), {})[rq_id_of(uuid, attempt, rq_job_id)] = pk
    lost = Missing([], {})
    for name, own in by_queue.items():
        try:
            with queue_directory.reaching(name) as queue_in_rq:
                present = set(queue_in_rq.job_ids)
                if any(not is_ours(rq_id) for rq_id in own.keys() - present):
                    present |= _under_way(queue_in_rq)
        except queue_directory.OUT_OF_REACH as error:
            lost.unasked[name] = error
        else:
            lost.jobs.extend(pk for rq_id, pk in own.items() if rq_id not in present)
    return lost


def _under_way(queue: Queue) -> set[str]:
    """Ids of what its workers have taken from the list, by the executions that they keep alive (RQ 2.12).

    A worker makes one a moment after it has taken a job, before it forks or spawns the process that imports the job's
    module. One that was killed leaves it until its time is over: a minute after its last heartbeat, or as long as the
    job may take where there is no work-horse.
    """
    registry = queue.started_job_registry
    alive = cast(list[bytes], queue.connection.zrangebyscore(registry.key, current_timestamp(), "+inf"))
    return {as_text(execution).rpartition(":")[0] for execution in alive}


def named_by(rq_job_id: str) -> tuple[UUID, int] | None:
    """UUID and attempt of the job that an RQ id of ours names; None for any other id."""
    match = RQ_ID.fullmatch(rq_job_id)
    return (UUID(match[1]), int(match[2])) if match else None


def is_ours(rq_job_id: str) -> bool:
    """Whether an RQ id is one of ours, and not that of a plain RQ job."""
    return named_by(rq_job_id) is not None


def push_again(job: TenantJob) -> CameOf | None:
    """Push a plain RQ job that its list lost, unless it has begun since, or has ended in RQ: what came of it there.

    Raises:
        NoSuchJobError: RQ does not know it any more; its arguments were only in Redis.
        RedisError: Redis cannot be asked.
    """
    with queue_directory.reaching(job.rq_queue_name) as queue:
        try:
            return _brought_forward(queue, job)
        except InvalidJobOperation:
            queue.push_job_id(job.last_rq_id)
            return None
        except NO_SUCH_JOB:
            raise NoSuchJobError from None


def _ended_in_rq(rq_job: Job, job: TenantJob) -> CameOf | None:
    """What came of it there, if RQ has not scheduled it. A copy that is on its way to a worker is not to run either."""
    came_of = SAYS_RQ.get(rq_job.get_status(refresh=False))
    if came_of:
        rq_copies.belong_to(job.uuid, rq_job)
    return came_of


def was_stopped(job: TenantJob) -> bool:
    """Whether RQ's stop command killed the job's process."""
    rq_job = None if job.is_reservation else tolerant(lambda queue: queue.fetch_job(job.last_rq_id), job)
    return rq_job is not None and rq_job.get_status(refresh=False) == JobStatus.STOPPED


def stop(job: TenantJob) -> None:
    """Ask the worker of a running job to kill it. Nobody can do that to a reservation, which sees that it was asked."""
    if not _may_be_in_rq(job):
        return
    tolerant(lambda queue: send_stop_job_command(queue.connection, job.last_rq_id, serializer=queue.serializer), job)


def plain_ids(queues: Sequence[str]) -> dict[str, set[str]]:
    """By queue, the ids in its list that are none of ours, of the first `IDS_SEEN`. One request for each server.

    Nothing of a server that cannot be asked.
    """
    found: dict[str, set[str]] = {}
    for name, same_server in queue_directory.by_server(queues).items():
        with suppress(*queue_directory.OUT_OF_REACH), queue_directory.reaching(name) as queue:
            with queue.connection.pipeline(transaction=False) as pipeline:
                for other in same_server:
                    pipeline.lrange(queue_directory.queue_named(other).key, 0, IDS_SEEN - 1)
                listed = pipeline.execute()
            for other, raw in zip(same_server, listed, strict=True):
                found[other] = {rq_id for rq_id in map(as_text, raw) if not is_ours(rq_id) and rq_id != NUDGE}
    return found


def _push_fresh(name: str, jobs: list[TenantJob]) -> None:
    with queue_directory.reaching(name) as queue:
        for start in range(0, len(jobs), PUSHED_AT_ONCE):
            with queue.connection.pipeline() as pipeline:
                for job in jobs[start : start + PUSHED_AT_ONCE]:
                    if rq_job := _readable(queue, job):
                        queue.enqueue_job(rq_job, pipeline=pipeline)
                pipeline.execute()


def _readable(queue: Queue, job: TenantJob) -> Job | None:
    """A row that somebody has spoilt holds up no other one; the sweep sees to it."""
    try:
        return rq_job_of(queue, job)
    except UnreadableColumn as error:
        logger.error("admitted, but cannot be pushed to RQ: %s", error, extra=logs.about(job))
        return None


def rq_job_of(queue: Queue, job: TenantJob) -> Job:
    """The RQ job of one of ours, as it is pushed."""
    job.require_readable("options")
    options = job.options
    return queue.create_job(
        RUNNER,
        args=(str(job.uuid), job.attempt),
        job_id=job.last_rq_id,
        timeout=options.get("timeout"),
        result_ttl=options.get("result_ttl", get_result_ttl(queue.name)),
        failure_ttl=options.get("failure_ttl"),
        meta=options.get("meta"),
        description=options.get("description") or f"{job.task} for {job.tenant_queue.tenant!r}",
    )


def _bring_forward(job: TenantJob, given_up: list[GivenUp]) -> None:
    """Move a job that deferred itself to the end of its queue, unless RQ has forgotten it, or it has ended there.

    It may not be in the scheduled registry yet: RQ writes it there a few milliseconds after the job has returned. Or
    not any more: RQ's scheduler has just taken it, and it finds its slot taken for it when it runs. What is there once
    it has begun is another run of it, which its function has scheduled or which waits for its end.
    """
    for pause in DEFER_PAUSES:
        try:
            with queue_directory.reaching(job.rq_queue_name) as queue:
                if came_of := _brought_forward(queue, job):
                    given_up.append((job, came_of))
            return
        except NO_SUCH_JOB:
            given_up.append((job, CameOf(State.FAILED, FORGOTTEN)))
            return
        except InvalidJobOperation:
            time.sleep(pause)
    text = "RQ job %s was not found among the scheduled ones; it runs when RQ delivers it"
    logger.info(text, job.last_rq_id, extra=logs.about(job))


def _brought_forward(queue: Queue, job: TenantJob) -> CameOf | None:
    """Or what came of it in RQ, if it has not begun meanwhile.

    Raises:
        NoSuchJobError: RQ has forgotten it.
        InvalidJobOperation: it is not scheduled.
    """
    redis: Any = queue.connection  # whose types know of no answer
    move = partial(_move_to_list, queue, job)
    rq_job: Job | None = redis.transaction(move, Job.key_for(job.last_rq_id), value_from_callable=True)
    if rq_job is None:
        return None
    if came_of := _ended_in_rq(rq_job, job):
        return came_of
    raise InvalidJobOperation


def _move_to_list(queue: Queue, job: TenantJob, pipeline: Pipeline) -> Job | None:
    """As RQ's registry requeues it (2.12), but not over another call that somebody enqueues meanwhile under its id.

    What RQ has of it, where it is neither scheduled nor has begun; else None.
    """
    registry = queue.scheduled_job_registry
    rq_job: Job = registry.job_class.fetch(job.last_rq_id, queue.connection, queue.serializer)
    due = pipeline.zscore(registry.key, rq_job.id)
    if not rq_copies.is_entry_of_put_off(due):
        if _may_have_begun(job):
            return None
        if due is None:
            return rq_job
    pipeline.multi()
    pipeline.zrem(registry.key, rq_job.id)
    rq_job.started_at = rq_job.ended_at = None
    Queue(rq_job.origin, connection=queue.connection, serializer=queue.serializer)._enqueue_job(rq_job, pipeline)
    return None


def _may_have_begun(job: TenantJob) -> bool:
    """Whether somebody runs it, or has, or the database cannot say: RQ's scheduler and a sweep are left then."""
    try:
        return not TenantJob.objects.queued().filter(pk=job.pk).exists()
    except Error:
        return True


def tolerant(action: Callable[[Queue], T], job: TenantJob) -> T | None:
    """RQ's side of a job may already be gone, or out of reach; the row is the truth."""
    try:
        with queue_directory.reaching(job.rq_queue_name) as queue:
            return action(queue)
    except (*NO_SUCH_JOB, InvalidJobOperation):
        return None
    except queue_directory.OUT_OF_REACH as error:
        logger.warning("RQ's record of job %s could not be changed: %s", job.uuid, error, extra=logs.about(job))
        return None
