"""What came of each time that RQ enqueued a plain job, as RQ's record of the job says.

RQ may deliver several times what it has enqueued once: a sweep pushes an id again that a worker has just taken, or RQ's
scheduler pushes it in the moment in which its turn comes. Such copies have the time at which it was enqueued in common.
Whatever is to run a job again, RQ's retry, a requeue by hand, its scheduler, enqueues it anew, at another time (RQ
2.12, ``Queue._prepare_for_queue``).
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rq.job import Job
from rq.utils import as_text, utcformat

RUN = "tenant_slots_copies_of"
"""Field of RQ's record of a plain job: the job's row, and when that was enqueued which it stands for."""


def belong_to(uuid: UUID, rq_job: Job) -> None:
    """What RQ has enqueued until now is this row's, and no other delivery of it is to run.

    Two times where it was enqueued again after this delivery was taken, and before it began: one that follows may say
    either, as RQ writes back at the end of a run what it has read before.

    Raises:
        RedisError: Redis cannot be asked.
    """
    latest = _latest(rq_job)
    if latest is None:
        return
    times = sorted({latest, _enqueued_at(rq_job)} - {""})
    rq_job.connection.hset(rq_job.key, RUN, " ".join([str(uuid), *times]))


def keep_latest(rq_job: Job) -> None:
    """RQ may enqueue the job again while this delivery of it runs: what that saves leaves alone when that was.

    RQ writes the whole record at the end of a run, and so does a function that saves its job.
    """
    delivered, to_dict = rq_job.enqueued_at, rq_job.to_dict

    def without_time(*args: Any, **kwargs: Any) -> dict[str, Any]:
        fields: dict[str, Any] = to_dict(*args, **kwargs)
        if rq_job.enqueued_at == delivered:
            fields.pop("enqueued_at", None)
        return fields

    rq_job.to_dict = without_time  # type: ignore[method-assign]


def row_of(rq_job: Job) -> UUID | None:
    """The row that stands for what is delivered here, if another delivery of it has begun, or somebody canceled it.

    Raises:
        RedisError: Redis cannot be asked.
    """
    noted = rq_job.connection.hget(rq_job.key, RUN)
    if noted is None:
        return None
    uuid, *times = as_text(noted).split()
    return UUID(uuid) if _enqueued_at(rq_job) in times else None


def is_enqueued_anew(rq_job: Job) -> bool:
    """Whether RQ has enqueued the job once more since this delivery of it was taken.

    Raises:
        RedisError: Redis cannot be asked.
    """
    return _latest(rq_job) not in (None, _enqueued_at(rq_job))


def _latest(rq_job: Job) -> str | None:
    """When RQ enqueued the job last; None if it has forgotten the job, or has never enqueued it."""
    found = rq_job.connection.hget(rq_job.key, "enqueued_at")
    return None if found is None else as_text(found)


def _enqueued_at(rq_job: Job) -> str:
    """As RQ writes it."""
    return "" if rq_job.enqueued_at is None else utcformat(rq_job.enqueued_at)
