"""The algorithm: who may run now.

A job *holds a slot* exactly while it is ``queued`` or ``running``; ``current_job`` counts those rows.

1. Gate: a slot is taken only by one conditional UPDATE with F expressions that touched a row.
2. Together: the counter and the job's state change in one transaction.
3. One owner, released once: a start is conditional on (job, attempt, state) and writes a random token; heartbeat and
   release are conditional on that token. No row means that the slot is not yours any more: change nothing. The number
   of an attempt does not fence by itself: after a failover that lost commits it is given twice.
4. No lost wake-up: whoever admits or releases locks the tenant queue first, and a release hands its slot
   straight to the next job in the same transaction. Without the lock the gate answers "full" while a release is
   still uncommitted, and a job waits beside a free slot.
5. Order: priority, then enqueue order; no job is ever passed over, but for one whose concurrency key is at its cap.
6. Every function here only touches the database. ``transitions.py`` pushes what was admitted to RQ after the commit.

The statements are in ``statements.py``, in the order in which a job meets them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import F

from tenant_slots import concurrency_keys
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.locks import locked
from tenant_slots.models import ENDED, HOLDING, State, TenantJob, TenantQueue
from tenant_slots.owners import Owner
from tenant_slots.statements import (
    ADMITTED,
    BEAT,
    CLAIM,
    GIVE_BACK,
    HAND_ON,
    START,
    TAKE,
    first_waiting,
    leaving,
)


@dataclass(frozen=True)
class Release:
    """What one release did. Falsy when it did nothing."""

    state: State | None
    """Where the job went; None when the slot was not the caller's any more."""
    admitted: list[TenantJob] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.state is not None


def admit(tenant_queue_id: int) -> list[TenantJob]:
    """Give a tenant's free slots to the head of its backlog; returns the jobs to push to RQ."""
    with locked(tenant_queue_id) as tenant_queue:
        heads = _heads(tenant_queue)
        if heads and TAKE.update(pk=tenant_queue.pk, slots=len(heads)):
            return _claimed(tenant_queue, heads)
        return []


def start(job: TenantJob, owner: Owner) -> bool:
    """Mark an admitted job as running. False: another run has it, or it was canceled; do not run it."""
    job.token = owner.token
    return bool(START.update(pk=job.pk, attempt=job.attempt, **owner.as_fields()))


def is_run_by(job: TenantJob, owner: Owner) -> bool:
    """Whether this very run is noted."""
    running: bool = TenantJob.objects.running().filter(pk=job.pk, token=owner.token).exists()
    return running


def beat(job_id: int, token: int) -> bool:
    """Renew the lease of a run. False: the lease is lost, another run may have begun."""
    return bool(BEAT.update(pk=job_id, token=token))


def is_cancel_requested(job_id: int, token: int) -> bool:
    """Whether a run is to be stopped."""
    running = TenantJob.objects.running().filter(pk=job_id, token=token)
    asked: bool = running.exclude(cancel_requested_at=None).exists()
    return asked


def release(job: TenantJob, states: tuple[State, ...] = HOLDING, later: float | None = None, **values: Any) -> Release:
    """Move a job out of its slot, which goes to the next waiting job within the same transaction.

    Args:
        job: as this process started it, or read it; `attempt` and `token` are the fence.
        states: the states in which the job may be; in another one nothing changes.
        later: seconds from now to the job's new `run_after`.
        values: the new field values, among them `state`.
    """
    try:
        with locked(job.tenant_queue_id) as tenant_queue:
            state = _leave(job, states, later, values)
            return Release(state, _hand_on(tenant_queue) if state is not None else [])
    except TenantQueue.DoesNotExist:
        return Release(None)


def withdraw(job: TenantJob, error: str = "") -> bool:
    """Cancel a job that holds no slot. False when it does not wait any more; then it may hold one."""
    with locked(job.tenant_queue_id):
        unadmitted = TenantJob.objects.filter(pk=job.pk).unadmitted()
        return bool(unadmitted.update(state=State.CANCELED, ended_at=DatabaseNow(), error=error or F("error")))


def _hand_on(tenant_queue: TenantQueue) -> list[TenantJob]:
    """Admit with the slot that a job has just left. A counter of 0 was wrong: there is nothing to give back."""
    freed = min(1, tenant_queue.current_job)
    tenant_queue.current_job -= freed
    heads = _heads(tenant_queue)
    take = HAND_ON if freed else TAKE
    if heads and take.update(pk=tenant_queue.pk, slots=len(heads)):
        return _claimed(tenant_queue, heads)
    if freed:
        GIVE_BACK.update(pk=tenant_queue.pk, slots=freed)
    return []


def _heads(tenant_queue: TenantQueue) -> list[TenantJob]:
    if not tenant_queue.free:
        return []
    if tenant_queue.max_job_per_key is None:
        return first_waiting(tenant_queue.free).rows(pk=tenant_queue.pk)[: tenant_queue.free]
    heads = concurrency_keys.heads(tenant_queue, tenant_queue.free)
    return list(TenantJob.objects.backlog().filter(pk__in=heads).only(*ADMITTED)) if heads else []


def _claimed(tenant_queue: TenantQueue, heads: list[TenantJob]) -> list[TenantJob]:
    """Those heads that still wait. A job's row may be deleted by hand, whatever is locked; its slot stays free."""
    claimed = [job for job in heads if CLAIM.update(pk=job.pk)]
    if vanished := len(heads) - len(claimed):
        GIVE_BACK.update(pk=tenant_queue.pk, slots=vanished)
    for job in claimed:
        job.tenant_queue, job.state, job.attempt = tenant_queue, State.QUEUED, job.attempt + 1
    return claimed


def _leave(job: TenantJob, states: tuple[State, ...], later: float | None, values: dict[str, Any]) -> State | None:
    """Where the job went: as `values` say, or canceled when somebody has asked for that meanwhile."""
    if _update(job, states, later, values):
        return State(values["state"])
    if values["state"] in ENDED:
        return None
    canceled = {**values, "state": State.CANCELED}
    wanted = TenantJob.objects.held_as(job).exclude(cancel_requested_at=None)
    return State.CANCELED if wanted.exists() and _update(job, states, None, canceled) else None


def _update(job: TenantJob, states: tuple[State, ...], later: float | None, values: dict[str, Any]) -> bool:
    statement = leaving(states, values["state"] in ENDED, later is not None, tuple(values))
    duration = timedelta(seconds=later or 0)
    return bool(statement.update(pk=job.pk, attempt=job.attempt, token=job.token, later=duration, **values))
