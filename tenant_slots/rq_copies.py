"""What came of each time that RQ enqueued a plain job, as RQ's record of the job says.

RQ may deliver several times what it has enqueued once: a sweep pushes an id again that a worker has just taken, or RQ's
scheduler pushes it in the moment in which its turn comes. Such copies have the time at which it was enqueued in common,
or, where RQ's scheduler writes a moment too late what it has read, that at which the job was put off.
Whatever is to run a job again, RQ's retry, a requeue by hand, its scheduler, enqueues it anew, at another time (RQ
2.12, ``Queue._prepare_for_queue``).
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from redis.client import Pipeline
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job, JobStatus
from rq.registry import ScheduledJobRegistry
from rq.utils import as_text, str_to_date, utcformat

RUN = "tenant_slots_copies_of"
"""Field of RQ's record of a plain job: the job's row, how many retries RQ has left it, and when that was enqueued which
it stands for. Whoever ends the run adds that it has ended, see ``running/beside.py``.
"""

PUT_OFF = "tenant_slots_put_off"
"""Field of the same: when the job was put off last, as RQ says of every delivery that it ended. Where its turn has it
enqueued, RQ takes that away; RQ's scheduler does not.
"""

FRACTION = 0.75
"""Of a second, where the entry of one that is put off stands among RQ's scheduled jobs: RQ has none between two (2.12).
What the record says of that is gone where somebody deletes the job; if it was enqueued again before, its entry stays.
"""

SEEN = "tenant_slots_copies_of_seen"
"""Attribute of a delivery: what its record says of a run, as this delivery has read it."""

CLAIM = "tenant_slots_copies_of_claim"
"""Attribute of a delivery that begins: its row, and the times that it has added to what the record says of that."""

HAS_ENDED = " ended"
"""See ``running/beside.lua``."""

LATE_SECONDS = 10
"""For which RQ's scheduler may take at most to enqueue what it has read, of a thousand jobs at once."""

MOST_OTHERS = 20
"""Times of other deliveries that are kept as one begins: many more than are on their way at once. The row of a function
that raises `TenantBusy` begins again and again.
"""

NO_RETRIES = "-"


class Noted(NamedTuple):
    """What RQ's record says of a run."""

    uuid: UUID
    retries_left: str
    """As RQ writes it, or `NO_RETRIES`."""
    times: frozenset[str]
    """Of what it stands for: when RQ has enqueued it, or when it was put off before."""

    def is_copy(self, enqueued: str, ended: str) -> bool:
        """Whether it stands for what RQ has enqueued at this time, and says of it that it ended at that one."""
        if enqueued in self.times or ended not in self.times:
            return enqueued in self.times
        seconds = (str_to_date(enqueued) - str_to_date(max(self.times))).total_seconds()
        return seconds < LATE_SECONDS


OF_A_RUN = frozenset(("last_heartbeat", "worker_name", "result", "exc_info"))
"""What a run may add to RQ's record of another call; the rest says what that is (RQ 2.12, ``Job.to_dict``)."""

META = "meta"
"""What a run may add to the record of its own call that was enqueued again; of another one it is an option."""


ENDED = (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.STOPPED)
"""What RQ says of a run that ends. Of a call that is still to come it would mean that it is not to run any more."""


class Told(Enum):
    NOTHING = "nothing"
    TO_DELETE = "to delete"
    """And of no other call since."""
    COPY = "copy"
    """Its scheduler has enqueued, too late, what the delivery is."""
    ANEW = "anew"
    """Somebody has enqueued or scheduled it, now or for later."""


class Times(NamedTuple):
    """Of what RQ has enqueued, as it writes them. A new one under the same id was made at another time."""

    made: str
    enqueued: str


def belong_to(uuid: UUID, rq_job: Job) -> None:
    """What RQ has enqueued of this call until now is this row's, and no other delivery of it is to run.

    Two times where it was enqueued again after this delivery was taken, and before it began: one that follows may say
    either, as RQ writes back at the end of a run what it has read before. Another call under the id, which this
    delivery knows nothing of, is to run after this one, also where it has been put off. What others have said of the
    row stays, also where their run has ended by now and this delivery is too late to begin.

    One that was put off and has come before, as somebody has enqueued it, is not brought back by RQ's scheduler too;
    what somebody else has scheduled is for another time. All is one transaction, for which the record must be as it was
    read: when its turn comes, the job may be enqueued in this moment.

    Raises:
        RedisError: Redis cannot be asked.
    """
    own = times_of(rq_job)

    def note(pipeline: Pipeline) -> None:
        made, latest, ended, before = _texts(rq_job, "created_at", "enqueued_at", PUT_OFF, RUN)
        if not latest:
            return
        is_own = made == own.made
        times = sorted({own.enqueued, *([ended, latest] if is_own else [])} - {""})
        retries_left = NO_RETRIES if rq_job.retries_left is None else str(rq_job.retries_left)
        others = before.removesuffix(HAS_ENDED).split()[2:][-MOST_OTHERS:] if before.startswith(str(uuid)) else []
        run = " ".join([str(uuid), retries_left, *others, *times])
        is_still_put_off = is_own and _is_still_put_off(rq_job)
        pipeline.multi()
        pipeline.hset(rq_job.key, mapping={RUN: run, "ended_at": ""})
        if is_still_put_off:
            pipeline.zrem(_scheduled(rq_job), rq_job.id)
        rq_job.ended_at = None  # what is read of the job from now on has not been put off
        setattr(rq_job, CLAIM, (str(uuid), times))

    rq_job.connection.transaction(note, rq_job.key)


def has_not_begun(rq_job: Job) -> None:
    """This delivery has said that the row stands for it, and did not begin: only what others have said of it counts.

    They may be of another call that was enqueued under the id a moment before, so that this one is to run after it. Or
    another delivery of this one has begun meanwhile, with a row of its own.

    Raises:
        RedisError: Redis cannot be asked.
    """
    uuid, times = vars(rq_job).pop(CLAIM, ("", []))

    def take_back(pipeline: Pipeline) -> None:
        (run,) = _texts(rq_job, RUN)
        if not run.startswith(uuid):
            return
        words = run.split()
        for time in times:
            if time in words:
                words.remove(time)
        noted = _noted(" ".join(words))
        if noted and noted.times:  # else nobody has begun: the row was canceled, or goes on waiting
            run = " ".join(words)
            pipeline.multi()
            pipeline.hset(rq_job.key, RUN, run)
        setattr(rq_job, SEEN, run.removesuffix(HAS_ENDED))

    rq_job.connection.transaction(take_back, rq_job.key)


def _is_still_put_off(rq_job: Job) -> bool:
    return is_entry_of_put_off(rq_job.connection.zscore(_scheduled(rq_job), rq_job.id))


def is_entry_of_put_off(due: float | None) -> bool:
    """Whether what RQ has scheduled for then is a job that we have put off, and that has not begun since."""
    return due is not None and due % 1 == FRACTION


def is_put_off(rq_job: Job, pipeline: Pipeline) -> None:
    """RQ's record of it is told to be scheduled."""
    if rq_job.ended_at is not None:
        pipeline.hset(rq_job.key, PUT_OFF, utcformat(rq_job.ended_at))


def keep_latest(rq_job: Job, uuid: UUID | None = None) -> None:
    """Somebody may enqueue or schedule the job anew while this delivery of it runs, perhaps with other arguments.

    RQ writes the whole record at the end of a run, and so does a function that saves its job: all that is not of the
    run itself would be that of this delivery again. And RQ has the record expire then, or deletes it, which would lose
    the job where its next run waits for its time, for a slot, or for a worker. A function may have told RQ so with the
    very object that stands for its own run. Nor does the record say that the job has ended: whoever gives the next run
    its slot would take it for one that somebody has ended in RQ.

    Where somebody has deleted the job, RQ's list may still have its id, and RQ writes the record of this delivery once
    more: it says then what it stands for, or that would run again.

    Args:
        uuid: the row of the run; None for one that has died.
    """
    delivered, to_dict, cleanup, save_meta = times_of(rq_job), rq_job.to_dict, rq_job.cleanup, rq_job.save_meta
    set_status = rq_job.set_status

    def without_what_is_anew(*args: Any, **kwargs: Any) -> dict[str, Any]:
        fields: dict[str, Any] = to_dict(*args, **kwargs)
        is_own = times_of(rq_job) != delivered  # RQ retries the run
        told = told_since(rq_job, delivered)
        if told is Told.ANEW:
            kept = OF_A_RUN | ({"enqueued_at"} if is_own else set())
            kept |= set() if is_another_call(rq_job, delivered.made) else {META}
            return {name: fields[name] for name in kept & fields.keys()}
        if told is Told.NOTHING and not is_own:
            fields.pop("enqueued_at", None)
        if told is Told.TO_DELETE and uuid and not is_own:
            fields[RUN] = f"{uuid} {NO_RETRIES} {delivered.enqueued}"
        if fields.get("status") in ENDED and is_scheduled(rq_job):
            del fields["status"]
        return fields

    def is_to_come() -> bool:
        """Not what an entry of a job that was deleted stands for, which RQ leaves in the registry of another queue."""
        return told_since(rq_job, delivered) is Told.ANEW or (is_scheduled(rq_job) and not is_gone(rq_job))

    def unless_anew(ttl: int | None = None, pipeline: Pipeline | None = None, *args: Any, **kwargs: Any) -> None:
        if not is_to_come():
            try:
                cleanup(ttl, pipeline, *args, **kwargs)
            except InvalidJobOperation:  # it is gone, but for what the end of this run has written
                (rq_job.connection if pipeline is None else pipeline).delete(rq_job.key)

    def unless_another_call() -> None:
        if not is_another_call(rq_job, delivered.made):
            save_meta()  # type: ignore[no-untyped-call]

    def unless_it_is_to_come(status: JobStatus, pipeline: Pipeline | None = None) -> None:
        if status in ENDED and is_to_come():
            rq_job._status = status
        else:
            set_status(status, pipeline)

    rq_job.to_dict = without_what_is_anew  # type: ignore[method-assign]
    rq_job.set_status = unless_it_is_to_come  # type: ignore[method-assign]
    rq_job.cleanup = unless_anew  # type: ignore[method-assign]
    rq_job.save_meta = unless_another_call  # type: ignore[method-assign]


def row_of(rq_job: Job) -> UUID | None:
    """The row that stands for what is delivered here, if another delivery of it has begun, or somebody canceled it.

    Raises:
        NoSuchJobError: RQ's record of it was deleted since a worker has read it.
        RedisError: Redis cannot be asked.
    """
    made, run = _texts(rq_job, "created_at", RUN)
    _require_known(rq_job, made)
    setattr(rq_job, SEEN, run.removesuffix(HAS_ENDED))
    noted = _noted(run)
    return noted.uuid if noted and noted.is_copy(_enqueued_at(rq_job), _ended_at(rq_job)) else None


def row_of_either(rq_job: Job) -> UUID | None:
    """As `row_of`, else as `row_of_latest`: another call may have been enqueued since.

    Where the job was deleted while it ran, the record that RQ writes at the end of that does not say what this delivery
    has read before.

    Raises:
        NoSuchJobError, RedisError: as `row_of`.
    """
    noted, *latest = _latest(rq_job)
    noted = noted or _noted(getattr(rq_job, SEEN, ""))
    own = _enqueued_at(rq_job), _ended_at(rq_job)
    return noted.uuid if noted and (noted.is_copy(*own) or noted.is_copy(*latest)) else None


def row_of_latest(rq_job: Job) -> UUID | None:
    """The row that stands for all that RQ has enqueued until now, whatever of it is delivered here.

    Raises:
        NoSuchJobError, RedisError: as `row_of`.
    """
    noted, enqueued, ended = _latest(rq_job)
    return noted.uuid if noted and enqueued and noted.is_copy(enqueued, ended) else None


def _latest(rq_job: Job) -> tuple[Noted | None, str, str]:
    """What the last run has noted, and when RQ's record says that the job was enqueued, and that it ended."""
    made, enqueued, ended, run = _texts(rq_job, "created_at", "enqueued_at", "ended_at", RUN)
    _require_known(rq_job, made)
    return _noted(run), enqueued, ended


def _require_known(rq_job: Job, made: str) -> None:
    if _is_gone(rq_job, made):
        raise NoSuchJobError(f"RQ has no record of job {rq_job.id} any more")


def is_gone(rq_job: Job) -> bool:
    """Whether RQ's record of it was deleted since a worker has read it.

    Raises:
        RedisError: Redis cannot be asked.
    """
    (made,) = _texts(rq_job, "created_at")
    return _is_gone(rq_job, made)


def _is_gone(rq_job: Job, made: str) -> bool:
    """What a worker does before it calls the function writes some fields of a record that is gone, and not that one.

    A job that no worker runs needs no record.
    """
    return not made and bool(rq_job.worker_name)


def forget_remains(rq_job: Job) -> None:
    """What RQ has written for a delivery of a job that was deleted meanwhile. It would stay, and pass for the job.

    Raises:
        RedisError: Redis cannot be asked.
    """

    def change(pipeline: Pipeline) -> None:
        (made,) = _texts(rq_job, "created_at")
        pipeline.multi()
        if not made:
            pipeline.delete(rq_job.key)

    rq_job.connection.transaction(change, rq_job.key)


def is_told_since(uuid: UUID, rq_job: Job) -> bool:
    """Whether RQ was told to enqueue the job after this row's run, which has not ended, had begun.

    Not where RQ has done so by itself, for a run of which it had not heard for long, and which it takes for dead: its
    `StartedJobRegistry` leaves the job one retry less then.

    Raises:
        RedisError: Redis cannot be asked.
    """
    latest, ended, retries_left, run = _texts(rq_job, "enqueued_at", "ended_at", "retries_left", RUN)
    noted = _noted(run)
    if noted is None:  # the record that said it was deleted, and somebody has enqueued the job since
        return True
    if noted.uuid != uuid or not latest or noted.is_copy(latest, ended):
        return False
    return not retries_left or noted.retries_left != str(int(retries_left) + 1)


def told_since(rq_job: Job, delivered: Times | None = None) -> Told:
    """What RQ was told of the job, or its id, since this delivery of it was taken.

    Args:
        delivered: of what was taken, where `rq_job` may have been enqueued again itself.

    Raises:
        RedisError: Redis cannot be asked.
    """
    own = delivered or times_of(rq_job)
    made, latest, ended, run = _texts(rq_job, "created_at", "enqueued_at", "ended_at", RUN)
    if _is_gone(rq_job, made):
        return Told.TO_DELETE
    if not made or Times(made, latest) == own:
        return Told.NOTHING
    noted = _noted(run)
    is_copy = made == own.made and noted is not None and noted.is_copy(latest, ended)
    return Told.COPY if is_copy else Told.ANEW


def is_anothers_since(rq_job: Job, delivered: Times) -> bool:
    """Whether another delivery of it has begun, or somebody has canceled it, since this one was taken.

    Or of what RQ has enqueued since: the call once more, or this one with the decorator's timeout.

    Raises:
        RedisError: Redis cannot be asked.
    """
    latest, ended, run = _texts(rq_job, "enqueued_at", "ended_at", RUN)
    noted = _noted(run)
    if noted is None or hasattr(rq_job, CLAIM):
        return False
    if latest != delivered.enqueued and noted.is_copy(latest, ended):
        return True
    return run.removesuffix(HAS_ENDED) != getattr(rq_job, SEEN, "") and delivered.enqueued in noted.times


def is_another_call(rq_job: Job, made: str) -> bool:
    """Whether RQ has another one under the id than that which was made then, as RQ writes it.

    Raises:
        RedisError: Redis cannot be asked.
    """
    (latest,) = _texts(rq_job, "created_at")
    return latest not in ("", made)


def is_enqueued_anew(rq_job: Job) -> bool:
    """Whether RQ has enqueued the job once more since this delivery of it was taken.

    Raises:
        RedisError: Redis cannot be asked.
    """
    (latest,) = _texts(rq_job, "enqueued_at")
    return latest not in ("", _enqueued_at(rq_job))


def is_scheduled(rq_job: Job) -> bool:
    """As for the next run of a function that schedules itself: what is there for a copy a run has taken away by now.

    Raises:
        RedisError: Redis cannot be asked.
    """
    return rq_job.connection.zscore(_scheduled(rq_job), rq_job.id) is not None


def _scheduled(rq_job: Job) -> str:
    return ScheduledJobRegistry.key_template.format(rq_job.origin)


def _texts(rq_job: Job, *fields: str) -> list[str]:
    """Of RQ's record of the job; empty where it has none."""
    return [as_text(value or b"") for value in rq_job.connection.hmget(rq_job.key, *fields)]


def times_of(rq_job: Job) -> Times:
    return Times(utcformat(rq_job.created_at), _enqueued_at(rq_job))


def _enqueued_at(rq_job: Job) -> str:
    """As RQ writes it."""
    return "" if rq_job.enqueued_at is None else utcformat(rq_job.enqueued_at)


def _ended_at(rq_job: Job) -> str:
    return "" if rq_job.ended_at is None else utcformat(rq_job.ended_at)


def _noted(run: str) -> Noted | None:
    if not run:
        return None
    uuid, retries_left, *times = run.removesuffix(HAS_ENDED).split()
    return Noted(UUID(uuid), retries_left, frozenset(times))
