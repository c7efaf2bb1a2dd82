"""A slot is left, taken, or passes from one job to the next: step by step, or in one round trip where that is enough.

There are two of each. The one `at_once` raises `NotAsExpected` where things are not as nearly always; the other one
then does it in a new transaction. All of it is done while the tenant queue is locked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tenant_slots import backlog, moves
from tenant_slots.models import ENDED, HOLDING, State, TenantJob, TenantQueue
from tenant_slots.moves import NotAsExpected
from tenant_slots.owners import Owner
from tenant_slots.releases import Admission, Release

Choosing = Callable[[TenantJob], object]
"""Called with a job before it is marked as running."""


def leave(
    job: TenantJob, tenant_queue: TenantQueue, states: tuple[State, ...], later: float | None, values: dict[str, Any]
) -> Release:
    released = moves.leave(job, tenant_queue, states, later, values)
    if released:
        moves.count(tenant_queue, moves.freed_by_one(tenant_queue), 0)
    return released


def leave_at_once(
    job: TenantJob, tenant_queue: TenantQueue, states: tuple[State, ...], later: float | None, values: dict[str, Any]
) -> Release:
    counting = moves.counting(tenant_queue, moves.freed_by_one(tenant_queue), 0)
    return moves.leave_at_once(job, tenant_queue, states, later, values, *counting)[0]


def leave_and_start(
    job: TenantJob,
    values: dict[str, Any],
    tenant_queue: TenantQueue,
    rq_queue: str,
    owner: Owner,
    choosing: Choosing,
    answers: list[list[TenantJob]],
) -> Release:
    released = moves.leave(job, tenant_queue, HOLDING, None, values)
    freed = moves.freed_by_one(tenant_queue) if released else 0
    heads = answers[0] if answers and released.state in ENDED else None
    return replace(released, admission=start(tenant_queue, rq_queue, owner, choosing, heads, freed))


def leave_and_start_at_once(
    job: TenantJob,
    values: dict[str, Any],
    tenant_queue: TenantQueue,
    rq_queue: str,
    owner: Owner,
    choosing: Choosing,
    answers: list[list[TenantJob]],
) -> Release:
    """Only where it does not depend on the job's new state who is next."""
    if values["state"] not in ENDED or tenant_queue.max_job_per_key is not None:
        return leave_and_start(job, values, tenant_queue, rq_queue, owner, choosing, answers)
    freed = moves.freed_by_one(tenant_queue)
    chosen, admission = _choose_one(tenant_queue, rq_queue, choosing, answers[0] if answers else None)
    also = [*moves.counting(tenant_queue, freed, len(chosen)), *(moves.starting(job, owner) for job in chosen)]
    released, given = moves.leave_at_once(job, tenant_queue, HOLDING, None, values, *also)
    return replace(released, admission=_with_started(admission, tenant_queue, chosen, given))


def start(
    tenant_queue: TenantQueue,
    rq_queue: str,
    owner: Owner,
    choosing: Choosing,
    heads: list[TenantJob] | None,
    freed: int = 0,
) -> Admission:
    heads, admission = backlog.choose(tenant_queue, rq_queue, 1, heads)
    if not moves.count(tenant_queue, freed, len(heads)):
        moves.count(tenant_queue, freed, 0)
        return Admission(is_full=True)
    started = None
    for job in (head for head in heads if head.starts_where_admitted):
        choosing(job)
        started = moves.start_one(tenant_queue, job, owner)
    elsewhere = moves.claimed(tenant_queue, [head for head in heads if not head.starts_where_admitted])
    return replace(admission, jobs=elsewhere, started=started, wakes_in=backlog.wakes_in(tenant_queue, admission))


def start_at_once(
    tenant_queue: TenantQueue, rq_queue: str, owner: Owner, choosing: Choosing, heads: list[TenantJob] | None
) -> Admission:
    chosen, admission = _choose_one(tenant_queue, rq_queue, choosing, heads)
    counting = moves.counting(tenant_queue, 0, len(chosen))
    given = moves.at_once(*counting, *(moves.starting(job, owner) for job in chosen))
    return _with_started(admission, tenant_queue, chosen, given)


def _choose_one(
    tenant_queue: TenantQueue, rq_queue: str, choosing: Choosing, heads: list[TenantJob] | None
) -> tuple[list[TenantJob], Admission]:
    """At most one job, which starts here. Raises NotAsExpected where others go before it."""
    chosen, admission = backlog.choose(tenant_queue, rq_queue, 1, heads)
    if not all(head.starts_where_admitted for head in chosen):
        raise NotAsExpected
    for job in chosen:
        choosing(job)
    return chosen, admission


def _with_started(
    admission: Admission, tenant_queue: TenantQueue, chosen: list[TenantJob], given: list[Any]
) -> Admission:
    """What came of it, where `given` ends with the row of the job that was started, if one was."""
    started: TenantJob | None = given[-1][0] if chosen else None
    if started is not None:
        started.tenant_queue = tenant_queue
    return replace(admission, started=started, wakes_in=backlog.wakes_in(tenant_queue, admission))
