"""Why a job does not run yet, as facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.db.models import QuerySet

from tenant_slots import concurrency_keys, rates, rests
from tenant_slots.db import clock
from tenant_slots.models import REFUSED, UNKNOWN_TASK, State, TenantJob, TenantQueue
from tenant_slots.models.states import UNSTARTED
from tenant_slots.stats.dependencies import Named, named, waited_for
from tenant_slots.stats.held import NOBODY, held
from tenant_slots.stats.pace import Pace, pace_of
from tenant_slots.stats.positions import position_in_backlog
from tenant_slots.stats.row_locks import RowLock, lock_of

MOST_NAMED = 5
"""Jobs that are named of those that hold the slots."""


class Reason(StrEnum):
    """What keeps a waiting job from being started."""

    PAUSED = "paused"
    LIMIT_OF_ZERO = "limit_of_zero"
    RESTS = "rests"
    """One of its tenant's jobs has said that the tenant is busy."""
    AT_LIMIT = "at_limit"
    """All slots of its tenant queue are taken."""
    KEY_LIMIT = "key_limit"
    """Jobs with its concurrency key hold as many slots as one key may."""
    RATE = "rate"
    """As many jobs have started lately as the rate allows."""
    LOCKED = "locked"
    """None of these, but another transaction keeps its tenant queue."""
    WORKER = "worker"
    """None of these: it starts when a worker is free and its tenant's turn has come."""
    JOBS_BEFORE_IT = "jobs_before_it"
    """None of these either: it is a reservation, which needs no worker."""
    MORE_URGENT = "more_urgent"
    """It has a slot, and a job with a higher priority waits, which is to start before it."""


class Because(StrEnum):
    """Why a job is scheduled."""

    ASKED = "asked"
    """For a time, by whoever enqueued it."""
    BUSY = "busy"
    """Its tenant was busy, and its function's `on_busy` has put it off."""
    REFUSED = "refused"
    """The database has not let it be admitted."""
    RETRY = "retry"
    """It ran, and is to run again."""
    UNKNOWN_TASK = "unknown_task"
    """The worker that took it does not know its function."""


@dataclass(frozen=True)
class NotYet:
    """It is scheduled."""

    until: datetime
    because: Because
    is_due: bool
    """Its time has come: the next sweep puts it into the backlog."""
    row: TenantQueue
    held_back_by: tuple[Reason, ...]
    """What would keep it from starting then too, as far as that is known now."""


@dataclass(frozen=True)
class AfterOthers:
    """It is scheduled, until other jobs have ended."""

    named: Named
    """Those that have not. None where all have: a sweep tells it, if nobody else does."""
    row: TenantQueue
    queue: str
    """Of RQ, whose workers will run it."""
    held_back_by: tuple[Reason, ...]
    """What would keep it from starting if they ended now."""


@dataclass(frozen=True)
class Expired:
    """It was to begin before a time that has come: a sweep cancels it, or the worker that comes to it first."""

    at: datetime


@dataclass(frozen=True)
class NeedsWorker:
    """It has a slot; the next free worker of this RQ queue takes it."""

    row: TenantQueue
    queue: str
    held_back_by: tuple[Reason, ...]
    """What has come since it was admitted: a worker that takes it puts it back into the backlog."""
    slots_of_key: int
    """How many its concurrency key has, this one among them; 0 where that is no matter."""


@dataclass(frozen=True)
class Waits:
    """It is in the backlog of this tenant queue."""

    row: TenantQueue
    position: int
    rq_queue: str
    """Whose workers run it."""
    reasons: tuple[Reason, ...]
    """At least one; the first of `Reason` first."""
    holding: list[TenantJob]
    """Some of those that hold the slots, while that is a reason."""
    holding_its_key: list[TenantJob]
    """Some of those that hold slots with its concurrency key, while that is a reason."""
    stale: list[TenantJob]
    """Some of those that hold a slot without a heartbeat, while slots are a reason."""
    bucket: rates.Bucket | None
    """What the rate has left; None without one, and while no job may start at all."""
    seen_at: datetime
    """The database's clock at the look at the bucket."""
    rests_for: float
    """Seconds for which no job starts, while that is a reason."""
    lock: RowLock | None
    """What keeps the tenant queue, while that is a reason."""
    pace: Pace | None
    """None while no job may start at all, and when there is nothing to tell it by."""
    least_position: int
    """The same but for those before it that are passed over by now, as their concurrency key is at its limit."""

    @property
    def may_start(self) -> bool:
        return not {Reason.PAUSED, Reason.LIMIT_OF_ZERO, Reason.LOCKED} & {*self.reasons}

    @property
    def seconds_to_start(self) -> tuple[float, float] | None:
        """The fewest and the most, as a rule; None where there is no estimate.

        By the pace of the last jobs, which does not count before a rest is over, and not sooner than the rate allows.

        A job whose concurrency key is at its cap has none: the pace is that of those that pass it. Of those before it
        whose keys are, nobody knows whether they have a slot sooner: it may be after none or all of them.
        """
        if self.pace is None or Reason.KEY_LIMIT in self.reasons:
            return None
        soonest, latest = (self._seconds_for(position) for position in (self.least_position, self.position))
        return (soonest[0], latest[1]) if soonest and latest else None

    def _seconds_for(self, position: int) -> tuple[float, float] | None:
        seconds = self.pace.seconds_for(position) if self.pace else None
        if seconds is None:
            return None
        to_its_token = self._seconds_to_token(position)
        fewest, most = (max(self.rests_for + one, to_its_token) for one in seconds)
        return fewest, most

    def _seconds_to_token(self, position: int) -> float:
        """Those before it take one each. None is taken in a rest, in which the bucket fills up to its burst."""
        rest_ends = self.seen_at + timedelta(seconds=self.rests_for)
        rate, bucket = self.row.rate, rates.bucket(self.row, rest_ends)
        if rate is None or bucket is None or position <= bucket.tokens:
            return self.rests_for
        step = rate.step / 1e9
        to_next = (bucket.next_at - rest_ends).total_seconds() if bucket.next_at else step
        return self.rests_for + to_next + (position - bucket.tokens - 1) * step


def why_waiting(
    job: TenantJob,
    seen: QuerySet[TenantJob] | None = None,
    most_named: int = MOST_NAMED,
    now: datetime | None = None,
) -> Expired | NotYet | AfterOthers | NeedsWorker | Waits | None:
    """None when the job runs or has ended.

    Args:
        job: which one.
        seen: the jobs that may be named where other tenants' could be; None for all.
        most_named: how many jobs are named of each kind; none with 0.
        now: by the database's clock, where it is known already.
    """
    if job.state not in UNSTARTED:
        return None
    now = now or clock.now()
    if job.started_at is None and job.expires_at and job.expires_at <= now:
        return Expired(job.expires_at)
    if job.state == State.SCHEDULED:
        if job.run_after is None:
            return _after_others(job, named(waited_for(job), most_named, seen), now)
        row, then = job.tenant_queue, max(now, job.run_after)
        return NotYet(job.run_after, _because(job), job.run_after <= now, row, tuple(_still_then(row, then)))
    if job.state == State.QUEUED:
        return _needs_worker(job, now)
    position = position_in_backlog(job)
    return None if position is None else _waits(job, position, most_named, now)


def _because(job: TenantJob) -> Because:
    """Whatever else puts a job off has a text of its own, so that one of a refusal is about the present time."""
    if job.error.startswith(REFUSED):
        return Because.REFUSED
    mark = job.options.get(UNKNOWN_TASK)
    if job.attempt and mark and mark["attempt"] == job.attempt:
        return Because.UNKNOWN_TASK
    if job.started_at is not None:
        return Because.RETRY
    return Because.BUSY if job.deferrals else Because.ASKED


def _after_others(job: TenantJob, others: Named, now: datetime) -> AfterOthers:
    """Nobody knows when these will have ended."""
    row = job.tenant_queue
    return AfterOthers(others, row, job.rq_queue_name, tuple(_still_then(row, now)))


def _waits(job: TenantJob, position: int, most_named: int, now: datetime) -> Waits:
    row = job.tenant_queue
    may_start = bool(row.max_job) and not row.paused
    bucket = rates.bucket(row, now) if may_start else None
    rests_for = rests.seconds_left(row, now)
    reasons = tuple(_reasons(job, bucket, rests_for))
    lock = None if reasons else lock_of(row)
    reasons = reasons or (_otherwise(job, lock),)
    by_slots = {Reason.AT_LIMIT, Reason.KEY_LIMIT} & {*reasons}
    holders = held(job, most_named) if by_slots and most_named else NOBODY
    return Waits(
        row,
        position,
        job.rq_queue_name,
        reasons,
        holding=holders.holding if Reason.AT_LIMIT in reasons else [],
        holding_its_key=holders.of_its_key if Reason.KEY_LIMIT in reasons else [],
        stale=holders.stale,
        bucket=bucket,
        seen_at=now,
        rests_for=rests_for,
        lock=lock,
        pace=_pace(job, now) if may_start else None,
        least_position=_least_position(job, position, reasons) if may_start else position,
    )


def _least_position(job: TenantJob, position: int, reasons: Sequence[Reason]) -> int:
    """For the estimate, which a job has none whose own key is at its cap."""
    row = job.tenant_queue
    if row.max_job_per_key is None or position == 1 or Reason.KEY_LIMIT in reasons:
        return position
    return 1 + concurrency_keys.not_passed_over(TenantJob.objects.ahead_of(job), row, job.key)


def _pace(job: TenantJob, now: datetime) -> Pace | None:
    """That of its RQ queue. A reservation may have any slot that becomes free."""
    return pace_of(job.tenant_queue, now, None if job.is_reservation else job.rq_queue)


def _reasons(job: TenantJob, bucket: rates.Bucket | None, rests_for: float) -> list[Reason]:
    """Whatever else keeps it from starting counts only once its tenant queue may start anything."""
    row = job.tenant_queue
    of_all = _of_all(row, rests_for)
    if row.paused or not row.max_job:
        return _those_of(of_all)
    found = of_all | {
        Reason.AT_LIMIT: row.current_job >= row.max_job,
        Reason.KEY_LIMIT: concurrency_keys.is_passed_over(job),
        Reason.RATE: bucket is not None and not bucket.tokens,
    }
    return _those_of(found)


def _otherwise(job: TenantJob, lock: RowLock | None) -> Reason:
    if lock is not None:
        return Reason.LOCKED
    return Reason.JOBS_BEFORE_IT if job.is_reservation else Reason.WORKER


def _needs_worker(job: TenantJob, now: datetime) -> NeedsWorker:
    slots_of_key = concurrency_keys.slots_of_key(job)
    since = _since_its_admission(job, slots_of_key, now)
    return NeedsWorker(job.tenant_queue, job.rq_queue_name, tuple(since), slots_of_key)


def _since_its_admission(job: TenantJob, slots_of_key: int, now: datetime) -> list[Reason]:
    """What a start asks again: see `START_IF_DUE` and `START_RESERVATION`."""
    row, cap = job.tenant_queue, job.tenant_queue.max_job_per_key
    found = _of_all(row, rests.seconds_left(row, now)) | {
        Reason.AT_LIMIT: 0 < row.max_job < row.current_job,
        Reason.KEY_LIMIT: cap is not None and cap < slots_of_key,
        Reason.MORE_URGENT: cap is None and not job.is_reservation and _has_more_urgent_beside(job),
    }
    return _those_of(found)


def _has_more_urgent_beside(job: TenantJob) -> bool:
    beside = TenantJob.objects.waiting().filter(tenant_queue=job.tenant_queue_id, rq_queue=job.rq_queue)
    return beside.filter(priority__gt=job.priority).exists()


def _of_all(row: TenantQueue, rests_for: float) -> dict[Reason, bool]:
    """What keeps all jobs of a tenant queue from starting, whatever slots are free."""
    return {Reason.PAUSED: row.paused, Reason.LIMIT_OF_ZERO: not row.max_job, Reason.RESTS: bool(rests_for)}


def _still_then(row: TenantQueue, then: datetime) -> list[Reason]:
    """What of it still does so at that time, as far as it is known now."""
    found = _of_all(row, rests.seconds_left(row, then))
    found[Reason.PAUSED] &= not _is_over(row.resume_at, then)
    found[Reason.LIMIT_OF_ZERO] &= not _is_over(zero_until(row), then)
    return _those_of(found)


def _is_over(end: datetime | None, then: datetime) -> bool:
    return end is not None and end <= then


def zero_until(row: TenantQueue) -> datetime | None:
    """When a limit of 0 ends by itself; None where somebody has to raise it."""
    return row.override_until if row.limit_before_override else None


def _those_of(found: dict[Reason, bool]) -> list[Reason]:
    return [reason for reason, applies in found.items() if applies]
