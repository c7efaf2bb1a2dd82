"""The algorithm: who may run now.

A job *holds a slot* exactly while it is ``queued`` or ``running``; ``current_job`` counts those rows.

1. Gate: a slot is taken only by one conditional UPDATE with F expressions that touched a row.
2. Together: the counter and the job's state change in one transaction.
3. One holder, released once: start, beat and release are conditional on (job, attempt, state). No row means that
   the slot is not yours any more: change nothing.
4. No lost wake-up: whoever admits or releases locks the tenant's row first, and a release hands its slot
   straight to the next job in the same transaction. Without the lock the gate answers "full" while a release is
   still uncommitted, and a job waits beside a free slot.
5. Order: priority, then enqueue order; no row is ever passed over, but for one whose key is at its cap.
6. Every function here only touches the database. The caller pushes what was admitted to RQ after the commit.

The statements stand first, in the order in which a job meets them; the functions below say when each one runs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, IntegerField

from tenant_slots import key_caps
from tenant_slots.compiled import Parameter, Statement, fields_of
from tenant_slots.conf import app_settings
from tenant_slots.holders import HOLDER_FIELDS, Holder
from tenant_slots.models import ENDED, HOLDING, DatabaseNow, State, TenantJob, TenantQueue

LOCK_TIMEOUT_SECONDS = 5
"""How long to wait for a tenant's row. Ours is held for milliseconds; only a stuck foreign transaction takes longer."""

LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's SQLSTATE of a lock_timeout that ran out."""

patience: ContextVar[float] = ContextVar("tenant_slots_patience", default=LOCK_TIMEOUT_SECONDS)
"""Seconds to wait for a tenant's row here. A sweep waits less: it comes again and has other tenants to see to."""

PK = Parameter("pk", IntegerField())
ATTEMPT = Parameter("attempt", IntegerField())
SLOTS = Parameter("slots", IntegerField())

LOCKED = ("tenant", "queue", "max_job", "max_job_per_key", "current_job", "paused")
"""What is read of a tenant's row while it is locked; Django fetches anything else when it is asked for."""

ADMITTED = ("uuid", "tenant_queue", "task", "options", "rq_job_id", "rq_queue", "state", "attempt")
"""What a push to RQ needs to know of a job."""

LOCK = Statement(lambda: TenantQueue.objects.select_for_update(no_key=True).filter(pk=PK).only(*LOCKED))

TAKE = Statement(
    lambda: TenantQueue.objects.filter(pk=PK).with_free(SLOTS),
    {"current_job": F("current_job") + SLOTS},
)

GIVE_BACK = Statement(
    lambda: TenantQueue.objects.filter(pk=PK, current_job__gt=0),
    {"current_job": F("current_job") - 1},
)

HAND_ON = Statement(
    lambda: TenantQueue.objects.filter(pk=PK, current_job__gt=0).with_free(SLOTS - 1),
    {"current_job": F("current_job") - 1 + SLOTS},
)
"""GIVE_BACK and TAKE in one."""

CLAIM = Statement(
    lambda: TenantJob.objects.waiting().filter(pk=PK),
    {"state": State.QUEUED, "attempt": F("attempt") + 1, "admitted_at": DatabaseNow()},
)

START = Statement(
    lambda: TenantJob.objects.queued().filter(pk=PK, attempt=ATTEMPT),
    {
        "state": State.RUNNING,
        "started_at": DatabaseNow(),
        "beat_at": DatabaseNow(),
        **fields_of(TenantJob, HOLDER_FIELDS),
    },
)

BEAT = Statement(lambda: TenantJob.objects.running().filter(pk=PK, attempt=ATTEMPT), {"beat_at": DatabaseNow()})


@functools.cache
def next_in_line(slots: int) -> Statement:
    """The next jobs in line."""
    line = TenantJob.objects.filter(tenant_queue=PK).in_line().only(*ADMITTED)
    return Statement(lambda: line[:slots])


@functools.cache
def leaving(states: tuple[State, ...], ends: bool, later: bool, values: tuple[str, ...]) -> Statement:
    """A job leaves its slot, which it must hold in one of these states. One that is to be canceled ends."""
    holding = TenantJob.objects.filter(pk=PK, attempt=ATTEMPT, state__in=states)
    if not ends:
        holding = holding.filter(cancel_requested_at=None)
    changes: dict[str, Any] = dict(fields_of(TenantJob, values))
    if ends:
        changes["ended_at"] = DatabaseNow()
    if later:
        changes["run_after"] = _from_now(Parameter("later", DurationField()))
    return Statement(lambda: holding, changes)


@dataclass(frozen=True)
class Release:
    """What one release did. Falsy when it did nothing."""

    state: State | None
    """Where the job went; None when the slot was not the caller's any more."""
    admitted: list[TenantJob] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.state is not None


def admit(tenant_queue_id: int) -> list[TenantJob]:
    """Give the tenant's free slots to the head of its line; returns the jobs to push to RQ."""
    with locked(tenant_queue_id) as tenant_queue:
        return _admit_heads(tenant_queue)


def start(job: TenantJob, holder: Holder) -> bool:
    """Mark an admitted job as running. False: another run has it, or it was canceled; do not run it."""
    return bool(START.update(pk=job.pk, attempt=job.attempt, **holder.as_fields()))


def is_run_by(job: TenantJob, holder: Holder) -> bool:
    """Whether this very process is noted as running this attempt."""
    running: bool = TenantJob.objects.running().filter(pk=job.pk, attempt=job.attempt, **holder.as_fields()).exists()
    return running


def beat(job_id: int, attempt: int) -> bool:
    """Renew the lease of a running job. False: the lease is lost, another run may have begun."""
    return bool(BEAT.update(pk=job_id, attempt=attempt))


def is_cancel_requested(job_id: int, attempt: int) -> bool:
    """Whether a running job is to be stopped."""
    running = TenantJob.objects.running().filter(pk=job_id, attempt=attempt)
    asked: bool = running.exclude(cancel_requested_at=None).exists()
    return asked


def release(job: TenantJob, states: tuple[State, ...] = HOLDING, later: float | None = None, **values: Any) -> Release:
    """Move a job out of its slot, which goes to the next job in line within the same transaction.

    Args:
        job: as this process started it; its `attempt` is the fence.
        states: the states in which the job may be; in another one nothing changes.
        later: seconds from now to the job's new `run_after`.
        values: the new field values, among them `state`.
    """
    try:
        with locked(job.tenant_queue_id) as tenant_queue:
            state = _leave(job, states, later, values)
            if state is None:
                return Release(state)
            return Release(state, _hand_on(tenant_queue))
    except TenantQueue.DoesNotExist:
        return Release(None)


def in_seconds(seconds: float) -> Any:
    """A time by the database's clock, for a field's new value or a comparison."""
    return _from_now(timedelta(seconds=seconds))


@contextmanager
def locked(tenant_queue_id: int) -> Iterator[TenantQueue]:
    """A transaction that holds the tenant's row.

    NO KEY, because enqueue's foreign key takes a share lock on the key and must never wait for this.

    Raises:
        TenantQueue.DoesNotExist: the row was deleted.
    """
    alias = app_settings.DATABASE
    rules = () if connections[alias].in_atomic_block else _transaction_rules(alias)
    with transaction.atomic(using=alias):
        found = LOCK.rows(rules, pk=tenant_queue_id)
        if not found:
            raise TenantQueue.DoesNotExist(f"TenantQueue {tenant_queue_id} was deleted")
        yield found[0]


def is_locked_out(error: DatabaseError) -> bool:
    """Whether it means that somebody kept the tenant's row locked for longer than our patience."""
    return getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE


def _transaction_rules(alias: str) -> tuple[str, ...]:
    """READ COMMITTED, because a stricter level fails where waiting for the lock is what we want."""
    if connections[alias].vendor != "postgresql":
        return ()
    limit = int(patience.get() * 1000)
    return "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", f"SET LOCAL lock_timeout = '{limit}ms'"


def _admit_heads(tenant_queue: TenantQueue) -> list[TenantJob]:
    heads = _heads(tenant_queue)
    if heads and TAKE.update(pk=tenant_queue.pk, slots=len(heads)):
        return _claim(tenant_queue, heads)
    return []


def _hand_on(tenant_queue: TenantQueue) -> list[TenantJob]:
    """As `_admit_heads`, with the slot that a job has just left."""
    if not tenant_queue.current_job:
        return _admit_heads(tenant_queue)  # the counter was wrong: there is nothing to give back
    tenant_queue.current_job -= 1
    heads = _heads(tenant_queue)
    if heads and HAND_ON.update(pk=tenant_queue.pk, slots=len(heads)):
        return _claim(tenant_queue, heads)
    GIVE_BACK.update(pk=tenant_queue.pk)
    return []


def _heads(tenant_queue: TenantQueue) -> list[TenantJob]:
    if not tenant_queue.free:
        return []
    if tenant_queue.max_job_per_key is None:
        return next_in_line(tenant_queue.free).rows(pk=tenant_queue.pk)
    heads = key_caps.heads(tenant_queue, tenant_queue.free)
    return list(TenantJob.objects.in_line().filter(pk__in=heads).only(*ADMITTED)) if heads else []


def _claim(tenant_queue: TenantQueue, heads: list[TenantJob]) -> list[TenantJob]:
    for job in heads:
        CLAIM.update(pk=job.pk)
        job.tenant_queue, job.state, job.attempt = tenant_queue, State.QUEUED, job.attempt + 1
    return heads


def _leave(job: TenantJob, states: tuple[State, ...], later: float | None, values: dict[str, Any]) -> State | None:
    if _update(job, states, later, values):
        return State(values["state"])
    if values["state"] in ENDED:
        return None
    canceled = {**values, "state": State.CANCELED}
    wanted = TenantJob.objects.filter(pk=job.pk, attempt=job.attempt).exclude(cancel_requested_at=None)
    return State.CANCELED if wanted.exists() and _update(job, states, None, canceled) else None


def _update(job: TenantJob, states: tuple[State, ...], later: float | None, values: dict[str, Any]) -> bool:
    statement = leaving(states, values["state"] in ENDED, later is not None, tuple(values))
    duration = timedelta(seconds=later or 0)
    return bool(statement.update(pk=job.pk, attempt=job.attempt, later=duration, **values))


def _from_now(duration: Any) -> Any:
    return ExpressionWrapper(DatabaseNow() + duration, output_field=DateTimeField())
