"""The steps of a sweep, in their order. Each first asks without locking, then locks one tenant at a time where there is
something to do. Every change is conditional, so a step that meets a finishing job, or another sweep, changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from django.db.models import Q, QuerySet
from redis.exceptions import RedisError
from rq.exceptions import NoSuchJobError

from tenant_slots import dispatch, fair_order, fleet, logs, owners, queue_directory, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow, ago
from tenant_slots.exceptions import StaleVersion
from tenant_slots.fleet import WorkerRecord
from tenant_slots.locks import locked
from tenant_slots.models import State, TenantJob, TenantQueue, rq_queue_of
from tenant_slots.owners import Liveness
from tenant_slots.queue_names import usable_queues
from tenant_slots.repair import findings, lost_runs, numbers, shares, unattended
from tenant_slots.repair.asking import ask
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.forgotten_workers import register_again
from tenant_slots.repair.minutes import count_minutes
from tenant_slots.repair.one_row import unless_locked
from tenant_slots.repair.pruning import prune
from tenant_slots.repair.report import Report
from tenant_slots.repair.silence import is_silent, silent
from tenant_slots.repair.together import jobs_together
from tenant_slots.repair.turns import fitting_lease, for_seconds
from tenant_slots.repair.unlocked import unlocked
from tenant_slots.repair.waits import end_waits, promote_forgotten

logger = logging.getLogger("tenant_slots")

SHARE_TO_LOOK = 0.15
"""Of a lease, for how long servers that are away are waited for: with the default, until the last has timed out."""

ABSENCE_SECONDS = 90
"""Seconds for which RQ must not know that a stock worker runs its job: what a FLUSHALL, or a replica that was promoted,
has lost of its record is renewed every 30."""

ROWS_PER_STEP = 1000
"""Most rows that one step changes: a sweep stays short, the rest follows in the next one."""

ROWS_TO_PROMOTE = 20 * ROWS_PER_STEP
"""Most that one sweep promotes: it reads no more of what may be a whole table."""

SECONDS_TO_PROMOTE = 2
"""After which a sweep leaves what is due to the next one."""

SECONDS_TO_SET_RIGHT = 1
"""The same for what is set right in many jobs at once: it may take a transaction to find out about each of them."""

SECONDS_TO_END = 3
"""The same for limits and pauses whose time is over: those of all tenants may end at once."""

SECONDS_TO_RECLAIM = 2
"""The same for the slots of owners that are gone: a whole fleet may be."""

NEVER_ADMITTED = (
    "it could not be admitted: SQL from outside has set its attempt to {attempt}, the highest number of that column; "
    "set a lower one and retry the job, or enqueue it again"
)

SWEEP = "sweep"
"""Who changed a limit, as receivers of ``limit_changed`` are told."""


def set_times_right(report: Report, contact: Contact) -> None:
    """Times that the clock wrote before it was set back, or that somebody took away, become now: nobody is silent yet,
    nor taken for alive long.
    """
    if pks := findings.with_wrong_times()[:ROWS_PER_STEP]:
        _set_all_right(pks, contact, "given times that have come", _set_right)
        logger.warning(
            "the database's clock was set back, or SQL changed times: %s jobs had none that has come", len(pks)
        )


def _set_all_right(pks: Sequence[int], contact: Contact, what: str, change: Callable[[Sequence[int]], int]) -> None:
    until = time.monotonic() + fitting_lease(SECONDS_TO_SET_RIGHT)
    for part in contact.pace.parts(pks, ROWS_PER_STEP):
        with contact.pace.noting(part):
            jobs_together(part, what, change, until)
        if time.monotonic() > until:
            return


def _set_right(pks: Sequence[int]) -> int:
    with unlocked(TenantJob.objects.filter(pk__in=pks)) as jobs:
        for name, is_lacking in findings.LACKING.items():
            jobs.filter(is_lacking | Q((f"{name}__gt", ago(0)))).update(**{name: DatabaseNow()})
    return len(pks)


def end_what_is_over(report: Report, contact: Contact) -> None:
    """Limits and pauses whose time is over."""
    over = list(findings.times_that_are_over()[:ROWS_PER_STEP])
    versions = {pk: version for _, pk, version in over}
    rows = TenantQueue.objects.in_bulk(versions) if over else {}
    as_found = {pk: row for pk, row in rows.items() if row.version == versions[pk]}
    for until, row in for_seconds(SECONDS_TO_END, [(until, as_found[pk]) for until, pk, _ in over if pk in as_found]):
        ended = _end(row, TenantQueue.end_override if until == findings.OVERRIDE else TenantQueue.resume)
        report.overrides_ended += ended and until == findings.OVERRIDE
        report.resumed += ended and until == findings.PAUSE


def _end(row: TenantQueue, end: Callable[..., object]) -> bool:
    """False where somebody changes it meanwhile."""
    with suppress(StaleVersion):
        return unless_locked(end, row, by=SWEEP, reason="its time is over", version=row.version) is not None
    return False


def reclaim_local(report: Report, contact: Contact) -> None:
    """Jobs whose owner process on this host is gone: at once."""
    dead = findings.dead_owners_here()
    _look_at_servers({job.rq_queue_name for job in dead})
    for job in for_seconds(SECONDS_TO_RECLAIM, dead):
        report.reclaimed += bool(unless_locked(lost_runs.reclaim_if_dead, job))


def reclaim_stale(report: Report, contact: Contact) -> None:
    """Jobs whose owner has sent no heartbeat for a lease, and stock workers' jobs that RQ has given up."""
    unheard = list(findings.without_heartbeat())
    _look_at_servers({job.rq_queue_name for job in unheard})
    given_up = [job for job in unheard if not job.beats and unless_locked(_is_given_up, job, contact)]
    for job in for_seconds(SECONDS_TO_RECLAIM, given_up):
        report.reclaimed += bool(unless_locked(lost_runs.reclaim_if_not_alive, job))
    stale = silent([job for job in unheard if job.beats], TenantJob.objects.stale(), contact)
    for job in for_seconds(SECONDS_TO_RECLAIM, stale):
        report.reclaimed += bool(unless_locked(_reclaim_stale, job, report))


def _is_given_up(job: TenantJob, contact: Contact) -> bool:
    """Whether a stock worker has left the job: for long RQ has not said that it runs it, nor had a heartbeat for it."""
    if fleet.worker_record(job) in (WorkerRecord.NAMES_IT, WorkerRecord.UNKNOWN):
        contact.trusts(job)
        return False
    return contact.doubts(job, fleet.last_heartbeat(job)) >= ABSENCE_SECONDS


def _reclaim_stale(job: TenantJob, report: Report) -> bool:
    """Kill first, then reclaim: a stale process on this host may wake up and go on.

    The row is read again before: the run may have ended, or have been heard of, since the sweep asked for stale ones.
    """
    if not is_silent(job, TenantJob.objects.stale()):
        return False
    if not lost_runs.is_out_of_the_way(job):
        report.left.append(f"job {job.uuid}: process {job.pid} is alive but stale, and may not be killed")
        return False
    return lost_runs.end_interrupted_run(job, _staleness_of(job), silent=True)


def _staleness_of(job: TenantJob) -> str:
    return f"worker {job.worker} sent no heartbeat for {app_settings.LEASE_TTL} s"


def end_abandoned_reservations(report: Report, contact: Contact) -> None:
    """Reservations whose block has not begun and never will: their process is gone, or stale."""
    reservations = TenantJob.objects.reservations_to_begin()
    is_stale = Q(beat_at__lt=ago(app_settings.LEASE_TTL))
    asked: QuerySet[Any] = reservations.select_related("tenant_queue").annotate(is_stale=is_stale)
    alive: list[Any] = []
    dead: list[TenantJob] = []
    for job in asked.defer(*findings.UNREPAIRED):
        (dead if owners.liveness(job) is Liveness.DEAD else alive).append(job)
    for job in for_seconds(SECONDS_TO_RECLAIM, dead):
        report.reclaimed += bool(unless_locked(transitions.cancel_unstarted, job, lost_runs.story(job)))
    stale = [job for job in alive if job.is_stale]
    for job in for_seconds(SECONDS_TO_RECLAIM, silent(stale, reservations.filter(is_stale), contact)):
        report.reclaimed += bool(unless_locked(_cancel_silent, job, reservations.filter(is_stale)))


def _cancel_silent(job: TenantJob, stale: QuerySet[TenantJob]) -> bool:
    return is_silent(job, stale) and transitions.cancel_unstarted(job, _staleness_of(job))


def look_at_servers(report: Report, contact: Contact) -> None:
    """Each of the steps that follow would wait for each that is away."""
    _look_at_servers(usable_queues())


def _look_at_servers(queues: Iterable[str]) -> None:
    queue_directory.look_at_servers(queues, app_settings.LEASE_TTL * SHARE_TO_LOOK, ever_more_seldom=True)


def repush(report: Report, contact: Contact) -> None:
    """Admitted jobs that Redis does not have. Pushing one that a worker has just taken is harmless: it starts once, and
    what is delivered of it when that run has ended does nothing.

    Those that nobody is left to take go back to the backlog.
    """
    lost = findings.lost_in_redis()
    for queue, error in lost.unasked.items():
        about_queue = logs.about_named(queue=queue)
        logger.warning("the sweep leaves out queue %s, which cannot be asked: %s", queue, error, extra=about_queue)
    readable, unreadable = findings.told_apart(lost.jobs)
    report.repushed += dispatch.push(job for job in readable if not job.rq_job_id).jobs
    for job, problem in unreadable[:ROWS_PER_STEP]:
        report.reclaimed += bool(unless_locked(_fail_lost, job, problem))
    for job in [job for job in readable if job.rq_job_id][:ROWS_PER_STEP]:
        _push_plain_again(report, job)
    for rq_queue, pks in lost.overdue.items():
        unattended.put_back(rq_queue, pks, ROWS_PER_STEP)


def _push_plain_again(report: Report, job: TenantJob) -> None:
    try:
        came_of = dispatch.push_again(job)
    except RedisError as error:
        logger.warning("job %s could not be pushed to RQ again: %s", job.uuid, error, extra=logs.about(job))
    except NoSuchJobError:
        report.reclaimed += bool(unless_locked(_fail_lost, job, "RQ lost it with its arguments"))
    else:
        report.repushed += came_of is None
        report.reclaimed += came_of is not None and bool(unless_locked(transitions.give_up, job, came_of))


def _fail_lost(job: TenantJob, problem: str) -> bool:
    return lost_runs.end_lost_run(job, problem, state=State.FAILED)


def promote(report: Report, contact: Contact) -> None:
    """Scheduled jobs whose time has come, each tenant's first one before the second one of any.

    Those that the database has refused before come last: it takes a transaction to find out about each of them.
    """
    until = time.monotonic() + fitting_lease(SECONDS_TO_PROMOTE)
    pks = list(findings.due_in_turns(ROWS_TO_PROMOTE))
    contact.refused.intersection_update(pks)
    others = [pk for pk in pks if pk not in contact.refused]
    for some in (others, [pk for pk in pks if pk in contact.refused]):
        for part in contact.pace.parts(some, ROWS_PER_STEP):
            promoted = _Promoted()
            with contact.pace.noting(part):
                report.promoted += jobs_together(part, "promoted", promoted.add, until, contact.refused)
            promoted.offer()
            if time.monotonic() > until:
                return


class _Promoted:
    """Jobs of many tenants. What they do if their tenant is busy is asked when all are promoted: see `asking`."""

    def __init__(self) -> None:
        self._tenants: dict[str, set[tuple[int, int]]] = {}

    def add(self, pks: Sequence[int]) -> int:
        """Promote these together: no tenant queue is locked for it, and a job that is locked is passed over."""
        with unlocked(findings.due().filter(pk__in=pks)) as jobs:
            # Those that are still due: another sweep may have promoted one, and it may have deferred itself again.
            promoted: int = (jobs & findings.due()).update(state=State.WAITING)
            own = list(jobs.values_list("rq_queue", "tenant_queue__queue", "tenant_queue").distinct())
        for rq_queue, queue, row in own:
            self._tenants.setdefault(rq_queue_of(rq_queue, queue), set()).add((row, 0))
        return promoted

    def offer(self) -> None:
        for name, rows in self._tenants.items():
            transitions.offer_many(name, list(rows))


def fail_never_admitted(report: Report, contact: Contact) -> None:
    """Waiting jobs that the database lets nobody admit: each keeps all that are behind it from having a turn."""
    for job in numbers.never_admitted()[:ROWS_PER_STEP]:
        error = f"{job.error}\n{NEVER_ADMITTED.format(attempt=job.attempt)}".strip()
        report.reclaimed += bool(unless_locked(transitions.fail_unadmitted, job, error))


def offer(report: Report, contact: Contact) -> None:
    """Tenants with a waiting job and a free slot: that they are in the order of tenants is forgotten with Redis.

    Those that are in it are left as they are: there may be a hundred thousand. Somebody may have died before he filled
    the window all the same. Forgotten is too where else a tenant waits for a slot that it has in use: it is offered
    there, and found to be full.
    """
    overflow_queues = set(findings.overflow_queues())
    _leave(overflow_queues.difference(usable_queues()), contact)
    found = findings.with_work(overflow_queues)
    shares.set_right(found.startable)
    for rq_queue, rows in findings.stranded_among(found.startable):
        report.admitted += len(transitions.offer_again(rq_queue, rows))
    for rq_queue, rows in findings.forgotten_among(found.beside):
        report.admitted += len(transitions.offer_many(rq_queue, rows))


def _leave(queues_given_up: set[str], contact: Contact) -> None:
    """What waits in an overflow queue that the project has given up goes to the queue of its tenant queue."""
    if queues_given_up:
        pks = list(findings.in_overflow_queues(queues_given_up).values_list("pk", flat=True)[:ROWS_PER_STEP])
        _set_all_right(pks, contact, "moved to the queue of their tenant queue", _move_to_own_queue)


def _move_to_own_queue(pks: Sequence[int]) -> int:
    with unlocked(TenantJob.objects.waiting().filter(pk__in=pks)) as jobs:
        return jobs.update(rq_queue="")


def charge(report: Report, contact: Contact) -> None:
    """What runs is charged to its tenant while it runs, or an hour would count as nothing until it is over.

    It is read of all queues at once, and takes as long as the slowest server. What starts or ends meanwhile tells the
    order itself, which therefore is asked first what it knows.
    """
    seen: dict[str, list[bytes]] = {}
    for name in usable_queues():
        with suppress(*queue_directory.OUT_OF_REACH):
            seen[name] = fair_order.under_way(name)
    found = findings.under_way()
    shares.set_right({name: list(there.shares.items()) for name, there in found.items()})
    left_out = [name for name, there in found.items() if name not in seen or not _charge(name, there, seen[name])]
    if left_out:
        logger.warning(
            "what runs in these queues is not charged yet, as Redis cannot be asked: %s", ", ".join(left_out)
        )


def _charge(rq_queue: str, found: findings.UnderWay, seen: list[bytes]) -> bool:
    with suppress(*queue_directory.OUT_OF_REACH):
        fair_order.charge(rq_queue, found.tenants, found.plain, seen, found.shares)
        return True
    return False


def repair_counters(report: Report, contact: Contact) -> None:
    """Counters that differ from the rows they count. Only SQL from outside, or a bug, does that."""
    for pk in findings.wrong_counters()[:ROWS_PER_STEP]:
        report.repaired += bool(unless_locked(_repair_counter, pk))


def _repair_counter(pk: int) -> bool:
    with locked(pk) as row:
        held = row.jobs.holding().count()
        if row.current_job == held:
            return False
        TenantQueue.objects.filter(pk=pk).update(current_job=held)
    about_row = logs.about_named(tenant=row.tenant, queue=row.queue)
    logger.error("%s counted %s jobs in slots but held %s; repaired", row, row.current_job, held, extra=about_row)
    transitions.freed(pk, row.queue)
    return True


Step = Callable[[Report, Contact], None]
LOCAL_STEPS: tuple[Step, ...] = (reclaim_local, end_abandoned_reservations)
LOST: tuple[Step, ...] = (look_at_servers, repush, offer)
"""What Redis has forgotten."""
STEPS: tuple[Step, ...] = (
    set_times_right,
    reclaim_stale,
    look_at_servers,
    repair_counters,  # before what asks every server, however slow one of them may be
    end_what_is_over,
    register_again,  # before anything is admitted for them
    repush,
    promote,
    end_waits,
    promote_forgotten,
    charge,
    fail_never_admitted,
    offer,
    count_minutes,  # before what is to be counted goes
    prune,
    ask,  # last: it runs the project's code
)
