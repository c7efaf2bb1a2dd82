"""Why a job does not run yet, as facts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tenant_slots import concurrency_keys, rates, rests
from tenant_slots.db import clock
from tenant_slots.db.clock import ago
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.stats.expressions import ran_lately
from tenant_slots.stats.held import holding, holding_the_key
from tenant_slots.stats.percentiles import WINDOW
from tenant_slots.stats.positions import position_in_backlog

MOST_NAMED = 5
"""Jobs that are named of those that hold the slots."""


@dataclass(frozen=True)
class NotYet:
    """It is scheduled: for a time, for a retry, or deferred."""

    until: datetime


@dataclass(frozen=True)
class NeedsWorker:
    """It has a slot; the next free worker of this RQ queue takes it."""

    queue: str


@dataclass(frozen=True)
class Waits:
    """It is in the backlog of this tenant queue."""

    row: TenantQueue
    position: int
    holding: list[TenantJob]
    """Some of those that hold the slots; none while no job may start at all."""
    holding_its_key: list[TenantJob]
    """Some of those that hold slots with its concurrency key, while that one is at its limit."""
    next_token_at: datetime | None
    """When the rate lets a job start again, while it lets none; None also while no job may start at all."""
    rests: bool
    """Whether no job may start because one has said that the tenant is busy."""
    started_lately: int | None
    """Jobs of this tenant queue that started within `percentiles.WINDOW`; None while no job may start at all."""

    @property
    def seconds_to_start(self) -> float | None:
        """Estimated by that rate, as no job's length is known before it has run; None where there is none."""
        return self.position * WINDOW / self.started_lately if self.started_lately else None


def why_waiting(job: TenantJob) -> NotYet | NeedsWorker | Waits | None:
    """None when the job runs or has ended."""
    if job.state == State.SCHEDULED and job.run_after is not None:
        return NotYet(job.run_after)
    if job.state == State.QUEUED:
        return NeedsWorker(job.rq_queue_name)
    position = position_in_backlog(job)
    if position is None:
        return None
    row = job.tenant_queue
    may_start = bool(row.max_job) and not row.paused
    return Waits(
        row,
        position,
        holding=holding(row, MOST_NAMED) if may_start else [],
        holding_its_key=holding_the_key(job, MOST_NAMED) if concurrency_keys.is_passed_over(job) else [],
        rests=bool(rests.seconds_left(row)),
        next_token_at=_next_token_at(row) if may_start else None,
        started_lately=_started_lately(row) if may_start else None,
    )


def _next_token_at(row: TenantQueue) -> datetime | None:
    bucket = rates.bucket(row, clock.now()) if row.rate_number is not None else None
    return bucket.next_at if bucket is not None and not bucket.tokens else None


def _started_lately(row: TenantQueue) -> int:
    started: int = ran_lately(row.jobs.all(), WINDOW).filter(started_at__gt=ago(WINDOW)).count()
    return started
