"""Diagnosis: counters against rows against RQ. It finds what the sweep repairs, and says what it means."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from django.db import Error
from django.db.models import Model, QuerySet
from redis.exceptions import RedisError
from rq.timeouts import BaseTimeoutException

from tenant_slots import queue_directory
from tenant_slots.conf import app_settings
from tenant_slots.exceptions import UnusableQueue
from tenant_slots.models import REFUSED, KeptChange, TenantJob, TenantQueue
from tenant_slots.refusals import is_refusal
from tenant_slots.repair import findings as found
from tenant_slots.repair import liveness, numbers, servers, unreadable
from tenant_slots.repair.finding import REDIS, Finding, of_job, of_row

logger = logging.getLogger("tenant_slots")

INTERVALS_TOO_LATE = 3
"""A scheduled job is overdue after so many sweeps should have seen it; then nobody sweeps."""


Check = Callable[[], Iterator[Finding]]


def findings(*names: str) -> list[Finding]:
    """Everything that is wrong now, or what these of `CHECKS` find. Changes nothing and locks nothing."""
    return list(_once(finding for name in names or CHECKS for check in CHECKS[name] for finding in _found_by(check)))


def _once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Several checks may meet the Redis of a queue that cannot be asked."""
    unasked: set[str] = set()
    for finding in findings:
        if finding.kind != REDIS or finding.queue not in unasked:
            yield finding
        if finding.kind == REDIS:
            unasked.add(finding.queue)


def _wrong_counters() -> Iterator[Finding]:
    for row in TenantQueue.objects.filter(pk__in=found.wrong_counters()):
        held = row.jobs.holding().count()
        yield of_row("counter", row, f"current_job is {row.current_job}, but {held} jobs hold a slot")


def _dead_owners() -> Iterator[Finding]:
    for job in found.dead_owners_here():
        yield of_job("dead owner", job, f"its process {job.pid} on this host is gone, its slot is still taken")


def _dead_reservations() -> Iterator[Finding]:
    for job in found.dead_reservations_here():
        yield of_job("dead reservation", job, f"its process {job.pid} on this host is gone, so it will never begin")


def _stale_owners() -> Iterator[Finding]:
    for job in _named(TenantJob.objects.stale(), "worker", "beat_at"):
        meaning = f"worker {job.worker} has sent no heartbeat for {app_settings.LEASE_TTL} s, since {job.beat_at}"
        yield of_job("stale owner", job, meaning)


def _unasked() -> Iterator[Finding]:
    """Queues whose Redis cannot be asked, whether or not there are jobs: nothing is known of what is in it."""
    for queue, error in queue_directory.unasked().items():
        yield Finding(REDIS, "", queue, "", f"its Redis cannot be asked: {error}")


def _lost_in_redis() -> Iterator[Finding]:
    lost = found.lost_in_redis()
    for job in lost.jobs:
        yield of_job("lost in Redis", job, "it holds a slot, but is in no RQ queue and no worker has begun it")
    for queue, error in lost.unasked.items():
        if isinstance(error, (RedisError, UnusableQueue)):
            yield Finding(REDIS, "", queue, "", f"its Redis cannot be asked for its queued jobs: {error}")


def _stranded() -> Iterator[Finding]:
    for rq_queue, pk in found.stranded():
        row = TenantQueue.objects.filter(pk=pk).first()
        if row is None:
            continue  # deleted while Redis was asked
        waiting = row.jobs.waiting().count()
        meaning = f"{waiting} jobs wait although {row.free} of {row.max_job} slots are free, and no worker of queue"
        yield of_row("stranded", row, f"{meaning} {rq_queue} would come to them")


def _overdue() -> Iterator[Finding]:
    late = INTERVALS_TOO_LATE * app_settings.SWEEP_INTERVAL
    for job in _named(found.due(seconds_ago=late), "run_after"):
        why = "no worker of ours or slots_sweep seems to run, or the database refuses it: see the log"
        yield of_job("overdue", job, f"it was due at {job.run_after}; {why}")


def _refused() -> Iterator[Finding]:
    """Jobs that are put off again and again, as long as the database does not let them be admitted."""
    put_off = TenantJob.objects.scheduled().filter(error__startswith=REFUSED, run_after__isnull=False)
    for job in _named(put_off, "error"):
        yield of_job("refused", job, job.error)


def _named(jobs: QuerySet[TenantJob], *columns: str) -> Iterator[TenantJob]:
    """Without their arguments and results: of jobs that nobody sees to there may be many, and large ones."""
    rows = jobs.select_related("tenant_queue").only("uuid", *columns, "tenant_queue__tenant", "tenant_queue__queue")
    yield from rows.iterator()


def _unreadable() -> Iterator[Finding]:
    for job, columns in unreadable.jobs():
        yield of_job("unreadable", job, _not_ours(columns))
    for row, columns in unreadable.tenant_queues():
        yield of_row("unreadable", row, _not_ours(columns))
    for other, columns in unreadable.elsewhere():
        yield _of_other("unreadable", other, f"row {other.pk} of {other._meta.db_table}: {_not_ours(columns)}")


def _of_other(kind: str, row: Model, meaning: str) -> Finding:
    if isinstance(row, KeptChange):
        return of_row(kind, row.tenant_queue, meaning)
    return Finding(kind, "", getattr(row, "queue", ""), "", meaning)


def _not_ours(columns: list[str]) -> str:
    return f"somebody has written values there that cannot be read: {', '.join(columns)}; put them right by SQL"


def _without_time() -> Iterator[Finding]:
    for column, jobs in found.without_time():
        for job in _named(jobs, "state"):
            meaning = f"it is {job.state}, and somebody has taken away its {column}; a sweep makes that now"
            yield of_job("missing time", job, meaning)


def _in_circles() -> Iterator[Finding]:
    """Where one waits for the other, no end comes that they could be told of."""
    for edge in found.in_circles().select_related("after", "job__tenant_queue"):
        other = f"job {edge.after.uuid}, which was not stored before it"
        yield of_job("circle", edge.job, f"somebody has it run after {other}; if that waits for it, cancel one of them")


def _at_the_end() -> Iterator[Finding]:
    for job, columns in numbers.odd_jobs():
        yield of_job("end of range", job, _goes_no_further(job, columns))
    for row, columns in numbers.odd_tenant_queues():
        yield of_row("end of range", row, _goes_no_further(row, columns))


def _goes_no_further(row: TenantJob | TenantQueue, columns: list[str]) -> str:
    values = ", ".join(f"{name} {getattr(row, name)}" for name in columns)
    return f"somebody has written numbers there from which nobody can count on: {values}; put them right by SQL"


def _unknown_queues() -> Iterator[Finding]:
    for row in found.without_queue():
        meaning = "RQ_QUEUES does not have its queue, so its jobs cannot run; add the queue there, or cancel the jobs"
        yield of_row("unknown queue", row, meaning)


def _evicting() -> Iterator[Finding]:
    for queue, policy in servers.evicting():
        meaning = f"its Redis deletes keys when its memory is full, jobs and workers of RQ among them: {policy}"
        yield Finding("eviction", "", queue, "", f"{meaning}; set maxmemory-policy to {servers.NO_EVICTION}")


def _refusing_writes() -> Iterator[Finding]:
    for queue, problem in servers.refusing_writes():
        yield Finding("no writes", "", queue, "", f"its Redis takes no writes, so that jobs wait: {problem}")


def _found_by(check: Check) -> Iterator[Finding]:
    """What it finds, or that it has failed, by a row that somebody has spoilt perhaps: the others are checked too.

    What a database says in further lines is the row.
    """
    try:
        yield from check()
    except Exception as error:
        is_of_the_database = isinstance(error, Error) and not is_refusal(error)
        if is_of_the_database or isinstance(error, BaseTimeoutException):
            raise
        name = check.__name__.strip("_").replace("_", " ")
        logger.exception("the check of %s has failed", name)
        yield Finding("check failed", "", "", "", f"{name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")


CHECKS: dict[str, tuple[Check, ...]] = {
    "counters": (_wrong_counters,),
    "owners": (_dead_owners, _dead_reservations, _stale_owners),
    "redis": (_unasked, _refusing_writes, _lost_in_redis, _evicting),
    "backlog": (_unasked, _stranded, _overdue, _refused),
    "rows": (_unreadable, _at_the_end, _without_time, _in_circles),
    "queues": (_unknown_queues,),
    "workers": (liveness.without_worker, liveness.queued_too_long),
    "sweeps": (liveness.without_sweep,),
    "snapshots": (liveness.old_snapshots,),
}
"""By the names that ``slots_doctor --check`` takes."""
