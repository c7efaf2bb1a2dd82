"""The outside observer: what jobs wrote about themselves, and what a watcher of the tables saw, against I1 to I7.

A run looks around when it starts: it counts the other runs of its tenant whose processes are really running at this
moment. So a killed run needs no line of its own, and nobody has to guess when it died.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import Error, connection

from tenant_slots.models import ENDED, TenantJob, TenantQueue
from tests.jobs import note
from tests.processes import wait_until

PROMISE = 10.0
"""Seconds until a dead job's slot is back where another worker lives on the host."""

STRANDED = "I7: jobs waited beside an idle worker and a free slot of"

SAME_ADMISSION = 0.1
"""Seconds between the times that one admission of several jobs writes."""


@dataclass(frozen=True)
class Event:
    nanoseconds: int
    pid: int
    ticks: int
    kind: str
    tenant: str
    name: str


@contextmanager
def observed(history: str, tenant: str, name: str) -> Iterator[None]:
    """A run of a job, with a line for its parent, one when it starts, one for whom it met, and one when it ends."""
    ticks = ticks_of("self")[1]
    note(history, ticks, f"under-{os.getppid()}", tenant, name)
    note(history, ticks, "start", tenant, name)
    now = open_runs(history)
    others = [run for run in now if (run.tenant, run.name) != (tenant, name) and run.tenant == tenant]
    if sum((run.tenant, run.name) == (tenant, name) for run in now) > 1:
        note(history, ticks, "twice", tenant, name)
    note(history, ticks, f"beside-{len(others)}", tenant, name)
    try:
        yield
    finally:
        note(history, ticks, "end", tenant, name)


def events(history: str) -> list[Event]:
    path = Path(history)
    lines = path.read_text().splitlines() if path.exists() else []
    parsed = [Event(int(ns), int(pid), int(ticks), *rest) for ns, pid, ticks, *rest in map(str.split, lines)]
    return sorted(parsed, key=lambda event: event.nanoseconds)


def open_runs(history: str) -> list[Event]:
    """The runs that have begun, have not ended, and whose processes run now."""
    latest: dict[tuple[int, int, str], Event] = {}
    for event in events(history):
        if event.kind in ("start", "end"):
            latest[event.pid, event.ticks, event.name] = event
    return [event for event in latest.values() if event.kind == "start" and runs(event.pid, event.ticks)]


def runs(pid: int, ticks: int) -> bool:
    """Whether this very process is running; a stopped or dead one does nothing."""
    state, started = ticks_of(pid)
    return started == ticks and state not in "TtZX"


def is_gone(pid: int) -> bool:
    return ticks_of(pid)[0] in "ZX"


def ticks_of(pid: int | str) -> tuple[str, int]:
    """State and start of a process; a process that is gone has the state X."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return "X", 0
    return state, int(fields[18])


class Observer:
    """Watches one test; `breaches` is what it has against it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.limits: dict[str, int] = {}
        """Highest limits of tenants whose limit was lowered meanwhile; else the row's limit counts."""
        self.fenced: set[str] = set()
        """Jobs that may start again before their first process has been told that it lost its lease."""
        self.unserved: set[str] = set()
        """Queues that no worker of the test listens on."""
        self.watched: list[str] = []
        self.workers: Callable[[], int] = lambda: 0
        """How many workers live."""
        self.promise = PROMISE
        """Longer where somebody else keeps rows locked, whose slots nobody can free meanwhile."""
        self.samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._since: dict[tuple[str, object], float] = {}

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)  # its session may be one that a test has left without an answer

    def events(self) -> list[Event]:
        return events(self.path)

    def starts(self, name: str = "") -> list[Event]:
        return [event for event in self.events() if event.kind == "start" and name in ("", event.name)]

    def _looks(self, name: str) -> int:
        return sum(event.name == name and event.kind.startswith("beside") for event in self.events())

    def started(self) -> list[str]:
        """Names in the order of their starts."""
        return [event.name for event in self.starts()]

    def ended(self, name: str) -> bool:
        return any(event.kind == "end" and event.name == name for event in self.events())

    def process_of(self, name: str, run: int = 1) -> int:
        """Waits until the nth run of a job has looked around; its process."""
        wait_until(lambda: self._looks(name) >= run, message=f"run {run} of {name} did not start")
        return self.starts(name)[run - 1].pid

    def wait_for_all(self, timeout: float = 40.0) -> None:
        """I3: every committed enqueue ends."""
        wait_until(all_ended, timeout, f"I3: these jobs have not ended after {timeout} s: {unended()}")

    def breaches(self) -> list[str]:
        return [
            *self.watched,
            *self._overlaps(),
            *self._twice(),
            *self._unexplained_runs(),
            *self._out_of_order(),
            *self._wrong_counters(),
        ]

    def _overlaps(self) -> Iterator[str]:
        limits = {row.tenant: row.max_job for row in TenantQueue.objects.all()} | self.limits
        for event in self.events():
            if event.kind.startswith("beside-"):
                together = 1 + int(event.kind.removeprefix("beside-"))
                if together > limits.get(event.tenant, together):
                    yield f"I1: {together} jobs of {event.tenant} ran at once when {event.name} started"

    def _twice(self) -> Iterator[str]:
        for event in self.events():
            if event.kind == "twice" and event.name not in self.fenced:
                yield f"I4: {event.name} started while an earlier run of it was running"

    def _unexplained_runs(self) -> Iterator[str]:
        explained = {
            name: 1 + sum(ended_runs)
            for name, *ended_runs in TenantJob.objects.values_list("args__1", "crashes", "interruptions", "failures")
        }
        for name, count in Counter(self.started()).items():
            if count > explained.get(name, count):
                yield f"I4: {name} ran {count} times, of which {explained[name]} are explained"

    def _out_of_order(self) -> Iterator[str]:
        last: dict[tuple[int, str, int], tuple[float, str]] = {}
        first_admissions = TenantJob.objects.jobs().filter(
            attempt=1, admitted_at__isnull=False, rq_job_id="", run_after=None
        )
        for job in first_admissions.order_by("pk"):
            backlog, when = (job.tenant_queue_id, job.rq_queue, job.priority), job.admitted_at.timestamp()
            before, other = last.get(backlog, (0.0, ""))
            if when < before - SAME_ADMISSION:
                yield f"I5: {job} was admitted {before - when:.1f} s before {other}, which was enqueued earlier"
            last[backlog] = max((when, str(job)), (before, other))

    def _wrong_counters(self) -> Iterator[str]:
        for tenant, current, *_, held, _ in snapshot():
            if current != held:
                yield f"I6: {tenant} counts {current} and holds {held}"

    def _watch(self) -> None:
        try:
            while not self._stop.wait(0.05):
                try:
                    self._look()
                except Error:  # the database is what the test has taken away
                    connection.close()
                    self._since.clear()
        finally:
            connection.close()

    def _look(self) -> None:
        seen = set()
        found = snapshot()
        is_one_idle = sum(held for *_, held, _ in found) < self.workers()
        for tenant, current, limit, paused, queue, held, waiting in found:
            if current != held:
                self._once(f"I6: {tenant} counted {current} and held {held} in one snapshot")
            if waiting and current < limit and not paused and is_one_idle and queue not in self.unserved:
                seen.add((STRANDED, tenant))
        self.samples += 1
        seen |= {("I2: a slot was held by a dead process of job", pk) for pk in self._held_by_nothing()}
        self._time(seen)

    def _held_by_nothing(self) -> list[int]:
        running = TenantJob.objects.running().exclude(host="").values_list("pk", "pid", "pid_started", "host")
        return [pk for pk, pid, ticks, _ in running if ticks_of(pid)[1] != ticks or ticks_of(pid)[0] in "ZX"]

    def _time(self, seen: set[tuple[str, object]]) -> None:
        now = time.monotonic()
        self._since = {what: self._since.get(what, now) for what in seen}
        for (what, whose), since in self._since.items():
            if now - since > self.promise and not (what == STRANDED and self._goes_on(whose)):
                self._once(f"{what} {whose} for more than {self.promise:.0f} s")

    def _goes_on(self, tenant: object) -> bool:
        """Whether a job of the tenant, and one on every worker, has started within the last seconds of the promise.

        Then no worker was idle all the time. Samples can all fall between two jobs, where a job takes less than a fork.
        """
        begin = time.time_ns() - self.promise * 1e9
        started = [event for event in self.events() if event.kind.startswith("under-") and event.nanoseconds > begin]
        busy = {event.kind for event in started}
        return len(busy) >= self.workers() and tenant in {event.tenant for event in started}

    def _once(self, breach: str) -> None:
        if breach not in self.watched:
            self.watched.append(breach)


SNAPSHOT = """
    SELECT tenant, current_job, max_job, paused, queue,
        (SELECT count(*) FROM tenant_slots_tenantjob WHERE tenant_queue_id = q.id AND state IN ('queued', 'running')),
        (SELECT count(*) FROM tenant_slots_tenantjob WHERE tenant_queue_id = q.id AND state = 'waiting')
    FROM tenant_slots_tenantqueue q
"""


def snapshot() -> list[tuple[Any, ...]]:
    """Tenant, counter, limit, paused, queue, jobs that hold slots, waiting jobs: by one statement, so of one moment."""
    with connection.cursor() as cursor:
        cursor.execute(SNAPSHOT)
        return list(cursor.fetchall())


def all_ended() -> bool:
    return TenantJob.objects.exists() and not TenantJob.objects.exclude(state__in=ENDED).exists()


def unended() -> list[tuple[str, str, int]]:
    jobs = TenantJob.objects.exclude(state__in=ENDED)
    return list(jobs.values_list("task", "state", "attempt")[:10])
