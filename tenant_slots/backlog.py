"""Who of a tenant is next: the head of its backlog in an RQ queue, as far as there are slots, tokens and no rest.

All of it is asked while the tenant queue is locked, by those that give slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from tenant_slots import concurrency_keys, rests
from tenant_slots.db.compiled import Asked
from tenant_slots.models import TenantJob, TenantQueue, overflow_queue_of
from tenant_slots.releases import Admission
from tenant_slots.statements import (
    HEADS,
    NEXT,
    NEXT_RESERVATION,
    RESERVATIONS,
    TOKENS_LEFT,
    UNTIL_TOKEN,
    first_reservations,
    first_waiting,
)

SECONDS_TO_NEXT_LOOK = 0.5
"""After a job was gone that was about to get a slot. Not at once: a trigger of the project may keep it from getting
one, without a word.
"""

NANOSECONDS = 10**9
"""In a second."""


def asked_for(tenant_queue_id: int, rq_queue: str) -> list[Asked]:
    """The questions whose answers `heads_of` takes for one job, which is to be started at once.

    The RQ queue is named as the jobs' rows do it.
    """
    head = Asked(NEXT, {"pk": tenant_queue_id, "rq_queue": rq_queue})
    return [head, Asked(NEXT_RESERVATION, {"pk": tenant_queue_id})] if rq_queue else [head]


def heads_of(answers: list[list[TenantJob]]) -> list[TenantJob] | None:
    """What `choose` takes; None where there was no answer."""
    if len(answers) > 1:
        return _in_order(answers)
    return answers[0] if answers else None


def _in_order(backlogs: Iterable[list[TenantJob]]) -> list[TenantJob]:
    return sorted(chain.from_iterable(backlogs), key=_place)


def _place(job: TenantJob) -> tuple[int, int]:
    return -job.priority, job.pk


def choose(
    tenant_queue: TenantQueue, rq_queue: str, most: int, heads: list[TenantJob] | None = None
) -> tuple[list[TenantJob], Admission]:
    """The next jobs, `most` of them, and the reservations before them; and what follows from there being no more.

    Args:
        heads: the first ones, and one more than `most`, if they were read already while the row was locked.
    """
    free = _free(tenant_queue)
    if not free:
        heads = []
    elif heads is None or tenant_queue.max_job_per_key is not None:
        heads = next_ones(tenant_queue, rq_queue, most + 1)
    chosen: list[TenantJob] = []
    jobs = 0
    for head in heads[:free]:
        if not head.is_reservation:
            jobs += 1
        if jobs > most:
            break
        chosen.append(head)
    may_wait = _passes_over(tenant_queue)
    has_all = len(heads) <= min(most, len(chosen))  # fewer than were asked for, reservations among them or not
    if free and not may_wait and has_all:
        return chosen, Admission()
    is_shut = free <= len(chosen)
    is_full = is_shut or (may_wait and has_all)
    return chosen, Admission(
        is_full=is_full,
        is_shut=is_shut,
        waits_for_time=free <= len(chosen) < tenant_queue.free,
        has_more=not is_full,
    )


def goes_with(job: TenantJob, tenant_queue: TenantQueue) -> list[TenantJob] | None:
    """The reservations before a job that asks for a slot itself: they can have one too, and need no worker either.

    None in place of a list where no slot is free that nobody ahead of the job could have.
    """
    free = _free(tenant_queue)
    if not free or (job.key and concurrency_keys.is_passed_over(job)):
        return None
    if job.is_reservation:
        reservations = _reservations_with_slot(tenant_queue, free)
        return reservations[: reservations.index(job)] if job in reservations else None
    if tenant_queue.max_job_per_key is None:
        return _reservations_before_next(job, free)
    first = first_ones(tenant_queue, job.rq_queue, free)
    return [one for one in _reservations_before(job) if one.pk in first] if job.pk in first else None


def _reservations_before(job: TenantJob) -> list[TenantJob]:
    return [one for one in RESERVATIONS.rows(pk=job.tenant_queue_id) if _place(one) < _place(job)]


def _reservations_with_slot(tenant_queue: TenantQueue, most: int) -> list[TenantJob]:
    """Those among the first `most` that could have a slot now: reservations need no worker, and of the jobs that wait
    for one only the next one may be about to have it.

    All of a tenant's reservations may ask when a slot is free, so that each reads as few as there are slots.
    """
    if tenant_queue.max_job_per_key is not None:
        reservations = RESERVATIONS.rows(pk=tenant_queue.pk)
        first = concurrency_keys.reservations_and_next_job(tenant_queue, reservations)[:most]
    else:
        reservations = first_reservations(most).rows(pk=tenant_queue.pk)
        own = first_waiting(1 + len(reservations)).rows(pk=tenant_queue.pk, rq_queue="")
        job = [one for one in own if not one.is_reservation][:1]
        first = [one.pk for one in _in_order([job, reservations])[:most]]
    return [one for one in reservations if one.pk in first]


def _reservations_before_next(job: TenantJob, most: int) -> list[TenantJob] | None:
    """None unless the job is among the first `most`. No more are read, in their order, as by the backlog's index.

    In its own queue the reservations are in the backlog.
    """
    ahead = TenantJob.objects.ahead_of(job).backlog()[:most].count()
    if ahead >= most:
        return None
    before = _reservations_before(job)
    return before if ahead + len(before if job.rq_queue else ()) < most else None


def _passes_over(tenant_queue: TenantQueue) -> bool:
    """Whether jobs may wait that had no turn because their key is at its cap: they can have a slot after a release."""
    return tenant_queue.max_job_per_key is not None


def _free(tenant_queue: TenantQueue) -> int:
    """How many jobs may start now: as many as there are free slots, and tokens where the row has a rate.

    None while the row rests.
    """
    if tenant_queue.free and rests.goes_on(tenant_queue):
        return 0
    if not tenant_queue.free or tenant_queue.rate_number is None:
        return tenant_queue.free
    ((tokens,),) = TOKENS_LEFT.lists(pk=tenant_queue.pk)
    return min(tenant_queue.free, int(tokens))


def outcome(
    tenant_queue: TenantQueue,
    admission: Admission,
    chosen: list[TenantJob],
    jobs: list[TenantJob],
    started: TenantJob | None = None,
) -> Admission:
    """What came of a choice: of the chosen ones these were admitted, and that one was started.

    Where one was gone by then somebody else can have its slot, and nobody has looked who that is.
    """
    if len(jobs) + (started is not None) < len(chosen):
        return Admission(jobs=jobs, started=started, is_full=True, wakes_in=SECONDS_TO_NEXT_LOOK)
    return replace(admission, jobs=jobs, started=started, wakes_in=wakes_in(tenant_queue, admission))


def wakes_in(tenant_queue: TenantQueue, admission: Admission) -> float | None:
    """Seconds until a rest is over, or there is a token where none was left; None where a tenant waits for neither."""
    if not admission.waits_for_time:
        return None
    if tenant_queue.rests_until is not None:
        return rests.seconds_left(tenant_queue)
    if tenant_queue.rate_number is None:
        return None
    ((nanoseconds,),) = UNTIL_TOKEN.lists(pk=tenant_queue.pk)
    return max(0, int(nanoseconds)) / NANOSECONDS  # it may have come since


def next_ones(tenant_queue: TenantQueue, rq_queue: str, most: int) -> list[TenantJob]:
    """The jobs that come next in an RQ queue, whether or not slots are free.

    In an overflow queue reservations are among them.
    """
    lane = overflow_queue_of(rq_queue, tenant_queue.queue)
    reservations = _reservations_beside(tenant_queue, lane)
    if tenant_queue.max_job_per_key is None:
        return _in_order([first_waiting(most).rows(pk=tenant_queue.pk, rq_queue=lane), reservations])
    heads = concurrency_keys.heads(tenant_queue, most, lane, reservations)
    return HEADS.rows(pks=heads) if heads else []


def first_ones(tenant_queue: TenantQueue, lane: str, most: int) -> list[int]:
    """Primary keys of the first `most` of those that `next_ones` gives. Without the lock it is as of now.

    Args:
        lane: the RQ queue as the jobs' rows have it.
    """
    reservations = _reservations_beside(tenant_queue, lane)
    if tenant_queue.max_job_per_key is not None:
        return concurrency_keys.heads(tenant_queue, most, lane, reservations)[:most]
    jobs = tenant_queue.jobs.backlog().filter(rq_queue=lane).values_list("priority", "pk")[:most]
    places = [*((-priority, pk) for priority, pk in jobs), *map(_place, reservations)]
    return [pk for _, pk in sorted(places)[:most]]


def _reservations_beside(tenant_queue: TenantQueue, lane: str) -> list[TenantJob]:
    """In an overflow queue those that wait in their own, and have no other: a slot that goes from job to job there
    would never come to one. In their own queue none, where they stand in the backlog.
    """
    return RESERVATIONS.rows(pk=tenant_queue.pk) if lane else []
