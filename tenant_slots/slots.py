"""The algorithm: who may run now.

A job *holds a slot* exactly while it is ``queued`` or ``running``; ``current_job`` counts those rows.

1. Gate: a slot is taken only by a conditional UPDATE with F expressions that changed a row. One that is handed on under
   the row's lock, while the limit in the locked row still allows it, needs no write: the counter stays as it is.
2. Together: the counter and the job's state change in one transaction.
3. One owner, released once: a start names (job, attempt, state) and writes a random token; every heartbeat and release
   names that token. If no row matches, the slot is no longer yours: change nothing. The attempt's number is not enough,
   because a failover that loses commits gives the same number to two runs.
4. No lost wake-up: whoever admits, releases or withdraws locks the tenant queue first, and a release passes its slot on
   in the same transaction. Without the lock the gate answers "full" while a release is still uncommitted, and a job
   waits beside a free slot. Starts and heartbeats need no lock: they take and free no slot.
5. Order: priority, then the order of enqueueing. Nobody is passed over, except where a concurrency key is at its cap.
6. Nothing here talks to anything but the database. ``transitions.py`` pushes admitted jobs to RQ after the commit.

The statements are in ``statements.py``, in the order in which a job meets them; `locked` is a transaction with the row
lock, see ``locks.py``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import F

from tenant_slots import concurrency_keys
from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.transactions import impatient
from tenant_slots.locks import locked
from tenant_slots.models import HOLDING, State, TenantJob, TenantJobQuerySet, TenantQueue
from tenant_slots.owners import Owner
from tenant_slots.releases import Release
from tenant_slots.statements import (
    ADMITTED,
    BEAT,
    CLAIM,
    GIVE_BACK,
    START,
    TAKE,
    first_waiting,
    leaving,
)

LOCK_SECONDS = 1
"""How long a start waits for a job's row that somebody holds; it needs no lock of ours."""

HEARTBEAT_SECONDS = 0.01
"""How long a heartbeat does: until a statement of ours that is under way is through."""


def admit(tenant_queue_id: int) -> list[TenantJob]:
    """Give a tenant's free slots to the head of its backlog; returns the jobs to push to RQ.

    Called whenever room may have appeared: after an enqueue, a raised limit, a resume, and by the sweep.
    """
    with locked(tenant_queue_id) as tenant_queue:
        return _fill(tenant_queue, freed=0)


def start(job: TenantJob, owner: Owner) -> bool:
    """Mark a queued job as running. False: it was canceled, or another run has started it; do not run it."""
    rules = impatient(app_settings.DATABASE, LOCK_SECONDS)
    started = bool(START.update(rules, pk=job.pk, attempt=job.attempt, **owner.as_fields()))
    if started:
        job.token = owner.token
    return started


def beat(job_id: int, token: int, horse: int = 0) -> bool:
    """Send a heartbeat, which renews the run's lease. False: the lease is lost, and another run may have begun.

    Args:
        job_id, token: of the run.
        horse: the work-horse that executes it; 0 for none.

    Raises:
        OperationalError: the database is out of reach; or `is_locked_out`, when somebody holds the job's row,
            its own function perhaps. A heartbeat waits for nobody; see `is_running`.
    """
    rules = impatient(app_settings.DATABASE, HEARTBEAT_SECONDS)
    return bool(BEAT.update(rules, pk=job_id, token=token, horse=horse))


def is_running(job_id: int, token: int) -> bool:
    """Whether the database has this run as running."""
    running: bool = _running(job_id, token).exists()
    return running


def is_cancel_requested(job_id: int, token: int) -> bool:
    """Whether somebody has asked for this run to be stopped."""
    asked: bool = _running(job_id, token).exclude(cancel_requested_at=None).exists()
    return asked


def release(job: TenantJob, states: tuple[State, ...] = HOLDING, later: float | None = None, **values: Any) -> Release:
    """Move a job out of its slot and give what is free then to the next waiting jobs, in one transaction.

    Args:
        job: as this process started or read it; nothing changes unless the row has the same `attempt` and `token`.
        states: nothing changes unless the job is in one of these.
        later: seconds from now until the job's new `run_after`.
        values: the new values of fields; `state` must be one of them.
    """
    try:
        with locked(job.tenant_queue_id) as tenant_queue:
            job.tenant_queue = tenant_queue  # whoever is told of the end asks for the tenant
            state = _leave(job, states, later, values)
            return Release(state, _hand_on(tenant_queue) if state is not None else [])
    except TenantQueue.DoesNotExist:
        return Release(None)


def withdraw(job: TenantJob, error: str = "") -> bool:
    """Cancel a scheduled or waiting job. False if it is neither by now; it may then hold a slot.

    Raises:
        TenantQueue.DoesNotExist: as `admit`, if the tenant queue was deleted.
    """
    with locked(job.tenant_queue_id):
        unadmitted = TenantJob.objects.filter(pk=job.pk).unadmitted()
        return bool(unadmitted.update(state=State.CANCELED, ended_at=DatabaseNow(), error=error or F("error")))


def _running(job_id: int, token: int) -> TenantJobQuerySet:
    found: TenantJobQuerySet = TenantJob.objects.filter(pk=job_id, token=token, state=State.RUNNING)
    return found


def _hand_on(tenant_queue: TenantQueue) -> list[TenantJob]:
    """Admit with the slot that a job has just left, or lower the counter if nobody takes it.

    A counter of 0 was wrong before, and is not lowered further: the sweep sets such a counter right.
    """
    freed = min(1, tenant_queue.current_job)
    tenant_queue.current_job -= freed
    return _fill(tenant_queue, freed)


def _fill(tenant_queue: TenantQueue, freed: int) -> list[TenantJob]:
    """Admit as many as there are free slots, `freed` of which the counter still has as taken.

    Where exactly these change hands, the row is not written. It was read under its lock, so what it says of the limit,
    of the pause and of the counter is what the database has until this transaction ends.
    """
    heads = _heads(tenant_queue)
    more = len(heads) - freed
    if more > 0 and not TAKE.update(pk=tenant_queue.pk, slots=more):
        heads, more = [], -freed
    if more < 0:
        GIVE_BACK.update(pk=tenant_queue.pk, slots=-more)
    return _claimed(tenant_queue, heads)


def _heads(tenant_queue: TenantQueue) -> list[TenantJob]:
    if not tenant_queue.free:
        return []
    if tenant_queue.max_job_per_key is None:
        return first_waiting(tenant_queue.free).rows(pk=tenant_queue.pk)[: tenant_queue.free]
    heads = concurrency_keys.heads(tenant_queue, tenant_queue.free)
    return list(TenantJob.objects.backlog().filter(pk__in=heads).only(*ADMITTED)) if heads else []


def _claimed(tenant_queue: TenantQueue, heads: list[TenantJob]) -> list[TenantJob]:
    """Mark the heads as queued; returns those that were.

    The lock does not keep anybody from deleting a job's row by SQL. The slot of such a job is given back, and the sweep
    finds who else could have it.
    """
    claimed = [job for job in heads if CLAIM.update(pk=job.pk)]
    if vanished := len(heads) - len(claimed):
        GIVE_BACK.update(pk=tenant_queue.pk, slots=vanished)
    for job in claimed:
        job.tenant_queue, job.state, job.attempt = tenant_queue, State.QUEUED, job.attempt + 1
    return claimed


def _leave(job: TenantJob, states: tuple[State, ...], later: float | None, values: dict[str, Any]) -> State | None:
    """Where the job went: to the state in `values`, or to canceled if that was requested meanwhile.

    `leaving` refuses a job whose cancel was requested: it does not run again, and whoever was told that it will be
    canceled does not see that it has finished.
    """
    if _update(job, states, later, values):
        return State(values["state"])
    canceled = {**values, "state": State.CANCELED}
    wanted = TenantJob.objects.held_as(job).exclude(cancel_requested_at=None)
    return State.CANCELED if wanted.exists() and _update(job, states, None, canceled) else None


def _update(job: TenantJob, states: tuple[State, ...], later: float | None, values: dict[str, Any]) -> bool:
    statement = leaving(states, State(values["state"]), later is not None, tuple(values))
    duration = timedelta(seconds=later or 0)
    return bool(statement.update(pk=job.pk, attempt=job.attempt, token=job.token, later=duration, **values))
