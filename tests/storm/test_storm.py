"""Everything at once, for minutes: kill -9 of horses and workers, FLUSHALL, restarts and outages of PostgreSQL, stopped
processes, paused tenants, lowered limits, and rows that another session keeps locked.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from django.db import Error, close_old_connections, connection
from django.test import override_settings

from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer, events, open_runs, runs, snapshot
from tests.faults.servers import Postgres, Valkey
from tests.processes import wait_until
from tests.storm.pauses import Pauses
from tests.storm.probe import Probe

MINUTES = float(os.environ["STORM_MINUTES"])
SEED = int(os.environ.get("STORM_SEED") or random.SystemRandom().randrange(10**6))

LIMITS = {"a": 1, "b": 1, "c": 1, "d": 2, "e": 2, "f": 3, "g": 50, "h": 50}
WORKERS = 4
BACKLOG = 60
"""Jobs that are kept waiting, so that there is always something to go wrong."""

LOWERED = ("f", "g", "h")
"""Whose limit is lowered for a while: never above what the observer knows."""

KILL, FLUSH, RESTART, OUTAGE, FREEZE, LOCK, PAUSE, LOWER, PROBE = 0.5, 20.0, 60.0, 45.0, 7.0, 11.0, 5.0, 9.0, 5.0
"""Seconds between two of a kind."""

LEASES = (1.2, 2.5)
"""How long outages, stopped processes and locks last, in leases: 25 to 50 seconds with the default settings."""

WORKER_CLASS = os.environ.get("STORM_WORKER_CLASS", "tenant_slots.workers.TenantWorker")
SWEEPS = WORKER_CLASS.startswith("tenant_slots.")
"""Where workers do not, a command does that runs beside them."""


@pytest.fixture(autouse=True)
def _many_lives() -> Iterator[None]:
    """A job that the storm kills again and again is no poison pill."""
    with override_settings(TENANT_SLOTS=SETTINGS):
        yield


SETTINGS = {**SHORT, "MAX_CRASHES": 1000, "MAX_INTERRUPTIONS": 1000}


class Storm:
    def __init__(self, postgres: Postgres, valkey: Valkey, workers: FaultWorkers, observer: Observer) -> None:
        self.postgres, self.valkey, self.workers, self.observer = postgres, valkey, workers, observer
        self.chance = random.Random(SEED)
        self.pauses, self.probe = Pauses(), Probe()
        self.paused: set[str] = set()
        self.enqueued: set[str] = set()
        self.done: Counter[str] = Counter()
        self.pending: list[tuple[float, Callable[[], object]]] = []
        """What is to end, and when."""

    def rage(self, seconds: float) -> None:
        began = time.monotonic()
        due = {
            self.kill: KILL,
            self.flush: FLUSH,
            self.restart: RESTART,
            self.outage: OUTAGE,
            self.freeze: FREEZE,
            self.lock: LOCK,
            self.pause: PAUSE,
            self.lower: LOWER,
            self.ask: PROBE,
        }
        last = dict.fromkeys(due, began)
        while time.monotonic() - began < seconds:
            for action, interval in due.items():
                if time.monotonic() - last[action] >= interval:
                    last[action] = time.monotonic()
                    action()
            self.let_go(time.monotonic())
            self.top_up()
            time.sleep(0.05)
        self.let_go(float("inf"))

    def kill(self) -> None:
        """A horse or, one time in four, a whole worker, which somebody starts again."""
        if self.chance.random() < 0.25:
            self.replace_worker(self.chance.randrange(len(self.workers.processes)))
            return
        horses = open_runs(self.observer.path)
        if horses:
            victim = self.chance.choice(horses)
            if runs(victim.pid, victim.ticks):
                with suppress(ProcessLookupError):  # it may have ended since
                    os.kill(victim.pid, signal.SIGKILL)
                    self.done["horses killed"] += 1

    def replace_worker(self, index: int) -> None:
        self.workers.processes[index].kill()
        self.workers.processes[index].wait()
        self.start_in_place(index)
        self.done["workers killed"] += 1

    def start(self) -> None:
        self.workers.processes += self.workers.start_unasked(WORKERS, worker_class=WORKER_CLASS)
        if not SWEEPS:
            self.workers.processes.append(self.workers.start_sweeper())

    def start_in_place(self, index: int) -> None:
        if index < WORKERS:
            (self.workers.processes[index],) = self.workers.start_unasked(worker_class=WORKER_CLASS)
        else:
            self.workers.processes[index] = self.workers.start_sweeper()

    def flush(self) -> None:
        self.valkey.client().flushall()  # type: ignore[attr-defined]
        self.done["FLUSHALL"] += 1

    def restart(self) -> None:
        with self.probe.outage():
            self.postgres.restart("immediate")
        connection.close()
        self.done["PostgreSQL restarts"] += 1

    def outage(self) -> None:
        with self.probe.outage():
            self.postgres.stop("immediate")
            time.sleep(self.chance.uniform(*LEASES) * SHORT["LEASE_TTL"])
            self.postgres.start()
        connection.close()
        self.done["outages"] += 1

    def freeze(self) -> None:
        """A worker, its work-horse, or both stand still."""
        victims = [self.chance.choice(self.workers.processes).pid]
        victims += [horse.pid for horse in open_runs(self.observer.path) if self.chance.random() < 0.3]
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.until(lambda: self.wake(victims))
        self.done["stopped"] += len(victims)

    def wake(self, victims: list[int]) -> None:
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def lock(self) -> None:
        """Somebody's session keeps one tenant queue."""
        with suppress(psycopg.Error):
            session = psycopg.connect(self.postgres.direct_url, options="-c lock_timeout=1000")
            tenant = self.chance.choice(list(LIMITS))
            session.execute("SELECT 1 FROM tenant_slots_tenantqueue WHERE tenant = %s FOR NO KEY UPDATE", [tenant])
            self.until(session.close)
            self.done["locks"] += 1

    def pause(self) -> None:
        """Somebody pauses a tenant, and resumes it later."""
        tenant = self.chance.choice([name for name in LIMITS if name not in self.paused])
        self.paused.add(tenant)
        with suppress(Error, TenantQueueLocked):
            TenantQueue.objects.get(tenant=tenant).pause()
            self.pauses.began(tenant)
            self.done["pauses"] += 1
        self.until(lambda: self.resume(tenant))

    def resume(self, tenant: str) -> None:
        try:
            self.pauses.is_to_end(tenant)
            TenantQueue.objects.get(tenant=tenant).resume()
            self.paused.remove(tenant)
        except (Error, TenantQueueLocked):
            connection.close()
            self.until(lambda: self.resume(tenant))

    def lower(self) -> None:
        """Somebody lowers a limit, and raises it again later."""
        tenant = self.chance.choice(LOWERED)
        with suppress(Error, TenantQueueLocked):
            TenantQueue.objects.get(tenant=tenant).set_limit(self.chance.randrange(LIMITS[tenant]))
            self.done["limits lowered"] += 1
        self.until(lambda: self.put_up(tenant))

    def put_up(self, tenant: str) -> None:
        try:
            TenantQueue.objects.get(tenant=tenant).set_limit(LIMITS[tenant])
        except (Error, TenantQueueLocked):
            connection.close()
            self.until(lambda: self.put_up(tenant))

    def ask(self) -> None:
        """A tenant that has nothing to run enqueues one job."""
        try:
            self.probe.enqueue(self.observer.path)
        except Error:
            connection.close()

    def until(self, end: Callable[[], object]) -> None:
        seconds = self.chance.uniform(*LEASES) * SHORT["LEASE_TTL"]
        self.pending.append((time.monotonic() + seconds, end))

    def let_go(self, now: float) -> None:
        while over := [pending for pending in self.pending if pending[0] <= now]:
            self.pending = [pending for pending in self.pending if pending[0] > now]
            for _, end in over:
                end()

    def top_up(self) -> None:
        self.revive()
        try:
            missing = BACKLOG - TenantJob.objects.waiting().count()
            if missing > BACKLOG / 2:
                self.enqueue(missing)
        except Error:
            connection.close()

    def revive(self) -> None:
        """A worker may end by itself when Redis is gone, as RQ's do; what supervises it starts it again."""
        for index, process in enumerate(self.workers.processes):
            if process.poll() is not None:
                self.start_in_place(index)
                self.done["workers that ended"] += 1

    def enqueue(self, count: int) -> None:
        calls = []
        for _ in range(count):
            tenant = self.chance.choice(list(LIMITS))
            name = f"{tenant}{len(self.enqueued) + len(calls)}"
            calls.append(((tenant, name, self.observer.path, self.chance.choice((0.02, 0.1, 0.5))), {}))
        before = {str(arguments[1]) for arguments, _ in calls}
        jobs.quick.enqueue_many(calls)
        self.enqueued |= before

    def calm(self, seconds: float) -> None:
        def all_ended() -> bool:
            self.revive()
            close_old_connections()
            return not TenantJob.objects.exclude(state__in=[State.FINISHED]).exists()

        wait_until(all_ended, seconds, "I3: jobs are left after the storm")


def test_i1_to_i7_and_i12_hold_in_a_storm(
    postgres: Postgres, valkey: Valkey, workers: FaultWorkers, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import json

    workers.variables["TEST_TENANT_SLOTS"] = json.dumps(SETTINGS)
    for tenant, limit in LIMITS.items():
        TenantQueue.objects.create(tenant=tenant, queue="imports", max_job=limit)
    with Observer(tmp_path / "history") as observer:
        storm = Storm(postgres, valkey, workers, observer)
        with capfd.disabled():
            sys.stderr.write(f"\nstorm of {MINUTES:g} minutes of {WORKER_CLASS} with STORM_SEED={SEED}\n")
        storm.start()
        storm.rage(MINUTES * 60)
        storm.calm(120)
        storm.done |= {
            "ran again after their end": ran_after_end(observer),
            "jobs": len(storm.enqueued),
            "newcomers": len(storm.probe.asked),
            "runs": len(observer.starts()),
            "snapshots": observer.samples,
        }
        with capfd.disabled():
            sys.stderr.write(f"{dict(storm.done)}\n")
        breaches = [*observer.breaches(), *storm.pauses.breaches, *storm.probe.breaches(observer.events())]
    finished = {event.name for event in events(observer.path) if event.kind == "end"}
    enqueued = storm.enqueued | storm.probe.asked.keys()
    assert enqueued <= finished, f"I3: {len(enqueued - finished)} jobs are lost"
    assert not breaches, "\n".join(breaches)
    assert all(current == held == 0 for _, current, *_, held, _ in snapshot())


def ran_after_end(observer: Observer) -> int:
    """Jobs that started again after they had written their end: their process or their worker died right then."""
    ended: set[str] = set()
    again: set[str] = set()
    for event in observer.events():
        if event.kind == "end":
            ended.add(event.name)
        elif event.kind == "start" and event.name in ended:
            again.add(event.name)
    return len(again)
