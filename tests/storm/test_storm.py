"""Everything at once, for minutes: kill -9 of horses and workers, FLUSHALL, restarts and outages of PostgreSQL, stopped
processes, paused tenants, lowered limits, and rows that another session keeps locked.

STORM_LEASE=20 is for the default lease, so that outages, stops and locks last for 25 to 50 seconds, and RQ's own times
play their part.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from django.db import Error, close_old_connections, connection
from django.test import override_settings

from tenant_slots import conf
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer, events, open_runs, runs, snapshot
from tests.faults.servers import Postgres, Valkey
from tests.processes import wait_until
from tests.storm.deeds import AWAY, KILLED, LOCKED, STOPPED, Deeds
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

INTERVALS = {"LEASE_TTL": float(os.environ["STORM_LEASE"])} if os.environ.get("STORM_LEASE") else SHORT
LEASE = INTERVALS["LEASE_TTL"]

KILL, FLUSH, RESTART, PROBE = 0.5, 20.0, 60.0, 5.0
"""Seconds between two of a kind."""

OUTAGE, FREEZE, LOCK, PAUSE, LOWER = 35 + 5 * LEASE, 3.5 * LEASE, 5.5 * LEASE, 2.5 * LEASE, 4.5 * LEASE
"""Likewise, of what lasts for some leases: in between there must be time for the workers to do something."""

LEASES = (1.2, 2.5)
"""How long outages, stopped processes and locks last, in leases: 25 to 50 seconds with the default settings."""

CALM = 100 + 10 * LEASE
"""Seconds in which all is done after the storm."""

WORKER_CLASS = os.environ.get("STORM_WORKER_CLASS", "tenant_slots.workers.TenantWorker")
SWEEPS = WORKER_CLASS.startswith("tenant_slots.")
"""Where workers do not, a command does that runs beside them."""

HORSES_BEAT = not SWEEPS or WORKER_CLASS.endswith("SimpleWorker")
"""Whether the process that runs a job sends its heartbeats, and not the parent of that."""


@pytest.fixture(autouse=True)
def _many_lives() -> Iterator[None]:
    """A job that the storm kills again and again is no poison pill."""
    with override_settings(TENANT_SLOTS=SETTINGS):
        yield


SETTINGS = {**INTERVALS, "MAX_CRASHES": 1000, "MAX_INTERRUPTIONS": 1000}


class Storm:
    def __init__(self, postgres: Postgres, valkey: Valkey, workers: FaultWorkers, observer: Observer) -> None:
        self.postgres, self.valkey, self.workers, self.observer = postgres, valkey, workers, observer
        self.chance = random.Random(SEED)
        self.pauses, self.probe = Pauses(), Probe()
        fenced_after = LEASE - conf.app_settings.BEAT_INTERVAL  # its last heartbeat may have been so long ago
        is_simple = WORKER_CLASS.endswith("SimpleWorker")
        self.deeds = Deeds(fenced_after, is_stock=not SWEEPS, horses_beat=HORSES_BEAT, is_simple=is_simple)
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
        """A horse or, one time in ten, a whole worker, which somebody starts again.

        So each worker lives for some twenty seconds: long enough to keep an end, and to be asked for it afterwards.
        """
        if self.chance.random() < 0.1:
            self.replace_worker(self.chance.randrange(len(self.workers.processes)))
            return
        horses = open_runs(self.observer.path)
        if horses:
            victim = self.chance.choice(horses)
            if runs(victim.pid, victim.ticks):
                with suppress(ProcessLookupError), self.deeds.doing(KILLED, victim.pid):  # it may have ended since
                    os.kill(victim.pid, signal.SIGKILL)
                    self.done["horses killed"] += 1

    def replace_worker(self, index: int) -> None:
        victim = self.workers.processes[index]
        with self.deeds.doing(KILLED, victim.pid):
            victim.kill()
            victim.wait()
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
        with self.outage_noted():
            self.postgres.restart("immediate")
        connection.close()
        self.done["PostgreSQL restarts"] += 1

    def outage(self) -> None:
        with self.outage_noted():
            self.postgres.stop("immediate")
            time.sleep(self.chance.uniform(*LEASES) * LEASE)
            self.postgres.start()
        connection.close()
        self.done["outages"] += 1

    @contextmanager
    def outage_noted(self) -> Iterator[None]:
        with self.probe.outage(), self.deeds.doing(AWAY):
            yield

    def freeze(self) -> None:
        """A worker, its work-horse, or both stand still."""
        victims = [self.chance.choice(self.workers.processes).pid]
        victims += [horse.pid for horse in open_runs(self.observer.path) if self.chance.random() < 0.3]
        stopped = ExitStack()
        for pid in victims:
            stopped.enter_context(self.deeds.doing(STOPPED, pid))
            stopped.callback(self.wake, pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.until(stopped.close)
        self.done["stopped"] += len(victims)

    def wake(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def lock(self) -> None:
        """Somebody's session keeps one tenant queue, of a job that runs if there is one: its end is kept then."""
        with suppress(psycopg.Error):
            session = psycopg.connect(self.postgres.direct_url, options="-c lock_timeout=1000")
            running = [run.tenant for run in open_runs(self.observer.path) if run.tenant in LIMITS]
            tenant = self.chance.choice(running or list(LIMITS))
            locked = ExitStack()
            locked.enter_context(self.deeds.doing(LOCKED, tenant))
            locked.callback(session.close)
            self.until(locked.close)
            session.execute("SELECT 1 FROM tenant_slots_tenantqueue WHERE tenant = %s FOR NO KEY UPDATE", [tenant])
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
        seconds = self.chance.uniform(*LEASES) * LEASE
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
                self.deeds.note_end_of_worker(process.pid, process.returncode)
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


def test_i1_to_i7_and_i10_to_i12_hold_in_a_storm(
    postgres: Postgres, valkey: Valkey, workers: FaultWorkers, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import json

    workers.variables["TEST_TENANT_SLOTS"] = json.dumps(SETTINGS)
    for tenant, limit in LIMITS.items():
        TenantQueue.objects.create(tenant=tenant, queue="imports", max_job=limit)
    with Observer(tmp_path / "history") as observer:
        observer.promise += LEASES[1] * LEASE  # for so long the storm may lock the row
        storm = Storm(postgres, valkey, workers, observer)
        with capfd.disabled():
            sys.stderr.write(f"\nstorm of {MINUTES:g} minutes of {WORKER_CLASS} with STORM_SEED={SEED}\n")
        storm.start()
        storm.rage(MINUTES * 60)
        storm.calm(CALM)
        storm.done |= {
            "ran again after their end": ran_after_end(observer),
            "jobs": len(storm.enqueued),
            "newcomers": len(storm.probe.asked),
            "runs": len(observer.starts()),
            "snapshots": observer.samples,
        }
        with capfd.disabled():
            sys.stderr.write(f"{dict(storm.done)}\n")
        breaches = [
            *observer.breaches(),
            *storm.pauses.breaches,
            *storm.probe.breaches(observer.events()),
            *storm.deeds.breaches(observer.events()),
        ]
    finished = {event.name for event in events(observer.path) if event.kind == "end"}
    enqueued = storm.enqueued | storm.probe.asked.keys()
    assert enqueued <= finished, f"I3: {len(enqueued - finished)} jobs are lost"
    assert not breaches, "\n".join(breaches)
    assert all(current == held == 0 for _, current, *_, held, _ in snapshot())


def ran_after_end(observer: Observer) -> int:
    """Jobs that started again after they had written their end; the storm must have had a hand in each."""
    ended: set[str] = set()
    again: set[str] = set()
    for event in observer.events():
        if event.kind == "end":
            ended.add(event.name)
        elif event.kind == "start" and event.name in ended:
            again.add(event.name)
    return len(again)
