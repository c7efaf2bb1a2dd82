"""The algorithm: who may run now.

A job *holds a slot* exactly while it is ``queued`` or ``running``; ``current_job`` counts those rows.

1. Gate: a slot is taken only by one conditional UPDATE with F expressions that touched a row.
2. Together: the counter and the job's state change in one transaction.
3. One holder, released once: start, beat and release are conditional on (job, attempt, state). No row means that
   the slot is not yours any more: change nothing.
4. No lost wake-up: whoever admits or releases locks the tenant's row first, and a release hands its slot
   straight to the next job in the same transaction. Without the lock the gate answers "full" while a release is
   still uncommitted, and a job waits beside a free slot.
5. Order: priority, then enqueue order; no row is ever passed over.
6. Every function here only touches the database. The caller pushes what was admitted to RQ after the commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import connections, transaction
from django.db.models import DateTimeField, ExpressionWrapper, F

from tenant_slots.conf import app_settings
from tenant_slots.holders import Holder
from tenant_slots.models import HOLDING, DatabaseNow, State, TenantJob, TenantQueue

LOCK_TIMEOUT_SECONDS = 5
"""How long to wait for a tenant's row. Ours is held for milliseconds; only a stuck foreign transaction takes longer."""


@dataclass(frozen=True)
class Release:
    """What one release did. Falsy when the slot was not the caller's any more."""

    done: bool
    admitted: list[TenantJob] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.done


def admit(tenant_queue_id: int) -> list[TenantJob]:
    """Give the tenant's free slots to the head of its line; returns the jobs to push to RQ."""
    with locked(tenant_queue_id) as tenant_queue:
        return _admit_heads(tenant_queue)


def start(job: TenantJob, holder: Holder) -> bool:
    """Mark an admitted job as running. False: another run has it, or it was canceled; do not run it."""
    now = DatabaseNow()
    admitted = TenantJob.objects.queued().filter(pk=job.pk, attempt=job.attempt)
    return bool(admitted.update(state=State.RUNNING, started_at=now, beat_at=now, **holder.as_fields()))


def is_run_by(job: TenantJob, holder: Holder) -> bool:
    """Whether this very process is noted as running this attempt."""
    running: bool = TenantJob.objects.running().filter(pk=job.pk, attempt=job.attempt, **holder.as_fields()).exists()
    return running


def beat(job_id: int, attempt: int) -> bool:
    """Renew the lease of a running job. False: the lease is lost, another run may have begun."""
    return bool(TenantJob.objects.running().filter(pk=job_id, attempt=attempt).update(beat_at=DatabaseNow()))


def release(job: TenantJob, states: tuple[State, ...] = HOLDING, **changes: Any) -> Release:
    """Move a job out of its slot, which goes to the next job in line within the same transaction.

    Args:
        job: as this process started it; its `attempt` is the fence.
        states: the states in which the job may be; in another one nothing changes.
        changes: the new field values, among them `state`.
    """
    try:
        return _release(job, states, changes)
    except TenantQueue.DoesNotExist:
        return Release(done=False)


def _release(job: TenantJob, states: tuple[State, ...], changes: dict[str, Any]) -> Release:
    with locked(job.tenant_queue_id) as tenant_queue:
        if not TenantJob.objects.held_as(job).filter(state__in=states).update(**changes):
            return Release(done=False)
        if _row(tenant_queue).give_back():
            tenant_queue.current_job -= 1
        return Release(done=True, admitted=_admit_heads(tenant_queue))


def in_seconds(seconds: float) -> Any:
    """A time by the database's clock, for a field's new value."""
    return ExpressionWrapper(DatabaseNow() + timedelta(seconds=seconds), output_field=DateTimeField())


@contextmanager
def locked(tenant_queue_id: int) -> Iterator[TenantQueue]:
    """A transaction that holds the tenant's row.

    NO KEY, because enqueue's foreign key takes a share lock on the key and must never wait for this.
    """
    alias = app_settings.DATABASE
    outermost = not connections[alias].in_atomic_block
    with transaction.atomic(using=alias):
        if outermost:
            _set_transaction_rules(alias)
        yield TenantQueue.objects.select_for_update(no_key=True).get(pk=tenant_queue_id)


def _set_transaction_rules(alias: str) -> None:
    """READ COMMITTED, because a stricter level fails where waiting for the lock is what we want."""
    connection = connections[alias]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'"
            )


def _row(tenant_queue: TenantQueue) -> Any:
    return TenantQueue.objects.filter(pk=tenant_queue.pk)


def _admit_heads(tenant_queue: TenantQueue) -> list[TenantJob]:
    heads = _heads(tenant_queue)
    if not heads or not _row(tenant_queue).take(len(heads)):
        return []
    TenantJob.objects.waiting().filter(pk__in=[job.pk for job in heads]).update(
        state=State.QUEUED, attempt=F("attempt") + 1, admitted_at=DatabaseNow()
    )
    for job in heads:
        job.state, job.attempt = State.QUEUED, job.attempt + 1
    return heads


def _heads(tenant_queue: TenantQueue) -> list[TenantJob]:
    """As many of the next jobs as there are free slots, without their arguments: nobody needs them here."""
    if not tenant_queue.free:
        return []
    line = tenant_queue.jobs.in_line().defer("args", "kwargs", "result", "error")
    heads: list[TenantJob] = list(line[: tenant_queue.free])
    for job in heads:
        job.tenant_queue = tenant_queue
    return heads
