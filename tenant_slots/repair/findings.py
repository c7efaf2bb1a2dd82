"""What is not as it should be, as queries: the steps of a sweep repair it, the doctor says what it means.

Nothing here changes or locks a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import BooleanField, CharField, Count, Exists, F, OuterRef, Q, QuerySet, Value, Window
from django.db.models.functions import RowNumber

from tenant_slots import chains, charges, dispatch, fair_order, logs, owners, queue_directory, rates, rests
from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow, ago
from tenant_slots.exceptions import UnreadableColumn
from tenant_slots.models import (
    ENDED,
    IN_OVERFLOW_QUEUE,
    JobDependency,
    Kind,
    State,
    TenantJob,
    TenantJobQuerySet,
    TenantQueue,
    rq_queue_of,
)
from tenant_slots.owners import Liveness
from tenant_slots.queue_names import usable_queues

UNREPAIRED = ("args", "kwargs", "progress", "stats", "result")
"""Fields of a job that no repair asks for, and that may take long to read."""

OVERRIDE, PAUSE = "override_until", "resume_at"
"""Until when each of them lasts."""

IS_RESERVATION_TO_BEGIN = Q(kind=Kind.RESERVATION, state__in=(State.WAITING, State.QUEUED))

LACKING = {
    "admitted_at": Q(state=State.QUEUED, admitted_at=None),
    "beat_at": (Q(state=State.RUNNING) | IS_RESERVATION_TO_BEGIN) & Q(beat_at=None),
    "ended_at": Q(state__in=ENDED, ended_at=None),
}
"""By column: jobs that have got such a time when they came into their state, and have none."""

logger = logging.getLogger("tenant_slots")


def dead_owners_here() -> list[TenantJob]:
    """Running jobs whose owner process was on this host and is gone."""
    return _dead_here(TenantJob.objects.running())


def dead_reservations_here() -> list[TenantJob]:
    """Reservations whose block will never begin: their process was on this host and is gone."""
    return _dead_here(TenantJob.objects.reservations_to_begin())


def without_heartbeat() -> TenantJobQuerySet:
    """Running jobs without a heartbeat for a lease, those of stock workers among them, which send none."""
    found: TenantJobQuerySet = TenantJob.objects.running().filter(beat_at__lt=ago(app_settings.LEASE_TTL))
    return found.select_related("tenant_queue").defer(*UNREPAIRED)


class LostInRedis(NamedTuple):
    jobs: list[TenantJob]
    unasked: dict[str, Exception]
    """By queue: why its Redis could not be asked, or that RQ has no such queue. Its jobs were not looked for."""
    overdue: dict[str, list[int]]
    """By RQ queue: primary keys of all that were admitted for workers a while ago, lost or not; no plain RQ jobs."""


def lost_in_redis() -> LostInRedis:
    """Admitted jobs that no worker would find. Looks at names first: usually nothing is lost."""
    overdue = TenantJob.objects.queued().jobs().filter(admitted_at__lt=ago(app_settings.SWEEP_INTERVAL))
    names = list(overdue.values_list("pk", "uuid", "attempt", "rq_job_id", "rq_queue", "tenant_queue__queue"))
    lost, unasked = dispatch.missing(names)
    ours: dict[str, list[int]] = {}
    for pk, _, _, rq_job_id, rq_queue, queue in names:
        if not rq_job_id:
            ours.setdefault(rq_queue_of(rq_queue, queue), []).append(pk)
    rows = overdue.filter(pk__in=lost).select_related("tenant_queue").defer(*UNREPAIRED).order_by("pk")
    return LostInRedis(list(rows) if lost else [], unasked, ours)


def told_apart(jobs: list[TenantJob]) -> tuple[list[TenantJob], list[tuple[TenantJob, str]]]:
    """Those that can be pushed, and those that cannot because somebody has spoilt their row, with what is wrong."""
    readable: list[TenantJob] = []
    unreadable: list[tuple[TenantJob, str]] = []
    for job in jobs:
        try:
            job.require_readable("options")
            readable.append(job)
        except UnreadableColumn as error:
            unreadable.append((job, str(error)))
    return readable, unreadable


def with_wrong_times() -> list[int]:
    """Primary keys of jobs with a time that our statements wrote and that has not come, or without one that they wrote.

    The clock was set back since, or somebody has taken the time away: one that is not there is before no other, so that
    nobody would ever miss the job. A lease ahead is let pass, as for a failover to a server whose clock is a little
    behind.
    """
    jobs, ahead = TenantJob.objects, ago(-app_settings.LEASE_TTL)
    is_ahead = Q(beat_at__gt=ahead) | Q(admitted_at__gt=ahead)
    found = [
        jobs.holding().filter(is_ahead | LACKING["beat_at"] | LACKING["admitted_at"]),
        jobs.reservations_to_begin().filter(Q(beat_at__gt=ahead) | LACKING["beat_at"]),
        jobs.ended().filter(ended_at__gt=ahead),
        jobs.ended().filter(LACKING["ended_at"]),
    ]
    holding, *others = (some.order_by().values_list("pk", flat=True) for some in found)
    return list(holding.union(*others))


def without_time() -> Iterator[tuple[str, QuerySet[TenantJob]]]:
    """The latter by the column that has no time, with what an index has of them."""
    jobs = TenantJob.objects
    yield "beat_at", jobs.holding().filter(LACKING["beat_at"])
    yield "beat_at", jobs.reservations_to_begin().filter(LACKING["beat_at"], state=State.WAITING)
    yield "admitted_at", jobs.holding().filter(LACKING["admitted_at"])
    yield "ended_at", jobs.ended().filter(LACKING["ended_at"])
    yield "run_after", chains.forgotten()


def in_circles() -> QuerySet[JobDependency]:
    """Open dependencies on jobs that were not stored before: no enqueue makes one, and every circle has one."""
    scheduled = TenantJob.objects.waiting_for_jobs()
    found: QuerySet[JobDependency] = JobDependency.objects.filter(
        is_open=True, after__gte=F("job"), job__in=scheduled, after__in=TenantJob.objects.not_ended()
    )
    return found


def due(seconds_ago: float = 0) -> TenantJobQuerySet:
    return TenantJob.objects.scheduled().filter(run_after__lte=ago(seconds_ago))


def due_in_turns(number: int) -> QuerySet[Any, Any]:
    """Primary keys of so many due jobs: of each tenant queue that which has been due for longest, then the second ones.

    No tenant has more of them than it could have alone, which saves the database from putting all others in order.
    """
    turn = Window(RowNumber(), partition_by=F("tenant_queue"), order_by=[F("run_after"), F("pk")])
    found = due().annotate(turn=turn).filter(turn__lte=number)
    return found.order_by("turn", "run_after").values_list("pk", flat=True)[:number]


def times_that_are_over() -> QuerySet[Any, tuple[str, int, int]]:
    """Tenant queues whose override or pause has come to its end: which of the two, which tenant queue, and its version.

    One question: in a healthy system neither finds anything.
    """
    overrides, pauses = (
        TenantQueue.objects.filter(**{f"{until}__lte": ago(0)})
        .annotate(until=Value(until))
        .values_list("until", "pk", "version")
        for until in (OVERRIDE, PAUSE)
    )
    return overrides.union(pauses, all=True)


def waits_that_are_over() -> tuple[bool, list[int]]:
    """Whether all jobs know of the ends of those that they run after, and the tenant queues with jobs that are expired.

    One question: in a healthy system neither finds anything.
    """
    untold = chains.untold().order_by().annotate(row=Value(0)).values_list("row")
    expired, with_slot = (
        jobs.order_by().annotate(row=F("tenant_queue")).values_list("row")
        for jobs in (TenantJob.objects.expired(), TenantJob.objects.expired_with_slot())
    )
    rows = [row for (row,) in untold.union(expired, with_slot)]
    return 0 not in rows, [row for row in rows if row]


def to_ask() -> TenantJobQuerySet:
    """Promoted jobs whose functions have not been asked yet what they do while their tenant is busy."""
    return TenantJob.objects.waiting().filter(asks=True)


Shares = list[tuple[int, int]]
"""Tenant queues, each with its share."""

ByQueue = dict[str, Shares]
"""By the RQ queue."""


class WithWork(NamedTuple):
    """Tenant queues with a waiting job, with their share, by the RQ queue of the job."""

    startable: ByQueue
    """There is a free slot for it."""
    beside: ByQueue
    """A job in another RQ queue has a slot of theirs."""


def with_work(lanes: Iterable[str]) -> WithWork:
    """Those `beside` are read from the jobs that hold slots, which are as many as workers.

    Args:
        lanes: the overflow queues in which jobs wait.
    """
    names = usable_queues()
    backlogs = ["", *(name for name in lanes if name in names)]
    asked = (with_waiting(name) for with_waiting in (_free_with_waiting, _waiting_beside) for name in backlogs)
    found = WithWork({}, {})
    for pk, queue, share, name, is_startable in next(asked).union(*asked, all=True):
        rq_queue = rq_queue_of(name, queue)
        if rq_queue in names:  # the doctor names others
            rows = found.startable if is_startable else found.beside
            rows.setdefault(rq_queue, []).append((pk, share))
    return found


def overflow_queues() -> QuerySet[Any, str]:
    """Where jobs wait. Mostly few queues, or none: each adds two parts to the question who has work."""
    names = TenantJob.objects.waiting().filter(IN_OVERFLOW_QUEUE).order_by().values_list("rq_queue", flat=True)
    return names.distinct()


def with_something_to_run() -> ByQueue:
    """Tenant queues that have a waiting job and a free slot for it, with their share, by the RQ queue of the job."""
    return with_work(overflow_queues()).startable


def _free_with_waiting(overflow_queue: str) -> QuerySet[Any, Any]:
    waiting = TenantJob.objects.waiting().filter(tenant_queue=OuterRef("pk"), rq_queue=overflow_queue)
    held = TenantJob.objects.holding().filter(tenant_queue=OuterRef(OuterRef("pk"))).exclude(key="")
    full = held.values("key").annotate(held=Count("pk")).filter(held__gte=F("tenant_queue__max_job_per_key"))
    below_cap = Q(max_job_per_key=None) | Exists(waiting.exclude(key__in=full.values("key")))
    free: QuerySet[TenantQueue] = TenantQueue.objects.filter(rates.allows(1), rests.is_over()).with_free(1)
    named = Value(overflow_queue, CharField()), Value(True, BooleanField())
    # Where few wait, or none, they are asked for their tenants, not each tenant for them.
    has_waiting = Exists(waiting.filter(IN_OVERFLOW_QUEUE) if overflow_queue else waiting)
    return free.filter(has_waiting, below_cap).order_by().values_list("pk", "queue", "share", *named)


def _waiting_beside(rq_queue: str) -> QuerySet[Any, Any]:
    waiting = TenantJob.objects.waiting().filter(tenant_queue=OuterRef("tenant_queue"), rq_queue=rq_queue)
    held = TenantJob.objects.holding().exclude(rq_queue=rq_queue).filter(Exists(waiting), tenant_queue__paused=False)
    row = ("tenant_queue", "tenant_queue__queue", "tenant_queue__share")
    named = Value(rq_queue, CharField()), Value(False, BooleanField())
    return held.order_by().values_list(*row, *named).distinct()


def stranded() -> Iterator[tuple[str, int]]:
    """Those of them whose turn would never come: RQ queue and tenant queue. A sweep offers them."""
    return ((rq_queue, pk) for rq_queue, rows in stranded_among(with_something_to_run()) for pk, _ in rows)


def stranded_among(found: ByQueue) -> Iterator[tuple[str, Shares]]:
    """The same by RQ queue, with their share; none in a queue where only others have something to run.

    Queues whose Redis cannot be asked are left out.
    """
    for rq_queue, rows, known in _answered(found, fair_order.known):
        yield rq_queue, [(pk, share) for pk, share in rows if pk not in known]


def forgotten_among(beside: ByQueue) -> Iterator[tuple[str, Shares]]:
    """Those of `WithWork.beside` of which the RQ queue does not know.

    Their slot goes from job to job in the queue that knows them, so that no sweep may ever find it free.
    """
    for rq_queue, rows, unknown in _answered(beside, fair_order.unknown):
        if unknown:
            yield rq_queue, [(pk, share) for pk, share in rows if pk in unknown]


def _answered(found: ByQueue, ask: Callable[[str, list[int]], Iterable[int]]) -> Iterator[tuple[str, Shares, set[int]]]:
    """What the order of each RQ queue says of these tenants; nothing where its Redis cannot be asked."""
    for rq_queue, rows in found.items():
        try:
            answer = set(ask(rq_queue, [pk for pk, _ in rows]))
        except queue_directory.OUT_OF_REACH as error:
            about_queue = logs.about_named(queue=rq_queue)
            logger.warning("the order of tenants in queue %s cannot be asked: %s", rq_queue, error, extra=about_queue)
        else:
            yield rq_queue, rows, answer


class UnderWay(NamedTuple):
    """What holds slots in one RQ queue."""

    tenants: list[tuple[int, int, float]]
    """Tenant queue, for how many jobs, and for how many seconds these have run."""
    plain: list[str]
    """The ids of plain RQ jobs that are admitted, and that no worker has begun."""
    shares: dict[int, int]
    """Of the same tenant queues."""


def under_way() -> dict[str, UnderWay]:
    """Of each queue of RQ, whether or not there is something. No row is believed more than `charges.LONGEST`."""
    held = TenantJob.objects.holding().jobs().select_related("tenant_queue").annotate(now=DatabaseNow())
    seconds: dict[tuple[str, int], list[float]] = {}
    found = {name: UnderWay([], [], {}) for name in usable_queues()}
    of_job = ("rq_queue", "rq_job_id", "state", "started_at")
    for job in held.only("tenant_queue__queue", "tenant_queue__share", *of_job):
        now: datetime = job.now  # type: ignore[attr-defined]  # annotated
        began = job.started_at if job.state == State.RUNNING else None
        taken = min(now - (began or now), charges.LONGEST).total_seconds()
        if job.rq_queue_name not in found:
            continue
        seconds.setdefault((job.rq_queue_name, job.tenant_queue_id), []).append(max(0.0, taken))
        found[job.rq_queue_name].shares[job.tenant_queue_id] = job.tenant_queue.share
        if job.rq_job_id and job.state == State.QUEUED:
            found[job.rq_queue_name].plain.append(job.rq_job_id)
    for (rq_queue, pk), taken_by in seconds.items():
        found[rq_queue].tenants.append((pk, len(taken_by), sum(taken_by)))
    return found


def in_overflow_queues(names: Iterable[str]) -> TenantJobQuerySet:
    """Jobs that wait in these."""
    return TenantJob.objects.waiting().filter(IN_OVERFLOW_QUEUE, rq_queue__in=names)


def wrong_counters() -> list[int]:
    """Primary keys of the tenant queues whose counter is wrong, each seen in one snapshot."""
    holding = TenantJob.objects.holding().filter(tenant_queue=OuterRef("pk"))
    counted = (
        TenantJob.objects.holding()
        .values("tenant_queue")
        .annotate(held=Count("pk"))
        .exclude(held=F("tenant_queue__current_job"))
    )
    idle = TenantQueue.objects.filter(~Exists(holding), current_job__gt=0)
    return [*counted.values_list("tenant_queue", flat=True), *idle.values_list("pk", flat=True)]


def without_queue() -> QuerySet[TenantQueue]:
    """Tenant queues with jobs that have not ended, of a queue that the project does not have any more."""
    jobs = TenantJob.objects.not_ended().filter(tenant_queue=OuterRef("pk"))
    known = usable_queues()
    rows: QuerySet[TenantQueue] = TenantQueue.objects.exclude(queue__in=known).filter(Exists(jobs))
    return rows


def _dead_here(jobs: TenantJobQuerySet) -> list[TenantJob]:
    here = jobs.filter(host=owners.this_host()).exclude(host="").select_related("tenant_queue").defer(*UNREPAIRED)
    return [job for job in here if owners.liveness(job) is Liveness.DEAD]
