"""A slot is left, taken, or passes from one job to the next: step by step, or in one round trip where that is enough.

There are two of each. The one `at_once` raises `NotAsExpected` where things are not as nearly always; the other one
then does it in a new transaction. All of it is done while the tenant queue is locked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tenant_slots import backlog, moves
from tenant_slots.models import ENDED, TenantJob, TenantQueue
from tenant_slots.moves import Leaving, NotAsExpected
from tenant_slots.owners import Owner
from tenant_slots.releases import Admission, Release

Heads = list[TenantJob] | None
"""The first jobs of a backlog, where they were asked for together with the lock; None where they are still to be."""

Choosing = Callable[[TenantJob], object]
"""Called with a job before it is marked as running."""


@dataclass(frozen=True)
class Taker:
    """Who starts a tenant's next job at once."""

    rq_queue: str
    owner: Owner
    choosing: Choosing


def leave_and_count(leaver: Leaving, tenant_queue: TenantQueue) -> Release:
    released = moves.leave(leaver, tenant_queue)
    if released:
        moves.count(tenant_queue, moves.freed_by_one(tenant_queue), 0)
    return released


def leave_and_count_at_once(leaver: Leaving, tenant_queue: TenantQueue) -> Release:
    counting = moves.counting(tenant_queue, moves.freed_by_one(tenant_queue), 0)
    return moves.leave_at_once(leaver, tenant_queue, *counting)[0]


def leave_and_start(leaver: Leaving, tenant_queue: TenantQueue, taker: Taker) -> Release:
    released = moves.leave(leaver, tenant_queue)
    freed = moves.freed_by_one(tenant_queue) if released else 0
    admission = start(tenant_queue, taker, freed)
    return replace(released, admission=admission)


def leave_and_start_at_once(leaver: Leaving, tenant_queue: TenantQueue, taker: Taker, heads: Heads) -> Release:
    """Only where it does not depend on the job's new state who is next."""
    if leaver.state not in ENDED or tenant_queue.max_job_per_key is not None:
        return leave_and_start(leaver, tenant_queue, taker)
    freed = moves.freed_by_one(tenant_queue)
    chosen, admission = _choose_one(tenant_queue, taker, heads)
    also = [*moves.counting(tenant_queue, freed, len(chosen)), *(moves.starting(job, taker.owner) for job in chosen)]
    released, given = moves.leave_at_once(leaver, tenant_queue, *also, is_last=not admission.waits_for_time)
    return replace(released, admission=_with_started(admission, tenant_queue, chosen, given))


def start(tenant_queue: TenantQueue, taker: Taker, freed: int = 0) -> Admission:
    chosen, admission = backlog.choose(tenant_queue, taker.rq_queue, 1)
    if not moves.count(tenant_queue, freed, len(chosen)):
        moves.count(tenant_queue, freed, 0)
        return Admission(is_full=True)
    started = None
    for job in (head for head in chosen if head.starts_where_admitted):
        taker.choosing(job)
        started = moves.start_one(tenant_queue, job, taker.owner)
    elsewhere = moves.claimed(tenant_queue, [head for head in chosen if not head.starts_where_admitted])
    return backlog.outcome(tenant_queue, admission, chosen, elsewhere, started)


def start_at_once(tenant_queue: TenantQueue, taker: Taker, heads: Heads) -> Admission:
    chosen, admission = _choose_one(tenant_queue, taker, heads)
    counting = moves.counting(tenant_queue, 0, len(chosen))
    starting = [moves.starting(job, taker.owner) for job in chosen]
    given = moves.at_once(*counting, *starting, is_last=not admission.waits_for_time)
    return _with_started(admission, tenant_queue, chosen, given)


def _choose_one(tenant_queue: TenantQueue, taker: Taker, heads: Heads) -> tuple[list[TenantJob], Admission]:
    """At most one job, which starts here. Raises NotAsExpected where others go before it."""
    chosen, admission = backlog.choose(tenant_queue, taker.rq_queue, 1, heads)
    if not all(head.starts_where_admitted for head in chosen):
        raise NotAsExpected
    for job in chosen:
        taker.choosing(job)
    return chosen, admission


def _with_started(
    admission: Admission, tenant_queue: TenantQueue, chosen: list[TenantJob], given: list[Any]
) -> Admission:
    """What came of it, where `given` ends with the row of the job that was started, if one was."""
    started: TenantJob | None = given[-1][0] if chosen else None
    if started is not None:
        started.tenant_queue = tenant_queue
    return replace(admission, started=started, wakes_in=backlog.wakes_in(tenant_queue, admission))
