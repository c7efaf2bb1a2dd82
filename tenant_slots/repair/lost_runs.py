"""What becomes of a job whose process died: it runs again at its old position, a few times, then fails.

A work-horse that died under a worker that lives on is a *crash*: the job ran out of memory, or worse, and will do so
again. A run whose worker died too was *interrupted*: a deploy, a drained node, a lost host. That is no fault of the job
and happens to it as often as somebody deploys. It is counted all the same, with a higher bound, because a job may take
its worker down as well: where there is no work-horse, any segfault does.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Any

from tenant_slots import dispatch, fleet, owners, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.db.commits import after_commit
from tenant_slots.fleet import WorkerRecord
from tenant_slots.models import HOLDING, State, TenantJob
from tenant_slots.owners import Liveness
from tenant_slots.repair import totals
from tenant_slots.repair.silence import is_silent
from tenant_slots.tasks import attempts
from tenant_slots.validation import one_more


def end_lost_run(job: TenantJob, reason: str, *, state: State | None = None, seconds: float | None = None) -> bool:
    """Release the slot of a run that is known to have crashed. False when somebody else already has.

    Args:
        job: the row as read while it held its slot.
        reason: what happened, for the job's error text.
        state: what becomes of the job, when that is already decided; else it waits again or fails by the crash policy.
        seconds: for which it has run, where somebody has measured them.
    """
    return _end(job, reason, state, seconds, crashes=one_more(job.crashes))


def end_interrupted_run(
    job: TenantJob, reason: str, *, state: State | None = None, seconds: float | None = None, silent: bool = False
) -> bool:
    """As `end_lost_run`, for a run whose worker died, or was ended by somebody.

    Args:
        silent: it is taken for dead because nobody has heard of it. Should a heartbeat have come since the row was
            read, it lives, and False is returned.
    """
    return _end(job, reason, state, seconds, silent, interruptions=one_more(job.interruptions))


def reclaim_if_dead(job: TenantJob) -> bool:
    """End the run of a job whose process is gone for certain: this host's kernel says so."""
    return owners.liveness(job) is Liveness.DEAD and _reclaim(job)


def reclaim_if_not_alive(job: TenantJob) -> bool:
    """The same for a job whose process nobody has heard of for long enough, unless it is alive on this host."""
    return owners.liveness(job) is not Liveness.ALIVE and _reclaim(job)


def _reclaim(job: TenantJob) -> bool:
    end = end_lost_run if _outlived_by_its_worker(job) else end_interrupted_run
    return end(job, story(job), state=State.CANCELED if dispatch.was_stopped(job) else None)


def _outlived_by_its_worker(job: TenantJob) -> bool:
    """Whether only a stock worker's work-horse died: the worker has gone on to something else.

    A worker of ours that has lost a work-horse says so itself; a sweep finds its job only when it died too.
    """
    return not job.beats and fleet.worker_record(job) is WorkerRecord.OTHERWISE


def is_out_of_the_way(job: TenantJob) -> bool:
    """Whether a stale run may be taken for over: its process, if it is alive on this host, has been killed.

    That of a reservation is never killed. It may be a web server's, and there is no telling what else it does.
    """
    return job.is_reservation or owners.liveness(job) is not Liveness.ALIVE or owners.kill(job)


def story(job: TenantJob) -> str:
    """Where the lost run was."""
    return f"its process under worker {job.worker} died"


def _end(
    job: TenantJob, reason: str, state: State | None, seconds: float | None, silent: bool = False, **counted: int
) -> bool:
    """An admitted job that no worker has taken by then leaves as one that has not started, and nothing has crashed.

    One that begins after it was read has another token, and is left alone.
    """
    is_unstarted = job.state == State.QUEUED
    states = (State.QUEUED,) if is_unstarted else HOLDING
    counted = {} if is_unstarted else counted
    owners.end_leftovers(job)
    error = f"{job.error}\nattempt {job.attempt}: {reason}".strip()
    after = state or _by_policy(job, **counted)
    is_canceled = after == State.CANCELED
    came_of_it = attempts.CANCELED if is_canceled else attempts.RUN_LOST
    noted = {} if is_unstarted else attempts.noted(job, came_of_it, reason, job.worker, seconds)
    release = partial(transitions.release, job, states=states, seconds=seconds, silent=silent)
    if is_canceled and not is_unstarted:
        # Its process was killed because somebody asked for that: nothing is counted. By RQ's own command, perhaps.
        noted["cancel_requested_at"] = job.cancel_requested_at or clock.now()
        counted = {}
    changes: dict[str, Any] = {**counted, **noted}
    released = bool(release(state=after, error=error, **changes))
    for column in counted if released else ():
        after_commit(partial(totals.add_lost_run, job.rq_queue_name, column))
    return released


def _by_policy(job: TenantJob, crashes: int = 0, interruptions: int = 0) -> State:
    if job.cancel_requested_at is not None:
        return State.CANCELED
    too_often = crashes > app_settings.MAX_CRASHES or interruptions > app_settings.MAX_INTERRUPTIONS
    # The arguments of a plain RQ job are in Redis; running it again is up to RQ's own retry.
    # What a reservation's process did nobody else can do.
    over = job.rq_job_id or job.is_reservation or too_often
    return State.FAILED if over else State.WAITING


class ByHand(Enum):
    """What came of a release by hand."""

    RELEASED = "released"
    ALIVE = "alive"
    """The lease of the run is alive, or its process is and cannot be killed from here."""
    NO_SLOT = "no slot"
    """The job held no slot any more, or another run of it does."""


def release_by_hand(job: TenantJob, reason: str, *, force: bool = False) -> ByHand:
    """Take the slot from a run that is stuck; its job goes on by the crash policy.

    Args:
        job: the row as whoever decides saw it; another attempt than that is left alone.
        force: take it although the lease is alive. The job then fails, because its run may still go on, and whatever
            that run does from now on changes nothing.

    Raises:
        TenantQueueLocked: somebody keeps the job's row locked, and so its heartbeats out.
    """
    if force:
        return ByHand.RELEASED if end_lost_run(job, reason, state=State.FAILED) else ByHand.NO_SLOT
    held = TenantJob.objects.held_as(job)
    if held.stale().exists() and is_silent(job, TenantJob.objects.stale()):
        if not is_out_of_the_way(job):
            return ByHand.ALIVE
        if end_interrupted_run(job, reason, silent=True):
            return ByHand.RELEASED
    return ByHand.ALIVE if held.exists() else ByHand.NO_SLOT
