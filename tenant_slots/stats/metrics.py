"""What metrics are made of, as far as the database knows it: five or six queries, however many jobs there are.

Counters are the sums of `QueueTotal`, which grow once a minute. What is now is asked now. A reservation has a slot and
a place in a backlog, but no worker runs it: it is left out wherever jobs are counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.db.models import BooleanField, Count, DurationField, ExpressionWrapper, F, Max, Value

from tenant_slots import rates, rests
from tenant_slots.db.clock import DatabaseNow, InCalendar
from tenant_slots.models import (
    ANY,
    ANY_OF_ALL,
    EVERYWHERE,
    READY_AT,
    Kind,
    QueueTotal,
    State,
    SweepClaim,
    TenantJob,
    TenantJobQuerySet,
    TenantQueue,
    rq_queue_of,
)
from tenant_slots.models.queue_minute import ALL_QUEUES
from tenant_slots.stats.expressions import in_seconds, jobs_of_row, oldest_wait
from tenant_slots.stats.key_limits import jobs_below_key_limit, lanes_apart


class HeldBackBy(StrEnum):
    """What keeps a waiting job from being started by a free worker; the first that applies."""

    PAUSE = "pause"
    REST = "rest"
    KEY = "key"
    LIMIT = "limit"
    RATE = "rate"


@dataclass
class Figures:
    """Of one queue of RQ, or of one tenant queue."""

    jobs: Counter[str] = field(default_factory=Counter)
    """By `State`, of those that have not ended."""
    runnable: int = 0
    """Waiting jobs that could start now, if workers were free."""
    held_back: Counter[HeldBackBy] = field(default_factory=Counter)
    """The other waiting jobs."""
    capacity: int = 0
    in_use: int = 0
    oldest_wait: float | None = None


@dataclass
class TenantFigures(Figures):
    tenant: str = ""
    queue: str = ""


@dataclass(frozen=True)
class Sweeps:
    count: int
    reclaimed: int
    seconds_ago: float | None


@dataclass(frozen=True)
class Metrics:
    queues: dict[str, Figures]
    tenants: list[TenantFigures]
    """Those that were asked for."""
    totals: dict[str, QueueTotal]
    sweeps: Sweeps


LONGEST_WAITING = 1000
"""Jobs that are looked at for the oldest one of each queue, before all tenant queues of a queue are."""

Place = tuple[int, str]
"""A tenant queue, and the queue of RQ that its jobs overflow to, if they do."""


def collected(tenants: int | Iterable[str] = 0) -> Metrics:
    """All of it, of as many tenant queues with the largest backlogs, or of these tenants' ones."""
    rows, queues = _counted()
    for queue, seconds in _oldest_waits(rows).items():
        queues[queue].oldest_wait = seconds
    totals = {total.queue: total for total in QueueTotal.objects.exclude(queue=ALL_QUEUES)}
    return Metrics(dict(queues), _chosen((row.figures for row in rows.values()), tenants), totals, _sweeps())


def by_queue() -> dict[str, Figures]:
    """What is now, without the oldest wait: two queries."""
    _, queues = _counted()
    return dict(queues)


class _Row:
    """A tenant queue while its backlog is told apart."""

    def __init__(self, tenant: str, queue: str, values: dict[str, Any]) -> None:
        is_limited = bool(tenant)
        self.figures = TenantFigures(
            tenant=tenant,
            queue=queue,
            capacity=values["max_job"] if is_limited and not values["paused"] else 0,
            in_use=values["current_job"] if is_limited else 0,
        )
        self._free = max(0, values["max_job"] - values["current_job"])
        self._tokens = values["tokens"]
        self._closed = HeldBackBy.PAUSE if values["paused"] else None if values["rested"] else HeldBackBy.REST
        self._below_key_limit = values["below_key_limit"]
        self._below_in_lane = values["below_in_lane"]

    def spread(self, rq_queue: str, counts: Counter[str], of_queue: Figures) -> None:
        """Add its jobs of one queue of RQ. What could run is shared out among these queues as they come."""
        runnable, held_back = self._told_apart(counts[State.WAITING], self._below_in_lane.get(rq_queue))
        for figures in (self.figures, of_queue):
            figures.jobs.update(counts)
            figures.runnable += runnable
            figures.held_back.update(held_back)

    def _told_apart(self, waiting: int, below_in_lane: int | None) -> tuple[int, Counter[HeldBackBy]]:
        if self._closed:
            return 0, Counter({self._closed: waiting})
        below_key_limit = _at_most(self._below_key_limit, _at_most(below_in_lane, waiting))
        fit = min(below_key_limit, self._free)
        allowed = _at_most(self._tokens, fit)
        self._below_key_limit = _less(self._below_key_limit, below_key_limit)
        self._free -= allowed
        self._tokens = _less(self._tokens, allowed)
        by_key, by_limit, by_rate = waiting - below_key_limit, below_key_limit - fit, fit - allowed
        return allowed, Counter({HeldBackBy.KEY: by_key, HeldBackBy.LIMIT: by_limit, HeldBackBy.RATE: by_rate})


def _at_most(bound: int | None, jobs: int) -> int:
    return jobs if bound is None else min(bound, jobs)


def _less(bound: int | None, jobs: int) -> int | None:
    return None if bound is None else bound - jobs


def _counted() -> tuple[dict[int, _Row], defaultdict[str, Figures]]:
    jobs = _jobs()
    rows = _rows(lanes_apart(rq_queue for _, rq_queue in jobs))
    return rows, _by_queue(rows, jobs)


def _by_queue(rows: Mapping[int, _Row], jobs: Mapping[Place, Counter[str]]) -> defaultdict[str, Figures]:
    """Counted in the rows too."""
    queues: defaultdict[str, Figures] = defaultdict(Figures)
    for row in rows.values():
        of_queue = queues[row.figures.queue]
        of_queue.capacity += row.figures.capacity
        of_queue.in_use += row.figures.in_use
    for (pk, rq_queue), counts in jobs.items():
        if pk in rows:
            rows[pk].spread(rq_queue, counts, queues[rq_queue_of(rq_queue, rows[pk].figures.queue)])
    return queues


def _rows(lanes: list[str]) -> dict[int, _Row]:
    rested = ExpressionWrapper(rests.is_over(), output_field=BooleanField())
    rows = TenantQueue.objects.order_by().annotate(rested=rested, tokens=rates.left(), below=jobs_below_key_limit())
    names = ("max_job", "current_job", "paused", "rested", "tokens", "below_key_limit")
    columns = ("pk", "tenant", "queue", *names[:-1], "below", *map(jobs_below_key_limit, lanes))
    found = {}
    for pk, tenant, queue, *rest in rows.values_list(*columns):
        below_in_lane = dict(zip(lanes, rest[len(names) :], strict=True))
        found[pk] = _Row(tenant, queue, {**dict(zip(names, rest, strict=False)), "below_in_lane": below_in_lane})
    return found


def _jobs() -> dict[Place, Counter[str]]:
    """How many by state, all of one moment. Waiting ones from an index that does not know what a reservation is: these
    are subtracted.
    """
    found: defaultdict[Place, Counter[str]] = defaultdict(Counter)
    jobs = TenantJob.objects.order_by()
    reservations = jobs.not_ended().filter(kind=Kind.RESERVATION)
    counts = (
        _counts(jobs.waiting(), state=Value(State.WAITING)),
        _counts(jobs.scheduled(), rq_queue=Value(""), state=Value(State.SCHEDULED)),
        _counts(jobs.holding()),
        _counts(reservations, sign=-1),
    )
    for pk, rq_queue, state, count in counts[0].union(*counts[1:], all=True):
        found[pk, rq_queue][state] += count
    return found


def _counts(jobs: TenantJobQuerySet, *, sign: int = 1, **constants: Value) -> Any:
    """By tenant queue, queue of RQ and state, where these are not all the same."""
    by = [constants.get(name, F(name)) for name in ("tenant_queue_id", "rq_queue", "state")]
    return jobs.values_list(*by).annotate(jobs=sign * Count("*"))


def _oldest_waits(rows: Mapping[int, _Row]) -> dict[str, float | None]:
    """By a tenant queue's own queue: among the jobs that wait longest of all, else looked for row by row."""
    wait = ExpressionWrapper(DatabaseNow() - InCalendar(READY_AT), output_field=DurationField())
    longest = TenantJob.objects.jobs().waiting().filter(ANY_OF_ALL).order_by(READY_AT)
    found: dict[str, float | None] = {}
    for pk, seconds in longest.values_list("tenant_queue_id", wait)[:LONGEST_WAITING]:
        if pk in rows:
            found.setdefault(rows[pk].figures.queue, in_seconds(seconds))
    waiting = {row.figures.queue for row in rows.values() if row.figures.jobs[State.WAITING]}
    if others := waiting - found.keys():
        of_others = TenantQueue.objects.order_by().filter(queue__in=others).values_list("queue")
        waits = of_others.annotate(wait=Max(oldest_wait(jobs_of_row().jobs(), ANY)))
        found |= {queue: in_seconds(seconds) for queue, seconds in waits}
    return found


def _sweeps() -> Sweeps:
    claims = SweepClaim.objects.filter(name=EVERYWHERE).annotate(now=DatabaseNow())
    found = claims.values_list("sweeps", "reclaimed", "swept_at", "now").first()
    if found is None:
        return Sweeps(0, 0, None)
    sweeps, reclaimed, swept_at, now = found
    return Sweeps(sweeps, reclaimed, None if swept_at is None else in_seconds(now - swept_at))


def _chosen(rows: Iterable[TenantFigures], tenants: int | Iterable[str]) -> list[TenantFigures]:
    if isinstance(tenants, int):
        return sorted(rows, key=lambda row: (-row.jobs[State.WAITING], -row.in_use, row.tenant, row.queue))[:tenants]
    asked = set(tenants)
    return [row for row in rows if row.tenant in asked]
