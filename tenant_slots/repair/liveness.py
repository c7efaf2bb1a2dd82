"""Whether anybody is there: workers for the jobs that wait, sweeps, and a database that can clear away what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from socket import gethostname

from django.db import connections

from tenant_slots import fleet
from tenant_slots.conf import app_settings, rq_queues
from tenant_slots.db.clock import ago
from tenant_slots.fleet import Fleet
from tenant_slots.models import TenantJob, TenantJobQuerySet
from tenant_slots.repair.finding import REDIS, Finding, of_job
from tenant_slots.stats import lanes, sweeps

MINUTES_QUEUED = 5
"""A job is admitted for a worker that is free or about to be; while all are busy, it waits for longer."""

MINUTES_PINNED = 10
"""As long as a report may take. What a look for a backlog's head passes over is kept for as long as such a snapshot."""

MOST_NAMED = 100
"""Jobs that are named of those that are queued for too long; what is wrong with one is wrong with all of them."""

# A worker of autovacuum keeps nothing from being removed, though it has a snapshot.
_SNAPSHOTS = """
    SELECT pid, name, usename, EXTRACT(EPOCH FROM clock_timestamp() - since)::int
    FROM (
        SELECT pid, application_name AS name, usename, xact_start AS since FROM pg_stat_activity
        WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
        AND backend_type <> 'autovacuum worker'
        UNION ALL
        SELECT NULL, gid, owner, prepared FROM pg_prepared_xacts WHERE database = current_database()
    ) AS transactions
    WHERE since < clock_timestamp() - make_interval(mins => %s)
    ORDER BY since
"""
"""The process, its program or the name of a transaction that was prepared and has no process, the user, and seconds."""


def without_worker() -> Iterator[Finding]:
    """Queues with jobs that may start and nobody who takes them."""
    known = fleet.known()
    for queue in fleet.without_worker(known, lanes.with_jobs()):
        alive = sum(member.is_alive for member in known.of(queue))
        there = f"of its {alive} workers none takes another job" if alive else "no worker listens"
        yield Finding("no worker", "", queue, "", f"jobs wait in this queue of RQ, and {there}")
    for queue in known.unasked:
        why = "its settings in RQ_QUEUES lead to no Redis" if queue in known.unusable else "Redis does not answer"
        yield Finding(REDIS, "", queue, "", f"{why}, so that nothing is known of its workers")


def without_worker_here() -> Iterator[Finding]:
    """Nobody on this host, which may be a container, says that it takes jobs. Nothing while a Redis does not answer:
    a worker that is started anew would not reach it either, and its job would be lost to that. On a queue whose
    settings lead to no Redis there is no worker, so that it hides none.
    """
    known, host = fleet.known(), gethostname()
    is_somebody_away = set(known.unasked) - set(known.unusable)
    if not is_somebody_away and not any(member.is_alive for member in known.members if member.host == host):
        yield Finding("no worker here", "", "", "", f"no worker on host {host} has lately said that it lives")


def queued_too_long() -> Iterator[Finding]:
    """Jobs that were admitted for a worker which has not come."""
    if not admitted_long_ago().exists():
        return
    queued = left_by_idle(admitted_long_ago(), fleet.known())
    for job in queued.select_related("tenant_queue").order_by("pk")[:MOST_NAMED]:
        meaning = f"it has had a slot since {job.admitted_at}, and no worker of queue {job.rq_queue_name} has begun it"
        yield of_job("queued too long", job, meaning)


def admitted_long_ago() -> TenantJobQuerySet:
    return TenantJob.objects.queued().jobs().filter(admitted_at__lt=ago(60 * MINUTES_QUEUED))


def left_by_idle(queued: TenantJobQuerySet, known: Fleet) -> TenantJobQuerySet:
    """Those of them that a worker could have begun: while all of a queue are busy, its next job waits for one."""
    busy = [name for name in rq_queues() if known.is_busy(name)]
    left: TenantJobQuerySet = queued.exclude(rq_queue__in=busy).exclude(rq_queue="", tenant_queue__queue__in=busy)
    return left


def without_sweep() -> Iterator[Finding]:
    """Nobody sweeps any more; or nobody ever has, though there are jobs."""
    overdue = sweeps.seconds_overdue()
    start = "start a worker with a class of tenant_slots, or slots_sweep --loop"
    if overdue:
        since = f"nobody has swept for {overdue:.0f} s, and it is due every {app_settings.SWEEP_INTERVAL:g} s"
        yield Finding("no sweep", "", "", "", f"{since}; {start}")
    elif overdue is not None and TenantJob.objects.not_ended().exists():
        yield Finding("no sweep", "", "", "", f"there are jobs, and nobody has ever swept; {start}")


def oldest_snapshot() -> float | None:
    """For how many seconds the oldest transaction has kept what others have deleted; None where there is none, or the
    database is not PostgreSQL.
    """
    connection = connections[app_settings.DATABASE]
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute(_SNAPSHOTS, [0])
        found = cursor.fetchone()
    return None if found is None else float(found[3])


def old_snapshots() -> Iterator[Finding]:
    """Transactions of PostgreSQL that keep what all others have deleted since, as far as this role may see them."""
    connection = connections[app_settings.DATABASE]
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute(_SNAPSHOTS, [MINUTES_PINNED])
        found = cursor.fetchall()
    for pid, name, user, seconds in found:
        meaning = "nothing deleted since can be cleared away, and backlogs are read more slowly by the hour; end it"
        yield Finding("old snapshot", "", "", "", f"{_whose(pid, name, user)} open for {seconds} s: {meaning}")


def _whose(pid: int | None, name: str, user: str) -> str:
    if pid is None:
        return f"the prepared transaction {name!r} of {user} has been"
    return f"process {pid} of {user}" + (f" ({name})" if name else "") + " has kept a transaction"
