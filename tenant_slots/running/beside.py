"""What RQ delivers of a job while that runs: it comes back when the run has ended, or is forgotten then.

A copy of what runs is to come back only if the run was lost. What RQ was told to enqueue anew is to run in any case,
and not beside the run. Both are put into RQ's registry of scheduled jobs, for a run of which nobody tells the end; the
run tells it by itself. Either may come first, so that Redis does each in one step.

RQ has one entry for a job in that registry. One that is not ours, as of a function that schedules its own next run,
stays as it is. Ours is told by its time, as what the record says of it is gone where somebody deletes the job.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple
from uuid import UUID

from redis import Redis
from rq import Queue
from rq.job import Job
from rq.registry import ScheduledJobRegistry
from rq.utils import as_text, now

from tenant_slots import rq_copies
from tenant_slots.conf import app_settings
from tenant_slots.models import TenantJob

AGAIN = "tenant_slots_again"
"""Field of RQ's record of a job: the run that another delivery waits for, which of the two kinds that is, when RQ's
scheduler takes it, "-" if that has an entry of others, when the call was made that RQ has then, and the queue of RQ
that it goes to.
"""

COPY, ANEW = "copy", "anew"

FRACTION = 0.5
"""Of the second at which ours is due: RQ schedules nothing between two seconds (2.12)."""


def comes_back(rq_job: Job, job: TenantJob, *, is_anew: bool) -> None:
    """Another delivery of what runs as this row is to come back.

    Raises:
        RedisError: Redis cannot be asked.
    """
    due = int((now() + timedelta(seconds=app_settings.RESCHEDULE_DELAY)).timestamp()) - FRACTION
    _tell(rq_job, "comes_back", job.uuid, ANEW if is_anew else COPY, due, rq_job.origin)


def has_ended(rq_job: Job, job: TenantJob) -> None:
    """The run has ended, and its row says so: what was enqueued anew meanwhile goes into its list.

    A copy is not to come back, nor what RQ has scheduled as it took the run for dead, see `rq_copies.is_told_since`.
    The mark is left to one that is on its way, see `waited_for`.

    Raises:
        RedisError: Redis cannot be asked.
    """
    retries_left = "" if rq_job.retries_left is None else rq_job.retries_left
    _tell(rq_job, "has_ended", job.uuid, retries_left, rq_job.origin)


def had_ended(rq_job: Job, job: TenantJob) -> None:
    """The run was over before this delivery has said that it comes back: it comes at once, and is judged once more.

    Others may have begun since, so that nobody knows any more whether it is a copy, and of what.

    Raises:
        RedisError: Redis cannot be asked.
    """
    _tell(rq_job, "had_ended", job.uuid, rq_job.origin)


def is_not_brought_back(rq_job: Job, job: TenantJob) -> None:
    """The job goes through another queue by now: RQ's scheduler is not to enqueue it in the one where it was put off.

    What somebody has scheduled there meanwhile under its id is another call.

    Raises:
        RedisError: Redis cannot be asked.
    """
    _tell(rq_job, "is_not_brought_back", job.uuid, job.rq_queue_name, rq_copies.FRACTION)


def waited_for(rq_job: Job) -> UUID | None:
    """The row of the run that this delivery has waited for, where it is a copy that has come back.

    One that is still to come back is another delivery. So is one of another call, which somebody has scheduled over the
    entry of the copy.

    Raises:
        RedisError: Redis cannot be asked.
    """
    back = _copy_that_is_back(rq_job)
    return back.run if back and back.made == rq_copies.times_of(rq_job).made else None


def has_copy_of_newer_call(rq_job: Job, job: TenantJob) -> bool:
    """Whether a copy of what RQ has now has come back, which waits for this run, and another call is delivered here.

    Raises:
        RedisError: Redis cannot be asked.
    """
    back = _copy_that_is_back(rq_job)
    if back is None or back.run != job.uuid or back.made == rq_copies.times_of(rq_job).made:
        return False
    return not rq_copies.is_another_call(rq_job, back.made)


class _Copy(NamedTuple):
    run: UUID
    """The row of the run that it waits for."""
    made: str
    """When the call was made."""


def _copy_that_is_back(rq_job: Job) -> _Copy | None:
    mark = rq_job.connection.hget(rq_job.key, AGAIN)
    if mark is None:
        return None
    uuid, kind, _, made, origin = as_text(mark).split(" ", 4)
    if kind != COPY or rq_job.connection.zscore(_scheduled(origin), rq_job.id) is not None:
        return None
    return _Copy(UUID(uuid), made)


def forget(rq_job: Job) -> None:
    """It has come back."""
    rq_job.connection.hdel(rq_job.key, AGAIN)


def _scheduled(origin: str) -> str:
    return ScheduledJobRegistry.key_template.format(origin)


def _tell(rq_job: Job, what: str, uuid: UUID, *arguments: Any) -> None:
    fields = (AGAIN, rq_copies.RUN)
    prefixes = (_scheduled(""), Queue.redis_queue_namespace_prefix)
    _script()(args=(what, rq_job.key, rq_job.id, *fields, *prefixes, str(uuid), *arguments), client=rq_job.connection)


@cache
def _script() -> Any:
    """One for all servers: it is sent to a server that does not know it."""
    return Redis().register_script(files("tenant_slots").joinpath("running/beside.lua").read_text())
