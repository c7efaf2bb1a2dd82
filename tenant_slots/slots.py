"""The algorithm: who may run now.

A job *holds a slot* exactly while it is ``queued`` or ``running``; ``current_job`` counts those rows.

1. Gate: a slot is taken only by a conditional UPDATE with F expressions that changed a row. One that is handed on under
   the row's lock, while the limit in the locked row still allows it, needs no write: the counter stays as it is.
2. Together: the counter and the job's state change in one transaction.
3. One owner, released once: a start names (job, attempt, state) and writes a random token; every heartbeat and release
   names that token. If no row matches, the slot is no longer yours: change nothing. The attempt's number is not enough,
   because a failover that loses commits gives the same number to two runs.
4. No lost wake-up: whoever admits, releases or withdraws locks the tenant queue first, and after a release the tenant
   is offered to the workers again. Without the lock the gate answers "full" while a release is still uncommitted, and a
   job waits beside a free slot. Starts and heartbeats need no lock: they take and free no slot.
5. Order: priority, then the order of enqueueing, in each RQ queue. Nobody is passed over, except where a concurrency
   key is at its cap. Whose turn it is among tenants says ``fair_order.py``; a slot is taken when it has come.
6. Nothing here talks to anything but the database. ``transitions.py`` pushes admitted jobs to RQ after the commit.

The statements are in ``statements.py``, in the order in which a job meets them; `locked` is a transaction with the row
lock, see ``locks.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from django.db import DatabaseError
from django.db.models import F

from tenant_slots import backlog, hand_over, moves, rests
from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.transactions import impatient
from tenant_slots.hand_over import Choosing, Taker
from tenant_slots.locks import locked, locked_and_asked
from tenant_slots.models import ENDED, HOLDING, State, TenantJob, TenantJobQuerySet, TenantQueue
from tenant_slots.moves import Leaving, NotAsExpected
from tenant_slots.owners import Owner
from tenant_slots.refusals import is_refusal
from tenant_slots.releases import Admission, Release
from tenant_slots.statements import BEAT, GIVE_TOKEN_BACK, START_IF_DUE, START_RESERVATION
from tenant_slots.tasks import attempts

LOCK_SECONDS = 0.2
"""How long a start waits for a job's row that somebody holds, as do other tenants' jobs; it needs no lock of ours."""

HEARTBEAT_SECONDS = 0.01
"""How long a heartbeat does: until a statement of ours that is under way is through."""

AGAIN_SHARE = 1 / 100
"""Of a lease, when to try one again that a lock has kept out, as a sweeper that finds none looks twice; or when to send
the first one of a run, which may end at once.
"""

FAILED_SHARE = 1 / 20
"""Of a lease, when to try one again that has failed."""


def admit(tenant_queue_id: int, rq_queue: str, most: int = 1) -> Admission:
    """Give a tenant's free slots to the head of its backlog in one RQ queue, because workers want its jobs.

    Args:
        tenant_queue_id: whose turn it is.
        rq_queue: the name of the RQ queue that workers are about to be free in.
        most: how many jobs these are ready for.

    Raises:
        TenantQueue.DoesNotExist, TenantQueueLocked: as `locked`.
    """
    with locked(tenant_queue_id) as tenant_queue:
        heads, admission = backlog.choose(tenant_queue, rq_queue, most)
        if not moves.count(tenant_queue, 0, len(heads)):
            return Admission(is_full=True)
        return backlog.outcome(tenant_queue, admission, heads, moves.claimed(tenant_queue, heads))


def admit_and_start(tenant_queue_id: int, rq_queue: str, owner: Owner, choosing: Choosing) -> Admission:
    """As `admit`, for a worker that runs the job at once: it is marked as running in the same transaction.

    Args:
        tenant_queue_id, rq_queue: as of `admit`.
        owner: who runs it.
        choosing: called with the job before it is marked.
    """
    taker = Taker(rq_queue, owner, choosing)
    asked = backlog.asked_for(tenant_queue_id, "")
    with suppress(NotAsExpected), locked_and_asked(tenant_queue_id, *asked) as (tenant_queue, answers):
        heads = backlog.heads_of(answers) if rq_queue == tenant_queue.queue else None
        return hand_over.start_at_once(tenant_queue, taker, heads)
    with locked(tenant_queue_id) as tenant_queue:
        return hand_over.start(tenant_queue, taker)


def admit_this(job: TenantJob) -> list[TenantJob]:
    """Give a free slot to a waiting job for which no worker has to be found, or whose worker is here already.

    It goes before none that could have the slot: not as long as slots are free for all that are ahead of it. Of the
    jobs among these only one is looked for where a reservation asks: a worker that is about to be free takes one.

    Returns what was admitted, nothing where there is no slot for the job. The reservations before it get theirs with
    it: if these were left free, others that go before all of them could take them. Not one whose row somebody holds,
    and none where the database refuses one of them.
    """
    try:
        return _admit_this(job, with_others=True)
    except DatabaseError as error:
        if not is_refusal(error):
            raise
    return _admit_this(job, with_others=False)


def _admit_this(job: TenantJob, *, with_others: bool) -> list[TenantJob]:
    with locked(job.tenant_queue_id) as tenant_queue:
        job.tenant_queue = tenant_queue
        others = backlog.goes_with(job, tenant_queue)
        if others is None:
            return []
        chosen = [*(moves.unheld(others) if with_others else []), job]
        if not moves.count(tenant_queue, 0, len(chosen)):
            raise AssertionError("a slot that was free under the row's lock is gone")
        return moves.claimed(tenant_queue, chosen)


def start(job: TenantJob, owner: Owner) -> bool:
    """Mark a queued job as running. False: do not run it.

    It was canceled, or another run has started it. Or it would not be admitted by now: the tenant was paused, rests,
    its limit or that of its keys was lowered, or a job with a higher priority has come, unless it is a reservation.
    Then it is to be put back.
    """
    rules = impatient(app_settings.DATABASE, LOCK_SECONDS)
    values = {"pk": job.pk, "attempt": job.attempt, "tenant_queue": job.tenant_queue_id, **owner.as_fields()}
    if job.is_reservation:
        started = START_RESERVATION.rows(rules, **values)
    else:
        started = START_IF_DUE.rows(rules, **values, rq_queue=job.rq_queue, priority=job.priority)
    for row in started:
        job.token, job.started_at, job.expires_at = owner.token, row.started_at, row.expires_at
    return bool(started)


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


def has_ended_by_itself(job_id: int, token: int) -> bool:
    """Whether this run has recorded how it has ended, and was not taken for lost."""
    job = TenantJob.objects.filter(pk=job_id, token=token).only("state", "attempt", "runs").first()
    return job is not None and attempts.has_ended_by_itself(job)


def is_wanted(job_id: int, token: int) -> bool:
    """Whether the database has this run as running, and nobody has asked for it to be stopped."""
    wanted: bool = _running(job_id, token).filter(cancel_requested_at=None).exists()
    return wanted


def is_cancel_requested(job_id: int, token: int) -> bool:
    """Whether somebody has asked for this run to be stopped."""
    asked: bool = _running(job_id, token).exclude(cancel_requested_at=None).exists()
    return asked


def release(
    job: TenantJob,
    states: tuple[State, ...] = HOLDING,
    later: float | None = None,
    rest: Mapping[str, Any] | None = None,
    unstarted: bool = False,
    silent: bool = False,
    **values: Any,
) -> Release:
    """Move a job out of its slot, which is free then.

    Args:
        job: as this process started or read it; nothing changes unless the row has the same `attempt` and `token`.
        states: nothing changes unless the job is in one of these.
        later: seconds from now until the job's new `run_after`.
        rest: has its tenant queue rest; the arguments of `rests.begin`.
        unstarted: it was marked as running, but its function was never called.
        silent: nothing changes if a heartbeat of its run has come since `job` was read.
        values: the new values of fields; `state` must be one of them.
    """

    leaver = Leaving(job, states, values, later, unstarted and values["state"] not in ENDED, silent)
    has_not_started = unstarted or states == (State.QUEUED,)
    if rest is None and not has_not_started and (released := moves.leave_if_free(leaver)):
        return released

    def go(leave: Callable[[Leaving, TenantQueue], Release]) -> Release:
        with suppress(TenantQueue.DoesNotExist), locked(job.tenant_queue_id) as tenant_queue:
            released = leave(leaver, tenant_queue)
            if released and rest is not None:
                rests.begin(tenant_queue, **rest)
            if released and tenant_queue.rate_number is not None and has_not_started:
                GIVE_TOKEN_BACK.update(pk=tenant_queue.pk)
            return released
        return Release(None)

    with suppress(NotAsExpected):
        return go(hand_over.leave_and_count_at_once)
    return go(hand_over.leave_and_count)


def release_and_start(job: TenantJob, rq_queue: str, owner: Owner, choosing: Choosing, **values: Any) -> Release:
    """As `release` and then `admit_and_start`, for a worker whose tenant is next again: in one transaction.

    The slot changes hands, so that the counter is not written.
    """
    leaver, taker = Leaving(job, HOLDING, values), Taker(rq_queue, owner, choosing)
    asked = backlog.asked_for(job.tenant_queue_id, job.rq_queue)
    with suppress(TenantQueue.DoesNotExist):
        with suppress(NotAsExpected), locked_and_asked(job.tenant_queue_id, *asked) as (tenant_queue, answers):
            return hand_over.leave_and_start_at_once(leaver, tenant_queue, taker, backlog.heads_of(answers))
        with locked(job.tenant_queue_id) as tenant_queue:
            return hand_over.leave_and_start(leaver, tenant_queue, taker)
    return Release(None)


def withdraw(job: TenantJob, error: str = "", state: State = State.CANCELED) -> bool:
    """Cancel a scheduled or waiting job, or have it fail. False if it is neither by now; it may then hold a slot.

    Raises:
        TenantQueue.DoesNotExist: as `admit`, if the tenant queue was deleted.
    """
    with locked(job.tenant_queue_id):
        unadmitted = TenantJob.objects.filter(pk=job.pk).unadmitted()
        ended = moves.as_ended({"state": state, "ended_at": DatabaseNow(), "error": error or F("error")})
        return bool(unadmitted.update(**ended))


def _running(job_id: int, token: int) -> TenantJobQuerySet:
    found: TenantJobQuerySet = TenantJob.objects.filter(pk=job_id, token=token, state=State.RUNNING)
    return found
