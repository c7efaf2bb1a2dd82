"""Repair: makes good whatever a crash, a lost Redis or an operator left behind.

Workers run it every ``SWEEP_INTERVAL`` seconds, one at a time; ``manage.py slots_sweep`` does so where all workers are
stock ones. Each step first asks without locking, then locks one tenant at a time where there is something to do. Every
change is conditional, so a step that meets a finishing job, or another sweep, changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from django.db import Error, IntegrityError, OperationalError, connections, transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet
from redis.exceptions import RedisError
from rq.timeouts import BaseTimeoutException

from tenant_slots import dispatch, holders, line, recovery, signals, slots, tenants
from tenant_slots.conf import app_settings
from tenant_slots.exceptions import StaleVersion
from tenant_slots.holders import Liveness
from tenant_slots.leases import time_limit
from tenant_slots.models import (
    HOLD,
    State,
    SweepClaim,
    TenantJob,
    TenantJobQuerySet,
    TenantQueue,
)
from tenant_slots.time_buckets import ago

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")

LOCK_TIMEOUT_SECONDS = 0.2
"""How long one tenant's locked row may hold up a sweep."""

CLAIMED_SHARE = 0.8
"""Of the interval, how long a claim lasts: a little less, so that it is free when the next sweep is due."""

ABSENCE_SECONDS = 90
"""Seconds for which RQ must know nothing of a stock worker: a FLUSHALL takes its record, and it beats every 30."""

ROWS_PER_STEP = 1000
"""Most rows that one step changes: a sweep stays short, the rest follows in the next one."""

SECONDS_TO_PROMOTE = 1
"""After which a sweep leaves what is due to the next one."""

SECONDS_TO_ASK = 2
"""For which a sweep calls the project's `on_busy`: a worker that sweeps does not beat for its own job meanwhile."""

SWEEP = "sweep"
"""Who changed a limit, as receivers of ``limit_changed`` are told."""


@dataclass
class Report:
    """What one sweep did; the numbers count jobs, but `put_back`, `resumed` and `repaired` tenant queues."""

    put_back: int = 0
    resumed: int = 0
    reclaimed: int = 0
    repushed: int = 0
    promoted: int = 0
    admitted: int = 0
    repaired: int = 0
    pruned: int = 0
    left: list[str] = field(default_factory=list)
    """Silent holders on this host that could not be killed, one sentence each."""

    def __bool__(self) -> bool:
        return any(asdict(self).values())


class SweepTimeout(BaseTimeoutException):
    """The database did not answer in time; its session may be dead without knowing it."""


class Contact:
    """Since when this process has had unbroken contact with the database.

    After an outage every lease looks expired, because nobody could beat. So a holder is called silent only by a sweeper
    that could have seen its beats for the whole time.
    """

    def __init__(self) -> None:
        self._since = self._last = time.monotonic()
        self._absent: dict[tuple[int, int], float] = {}

    def absent_for(self, job: TenantJob) -> float:
        """Seconds since this process first found that RQ does not know the job's worker."""
        now = time.monotonic()
        self._absent = {key: since for key, since in self._absent.items() if now - since < 3600}
        return now - self._absent.setdefault((job.pk, job.attempt), now)

    def present(self, job: TenantJob) -> None:
        self._absent.pop((job.pk, job.attempt), None)

    def kept(self) -> None:
        """The database answered. A longer pause than the lease allows proves nothing about the time between."""
        now = time.monotonic()
        if now - self._last > max(app_settings.LEASE_TTL / 2, 2 * app_settings.SWEEP_INTERVAL):
            self._since = now
        self._last = now

    def broken(self) -> None:
        self._since = self._last = time.monotonic()

    def covers_a_lease(self) -> bool:
        return time.monotonic() - self._since >= app_settings.LEASE_TTL


class Sweeper:
    """One process' part in sweeping."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.contact = Contact()
        self._due = 0.0

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def sweep_if_due(self) -> Report | None:
        """Sweep unless another process does, or has lately. Never raises: a worker must go on."""
        if not self.is_due:
            return None
        self._due = time.monotonic() + app_settings.SWEEP_INTERVAL
        try:
            with time_limit(app_settings.LEASE_TTL / 2, SweepTimeout):
                return self.sweep()
        except (Error, SweepTimeout) as error:
            self.contact.broken()
            connections[app_settings.DATABASE].close()
            logger.warning("the sweep was given up, the next one goes on: %s", error)
        except Exception:
            logger.exception("the sweep failed")
        return None

    def sweep(self) -> Report | None:
        """The local part, then the rest if no other process has claimed it. None when both were claimed."""
        reports = []
        for claim, steps in ((f"host {holders.this_host()}", LOCAL_STEPS), ("everywhere", STEPS)):
            if _claim(claim, self.name):
                reports.append(self.run(steps))
                _done(claim, self.name)
        self.contact.kept()
        return _sum(reports) if reports else None

    def run(self, steps: Iterable[Step]) -> Report:
        """These steps now, whoever else sweeps."""
        report = Report()
        for step in steps:
            try:
                step(report, self.contact)
            except RedisError as error:
                logger.warning("the sweep cannot ask Redis, the rest of it goes on: %s", error)
        if report:
            logger.info("sweep: %s", ", ".join(f"{name} {value}" for name, value in asdict(report).items() if value))
            signals.swept.send_robust(sender=TenantQueue, report=report)
        return report


def put_back_overrides(report: Report, contact: Contact) -> None:
    """Limits whose time is over. Saving one admits what waits; one that was changed meanwhile is left."""
    over = TenantQueue.objects.filter(override_until__lte=ago(0)).order_by("override_until")
    for row in over[:ROWS_PER_STEP]:
        with suppress(StaleVersion):
            end = partial(tenants.end_override, row, by=SWEEP, reason="its time is over", version=row.version)
            report.put_back += _unless_locked(end) is not None


def resume_paused(report: Report, contact: Contact) -> None:
    """Pauses whose time is over."""
    over = TenantQueue.objects.filter(resume_at__lte=ago(0)).order_by("resume_at")
    for row in over[:ROWS_PER_STEP]:
        with suppress(StaleVersion):
            resume = partial(tenants.resume, row, by=SWEEP, reason="its time is over", version=row.version)
            report.resumed += _unless_locked(resume) is not None


def reclaim_local(report: Report, contact: Contact) -> None:
    """Holders of this host whose process is gone: at once."""
    for job in dead_here():
        report.reclaimed += bool(_unless_locked(partial(recovery.reclaim_if_dead, job)))


def dead_here() -> list[TenantJob]:
    here = TenantJob.objects.running().filter(host=holders.this_host()).exclude(host="")
    return [job for job in here.select_related("tenant_queue") if holders.liveness(job) is Liveness.DEAD]


def reclaim_silent(report: Report, contact: Contact) -> None:
    """Holders that have not beaten for a lease, and stock workers' jobs that RQ has given up."""
    for job in silent():
        if not job.beats:
            if _may_be_judged(job, contact):
                report.reclaimed += bool(_unless_locked(partial(recovery.reclaim_if_dead, job)))
        elif contact.covers_a_lease():
            report.reclaimed += bool(_unless_locked(partial(_reclaim_silent, job, report)))


def silent() -> TenantJobQuerySet:
    return TenantJob.objects.running().filter(beat_at__lt=ago(app_settings.LEASE_TTL)).select_related("tenant_queue")


def end_abandoned_holds(report: Report, contact: Contact) -> None:
    """Holds whose block has not begun, and never will: their process is gone, or has not beaten for a lease."""
    silent = Q(beat_at__lt=ago(app_settings.LEASE_TTL))
    holds: QuerySet[Any] = TenantJob.objects.holds_to_begin().select_related("tenant_queue").annotate(is_silent=silent)
    for job in holds:
        if holders.liveness(job) is Liveness.DEAD:
            reason = recovery.story(job)
        elif job.is_silent and contact.covers_a_lease():
            reason = _silence_of(job)
        else:
            continue
        report.reclaimed += bool(_unless_locked(partial(recovery.end_hold, job, reason)))


def dead_holds_here() -> list[TenantJob]:
    here = TenantJob.objects.holds_to_begin().filter(host=holders.this_host()).exclude(host="")
    return [job for job in here.select_related("tenant_queue") if holders.liveness(job) is Liveness.DEAD]


def repush(report: Report, contact: Contact) -> None:
    """Admitted jobs that Redis does not have. Pushing one that a worker has just taken is harmless: it starts once."""
    for job in lost_in_redis()[:ROWS_PER_STEP]:
        if dispatch.push_again(job):
            report.repushed += 1
        else:
            fail = partial(recovery.end_lost_run, job, "RQ lost it with its arguments", state=State.FAILED)
            report.reclaimed += bool(_unless_locked(fail))


def lost_in_redis() -> list[TenantJob]:
    """Raises RedisError when Redis cannot be asked. Looks at names first: usually nothing is lost."""
    overdue = TenantJob.objects.queued().filter(admitted_at__lt=ago(app_settings.SWEEP_INTERVAL)).exclude(task=HOLD)
    names = overdue.values_list("pk", "uuid", "attempt", "rq_job_id", "rq_queue", "tenant_queue__queue")
    lost = dispatch.missing(names)
    return list(overdue.filter(pk__in=lost).select_related("tenant_queue").order_by("pk")) if lost else []


def promote(report: Report, contact: Contact) -> None:
    """Scheduled jobs whose time has come. Tenants with very many of them do not hold up those of the others."""
    began = time.monotonic()
    served: list[int] = []
    while True:
        some = due().exclude(tenant_queue__in=served).order_by("run_after")
        found = list(some.only("tenant_queue_id", "task", "uuid", "attempt")[:ROWS_PER_STEP])
        _promote(report, found, ask_until=began + SECONDS_TO_ASK)
        if len(found) < ROWS_PER_STEP or time.monotonic() > began + SECONDS_TO_PROMOTE:
            return
        served += [row for row, number in Counter(map(_row_of, found)).items() if number > ROWS_PER_STEP / 10]


def _promote(report: Report, found: list[TenantJob], ask_until: float) -> None:
    if found:
        # Those that are still due: another sweep may have promoted one, and it may have put itself off again.
        with _unlocked(due().filter(pk__in=[job.pk for job in found])) as jobs:
            report.promoted += jobs.update(state=State.WAITING)
    for row, own in groupby(sorted(found, key=_row_of), _row_of):
        _unless_locked(partial(line.admit, row))
        for job in _unless_locked(partial(line.turn_away, row, list(own), ask_until)) or ():
            if job.rq_job_id:
                dispatch.remove(job)  # it has put itself off in RQ, which would deliver it again


def _row_of(job: TenantJob) -> int:
    return job.tenant_queue_id


def due(seconds_ago: float = 0) -> TenantJobQuerySet:
    return TenantJob.objects.scheduled().filter(run_after__lte=ago(seconds_ago))


def admit_stranded(report: Report, contact: Contact) -> None:
    """Waiting jobs beside free slots: an admission that was cut off, or a limit that was changed by SQL."""
    for row in stranded()[:ROWS_PER_STEP]:
        admitted = _unless_locked(partial(slots.admit, row.pk)) or []
        line.push(admitted)
        report.admitted += len(admitted)


def stranded() -> QuerySet[TenantQueue]:
    """Tenant queues where a job waits that could run: one without a key, or whose key is below the cap."""
    waiting = TenantJob.objects.waiting().filter(tenant_queue=OuterRef("pk"))
    held = TenantJob.objects.holding().filter(tenant_queue=OuterRef(OuterRef("pk"))).exclude(key="")
    full = held.values("key").annotate(held=Count("pk")).filter(held__gte=F("tenant_queue__max_job_per_key"))
    below_cap = Q(max_job_per_key=None) | Exists(waiting.exclude(key__in=full.values("key")))
    found: QuerySet[TenantQueue] = TenantQueue.objects.filter(
        Exists(waiting), below_cap, paused=False, current_job__lt=F("max_job")
    )
    return found


def repair_counters(report: Report, contact: Contact) -> None:
    """Counters that differ from the rows they count. Only SQL from outside, or a bug, does that."""
    for pk in wrong_counters()[:ROWS_PER_STEP]:
        report.repaired += bool(_unless_locked(partial(_repair_counter, pk)))


def _repair_counter(pk: int) -> bool:
    with slots.locked(pk) as row:
        held = row.jobs.holding().count()
        if row.current_job == held:
            return False
        TenantQueue.objects.filter(pk=pk).update(current_job=held)
    logger.error("%s counted %s jobs in slots but held %s; repaired", row, row.current_job, held)
    line.admit(pk)
    return True


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


def prune(report: Report, contact: Contact) -> None:
    """Ended jobs older than ``RETENTION``, and the claims of hosts that are gone."""
    old = ago(app_settings.RETENTION)
    ended = TenantJob.objects.ended().filter(ended_at__lt=old).order_by("ended_at")
    pks = list(ended.values_list("pk", flat=True)[:ROWS_PER_STEP])
    if pks:
        with _unlocked(TenantJob.objects.ended().filter(pk__in=pks)) as jobs:
            report.pruned, _ = jobs.delete()
    SweepClaim.objects.filter(until__lt=old).delete()


Step = Callable[[Report, Contact], None]
LOCAL_STEPS: tuple[Step, ...] = (reclaim_local, end_abandoned_holds)
STEPS: tuple[Step, ...] = (
    put_back_overrides,
    resume_paused,
    reclaim_silent,
    repush,
    promote,
    admit_stranded,
    repair_counters,
    prune,
)


@contextmanager
def _unlocked(jobs: QuerySet[TenantJob]) -> Iterator[QuerySet[TenantJob]]:
    """Those of the jobs that no other transaction has locked, to change them in this one.

    Somebody's open transaction may have canceled one of them; the next sweep comes to it, the others do not wait.
    """
    with transaction.atomic(using=app_settings.DATABASE):
        pks = list(jobs.select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True))
        yield TenantJob.objects.filter(pk__in=pks)


def _unless_locked(change: Callable[[], T]) -> T | None:
    """One tenant's change; None when somebody holds its row. The next sweep comes to it, the others do not wait.

    None too when the row was deleted since the sweep read it.
    """
    token = slots.patience.set(LOCK_TIMEOUT_SECONDS)
    try:
        return change()
    except OperationalError as error:
        if not slots.is_locked_out(error):
            raise
        logger.warning("the sweep leaves out one tenant, whose row is locked: %s", error)
        return None
    except TenantQueue.DoesNotExist:
        return None
    finally:
        slots.patience.reset(token)


def _may_be_judged(job: TenantJob, contact: Contact) -> bool:
    """Whether to believe what RQ says of a stock worker: no record proves nothing before it has been gone for long."""
    if dispatch.has_worker_record(job):
        contact.present(job)
        return True
    return holders.liveness(job) is Liveness.DEAD or contact.absent_for(job) >= ABSENCE_SECONDS


def _reclaim_silent(job: TenantJob, report: Report) -> bool:
    """Kill first, then reclaim: a silent process on this host may wake up and go on."""
    if not recovery.is_out_of_the_way(job):
        report.left.append(f"job {job.uuid}: process {job.pid} is alive, silent, and may not be killed")
        return False
    return recovery.end_lost_run(job, _silence_of(job))


def _silence_of(job: TenantJob) -> str:
    return f"worker {job.worker} was silent for {app_settings.LEASE_TTL} s"


def _claim(name: str, sweeper: str) -> bool:
    """Become the only sweeper of this kind. The claim of one that died is free again for the next sweep."""
    until = slots.in_seconds(app_settings.SWEEP_INTERVAL * CLAIMED_SHARE)
    free = SweepClaim.objects.filter(name=name, until__lte=ago(0))
    if free.update(sweeper=sweeper, until=until):
        return True
    if SweepClaim.objects.filter(name=name).exists():
        return False
    try:
        with transaction.atomic(using=app_settings.DATABASE):
            SweepClaim.objects.create(name=name, sweeper=sweeper, until=until)
    except IntegrityError:
        return False
    return True


def _done(name: str, sweeper: str) -> None:
    """Hand the claim back so that the next sweep comes after a whole interval."""
    claimed = SweepClaim.objects.filter(name=name, sweeper=sweeper)
    claimed.update(until=slots.in_seconds(app_settings.SWEEP_INTERVAL * CLAIMED_SHARE))


def _sum(reports: list[Report]) -> Report:
    total = Report()
    for report in reports:
        for name, value in vars(report).items():
            setattr(total, name, getattr(total, name) + value)
    return total


def run_now(sweeper: str) -> Report:
    """One whole sweep, whoever else sweeps; for the command and the doctor."""
    one = Sweeper(sweeper)
    return _sum([one.run(LOCAL_STEPS), one.run(STEPS)])
