"""One answer for many askers: what several viewers poll is computed once a second in each process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import InterfaceError, OperationalError
from django.db.models import QuerySet
from django.http import HttpRequest

from tenant_slots.admin.attention import Facts
from tenant_slots.admin.queue_charts import SPANS, Lately
from tenant_slots.db.sessions import schema_of
from tenant_slots.fleet import Fleet
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.stats import percentiles, rows, worker_time
from tenant_slots.stats.changes import Changes
from tenant_slots.stats.deploys import Deploy
from tenant_slots.stats.minutes import Period
from tenant_slots.stats.rows import LastHour, Row
from tenant_slots.stats.tiles import Tiles
from tenant_slots.stats.worker_time import WorkerTime

PARTS_OF_A_POINT = 60
"""For such a part of what a point of a chart stands for, viewers share the chart."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Failure(NamedTuple):
    at: float
    keys: frozenset[Any]
    error: Exception
    traceback: TracebackType | None

    def is_of(self, keys: Sequence[Any]) -> bool:
        """Whether to ask for these would be no better: where the database does not answer, whatever is asked."""
        return isinstance(self.error, (OperationalError, InterfaceError)) or self.keys.issuperset(keys)


class Shared(Generic[K, V]):
    """Answers by key that are used again until they are `seconds` old.

    The lock is held while computing: whoever comes meanwhile waits for that answer instead of asking the same again. If
    there is none all of them have waited for it, and none waits once more.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._answers: dict[K, tuple[float, V]] = {}
        self._failure: _Failure | None = None

    def get(self, keys: Sequence[K], compute: Callable[[list[K]], dict[K, V]]) -> dict[K, V]:
        """The answers for these keys; `compute` is asked, once, for those that are missing or too old. What it raises,
        those who have waited for it get as well.
        """
        came_at = time.monotonic()
        with self._lock:
            self._forget_old()
            if missing := [key for key in keys if key not in self._answers]:
                self._raise_what_failed_since(came_at, missing)
                self._keep(self._computed(missing, compute))
            return {key: self._answers[key][1] for key in keys if key in self._answers}

    def at_hand(self, key: K) -> V | None:
        """The answer for this key if it need not be computed."""
        with self._lock:
            self._forget_old()
            return self._answers[key][1] if key in self._answers else None

    def put(self, answers: dict[K, V]) -> None:
        """Answers that were computed for another reason."""
        with self._lock:
            self._keep(answers)

    def clear(self) -> None:
        with self._lock:
            self._answers.clear()

    def _raise_what_failed_since(self, came_at: float, missing: list[K]) -> None:
        failure = self._failure
        if failure and failure.at >= came_at and failure.is_of(missing):
            raise failure.error.with_traceback(failure.traceback)

    def _computed(self, missing: list[K], compute: Callable[[list[K]], dict[K, V]]) -> dict[K, V]:
        self._failure = None
        try:
            return compute(missing)
        except Exception as error:
            self._failure = _Failure(time.monotonic(), frozenset(missing), error, error.__traceback__)
            raise

    def _keep(self, answers: dict[K, V]) -> None:
        until = time.monotonic() + self.seconds
        self._answers.update((key, (until, answer)) for key, answer in answers.items())

    def _forget_old(self) -> None:
        now = time.monotonic()
        for key in [key for key, (until, _) in self._answers.items() if until <= now]:
            del self._answers[key]


class Board(NamedTuple):
    """What stands above the live list. The number of workers is None where Redis cannot be asked."""

    tiles: Tiles
    workers: int | None
    deserted: tuple[str, ...] = ()
    """Queues of RQ with jobs and without a worker that takes them."""


shared_rows: Shared[int, Row] = Shared(seconds=1)
shared_last_hours: Shared[int, LastHour] = Shared(seconds=5)
"""What the rows say of an hour of jobs: it takes longest of what a poll asks for, and moves little in that time."""
shared_jobs: Shared[int, TenantJob] = Shared(seconds=1)
shared_queue_sight: Shared[tuple[str, int], bool] = Shared(seconds=1)
"""Whether viewers who see so (`sees`) may see a tenant queue."""
shared_job_sight: Shared[tuple[str, int], bool] = Shared(seconds=1)
"""The same of a job."""
shared_fleet: Shared[str, Fleet] = Shared(seconds=1)
shared_tiles: Shared[str, Board] = Shared(seconds=5)
"""By `sees`. Longer, because adding up all waiting jobs takes as long as a page of rows, and a sum moves little in that
time.
"""
shared_worker_time: Shared[str, WorkerTime] = Shared(seconds=15)
"""Longer still: it reads every job that ended in the last hour."""
shared_start_delays: Shared[str, Mapping[int, float]] = Shared(seconds=5)
"""By percentile, of each tenant queue. It reads every job that started in the last quarter of an hour."""

shared_charts: Mapping[str, Shared[int, Lately]] = {
    key: Shared(seconds=span.seconds / PARTS_OF_A_POINT) for key, span in SPANS.items()
}
"""By the span that is shown and the tenant queue. They read every job of that time, so that those of a week are shared
for longer: what is new moves the last of their points by little.
"""

shared_periods: Shared[tuple[str, int, int], list[Period | None]] = Shared(seconds=5)
"""Of the overview: by queue, number of periods and their seconds."""
shared_deploys: Shared[int, list[Deploy]] = Shared(seconds=5)
"""By how many seconds are looked back."""
shared_changes: Shared[tuple[str, int, int], Changes] = Shared(seconds=5)
"""As `shared_periods`."""
shared_facts: Shared[str, Facts] = Shared(seconds=5)


def sees(own: QuerySet[TenantQueue] | None) -> str:
    """A name for what viewers see who are restricted to these rows: the same for all who are so in the same way.

    With django-tenants the same SQL may be about the tables of another schema.
    """
    if own is None:
        return "all"
    try:
        return repr((schema_of(own.db), own.order_by().values("pk").query.sql_with_params()))
    except EmptyResultSet:
        return "none"


def seen_among(
    shared: Shared[tuple[str, int], bool],
    pks: Sequence[int],
    own: QuerySet[TenantQueue] | None,
    find: Callable[[list[int], QuerySet[TenantQueue]], Iterable[int]],
) -> list[int]:
    """Those of some rows that a viewer may see. Who is restricted in the same way shares the answer.

    Args:
        shared: the answers, by `sees`.
        pks: primary keys of the rows.
        own: the tenant queues that the viewer is restricted to; None for all.
        find: the primary keys among these that are of such a tenant queue.
    """
    if own is None:
        return list(pks)
    way = sees(own)

    def look(missing: list[tuple[str, int]]) -> dict[tuple[str, int], bool]:
        theirs = set(find([pk for _, pk in missing], own))
        return {key: key[1] in theirs for key in missing}

    return [pk for (_, pk), is_theirs in shared.get([(way, pk) for pk in pks], look).items() if is_theirs]


def measured_rows(pks: Sequence[int]) -> dict[int, Row]:
    """As `rows.measured`, fresh but for what is said of an hour of jobs."""
    return rows.measured(pks, lambda missing: shared_last_hours.get(missing, rows.last_hours))


def worker_time_for(model_admin: Any, request: HttpRequest) -> WorkerTime | None:
    """The seconds of the last hour, and what they are a part of. None for who sees some tenants only."""
    return _worker_time() if model_admin.own_tenant_queues(request) is None else None


def worker_time_of_rows() -> Mapping[int, float]:
    """The seconds of the last hour, by primary key."""
    return _worker_time().of_rows


def start_delays_of_rows() -> Mapping[int, float]:
    """The seconds from ready to start of the last quarter of an hour, by primary key."""
    return shared_start_delays.get(["p95"], lambda _: {"p95": percentiles.start_delays_of_all(95)})["p95"]


def _worker_time() -> WorkerTime:
    return shared_worker_time.get(["all"], lambda _: {"all": worker_time.of_all()})["all"]


def forget_shared() -> None:
    """After a change by a viewer, who wants to see it at once."""
    shared_rows.clear()
    shared_last_hours.clear()
    shared_jobs.clear()
    shared_queue_sight.clear()
    shared_job_sight.clear()
    shared_fleet.clear()
    shared_tiles.clear()
    shared_worker_time.clear()
    shared_start_delays.clear()
    for shared in shared_charts.values():
        shared.clear()
    shared_periods.clear()
    shared_deploys.clear()
    shared_changes.clear()
    shared_facts.clear()
