"""What came of each time that RQ enqueued a plain job, as RQ's record of the job says.

RQ may deliver several times what it has enqueued once: a sweep pushes an id again that a worker has just taken, or RQ's
scheduler pushes it in the moment in which its turn comes. Such copies have the time at which it was enqueued in common.
Whatever is to run a job again, RQ's retry, a requeue by hand, its scheduler, enqueues it anew, at another time (RQ
2.12, ``Queue._prepare_for_queue``).
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from rq.job import Job
from rq.utils import as_text, utcformat

RUN = "tenant_slots_copies_of"
"""Field of RQ's record of a plain job: the job's row, how many retries RQ has left it, and when that was enqueued which
it stands for. Whoever ends the run adds that it has ended, see ``running/beside.py``.
"""

NO_RETRIES = "-"


class Noted(NamedTuple):
    """What RQ's record says of a run."""

    uuid: UUID
    retries_left: str
    """As RQ writes it, or `NO_RETRIES`."""
    times: frozenset[str]


OF_A_RUN = frozenset(("started_at", "ended_at", "last_heartbeat", "worker_name", "result", "exc_info", "meta"))
"""What of RQ's record says what came of a run; the rest says what is to run, and how (RQ 2.12, ``Job.to_dict``)."""


class Times(NamedTuple):
    """Of what RQ has enqueued, as it writes them. A new one under the same id was made at another time."""

    made: str
    enqueued: str


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
    retries_left = NO_RETRIES if rq_job.retries_left is None else str(rq_job.retries_left)
    rq_job.connection.hset(rq_job.key, RUN, " ".join([str(uuid), retries_left, *times]))


def keep_latest(rq_job: Job) -> None:
    """Somebody may enqueue or schedule the job anew while this delivery of it runs, perhaps with other arguments.

    RQ writes the whole record at the end of a run, and so does a function that saves its job: all that is not of the
    run itself would be that of this delivery again. And RQ has the record expire then, or deletes it, which would lose
    the job where its next run waits for its time, for a slot, or for a worker.
    """
    delivered, to_dict, cleanup = _times_of(rq_job), rq_job.to_dict, rq_job.cleanup

    def without_what_is_anew(*args: Any, **kwargs: Any) -> dict[str, Any]:
        fields: dict[str, Any] = to_dict(*args, **kwargs)
        kept = OF_A_RUN
        if _times_of(rq_job) == delivered:
            fields.pop("enqueued_at", None)
        else:  # RQ retries the run
            kept = OF_A_RUN | {"enqueued_at"}
        return {name: fields[name] for name in kept & fields.keys()} if is_told_anew(rq_job, delivered) else fields

    def unless_anew(*args: Any, **kwargs: Any) -> None:
        if not is_told_anew(rq_job, delivered):
            cleanup(*args, **kwargs)

    rq_job.to_dict = without_what_is_anew  # type: ignore[method-assign]
    rq_job.cleanup = unless_anew  # type: ignore[method-assign]


def row_of(rq_job: Job) -> UUID | None:
    """The row that stands for what is delivered here, if another delivery of it has begun, or somebody canceled it.

    Raises:
        RedisError: Redis cannot be asked.
    """
    noted = _noted(rq_job.connection.hget(rq_job.key, RUN))
    return noted.uuid if noted and _enqueued_at(rq_job) in noted.times else None


def row_of_latest(rq_job: Job) -> UUID | None:
    """The row that stands for all that RQ has enqueued until now, whatever of it is delivered here.

    Raises:
        RedisError: Redis cannot be asked.
    """
    latest, run = rq_job.connection.hmget(rq_job.key, "enqueued_at", RUN)
    noted = _noted(run)
    return noted.uuid if noted and latest and as_text(latest) in noted.times else None


def is_told_since(uuid: UUID, rq_job: Job) -> bool:
    """Whether RQ was told to enqueue the job after this row's run, which has not ended, had begun.

    Not where RQ has done so by itself, for a run of which it had not heard for long, and which it takes for dead: its
    `StartedJobRegistry` leaves the job one retry less then.

    Raises:
        RedisError: Redis cannot be asked.
    """
    latest, retries_left, run = rq_job.connection.hmget(rq_job.key, "enqueued_at", "retries_left", RUN)
    noted = _noted(run)
    if noted is None:  # the record that said it was deleted, and somebody has enqueued the job since
        return True
    if noted.uuid != uuid or latest is None or as_text(latest) in noted.times:
        return False
    return not retries_left or noted.retries_left != str(int(retries_left) + 1)


def is_told_anew(rq_job: Job, delivered: Times | None = None) -> bool:
    """Whether somebody else has enqueued the job, or its id, since this delivery of it was taken; now or for later.

    Args:
        delivered: of what was taken, where RQ may have enqueued `rq_job` again itself.

    Raises:
        RedisError: Redis cannot be asked.
    """
    own = _times_of(rq_job)
    made, latest = rq_job.connection.hmget(rq_job.key, "created_at", "enqueued_at")
    if made is None:
        return False
    return Times(as_text(made), as_text(latest or b"")) not in (own, delivered or own)


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


def _times_of(rq_job: Job) -> Times:
    return Times(utcformat(rq_job.created_at), _enqueued_at(rq_job))


def _enqueued_at(rq_job: Job) -> str:
    """As RQ writes it."""
    return "" if rq_job.enqueued_at is None else utcformat(rq_job.enqueued_at)


def _noted(run: bytes | str | None) -> Noted | None:
    if run is None:
        return None
    uuid, retries_left, *times = as_text(run).split()
    return Noted(UUID(uuid), retries_left, frozenset(times))
