"""Real workers with short leases, and an observer who objects to every breach of I1 to I7."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from tenant_slots.db import transactions
from tests.faults.observer import Observer, open_runs
from tests.faults.servers import Postgres, Valkey, django_on_database, django_on_redis
from tests.faults.workers import CHOSEN, KIND
from tests.processes import ROOT, Workers, environment, wait_until
from tests.warm_start import MANAGE, Process

SHORT = {"BEAT_INTERVAL": 1, "LEASE_TTL": 2, "SWEEP_INTERVAL": 1, "RESCHEDULE_DELAY": 1}


class FaultWorkers(Workers):
    """Workers that a test does more with than let them work."""

    def kill(self, index: int = 0, number: int = signal.SIGKILL) -> None:
        self.processes[index].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[index].wait()

    def start_unasked(self, count: int = 1, worker_class: str | None = None) -> list[Process]:
        """Start processes without waiting for them, as what supervises workers does. The caller keeps them."""
        return [self._begin("rqworker", "imports", worker_class=worker_class) for _ in range(count)]

    def start_sweeper(self) -> Process:
        """What runs beside workers of RQ's own classes. The caller keeps it."""
        return self._begin("slots_sweep", "--loop")

    def start_pool(self, worker_class: str) -> subprocess.Popen[bytes]:
        """RQ's pool with one worker, which are a group of processes of their own."""
        values = {**environment(worker_class), **self.variables}
        command = [*MANAGE, "rqworker-pool", "imports", "--num-workers", "1"]
        before = self._registered()
        pool = subprocess.Popen(command, cwd=ROOT, env=values, start_new_session=True)
        self.processes.append(pool)
        wait_until(lambda: self._registered() > before, message="the pool did not start")
        return pool

    def with_sabotage(self, plan: str, armed: Path, worker_class: str = f"Sabotaged{KIND}") -> str:
        """The worker class that does what the plan says, once, when `armed` exists."""
        self.variables |= {"TEST_SABOTAGE": plan, "TEST_SABOTAGE_FILE": str(armed)}
        return f"tests.faults.workers.{worker_class}"


@pytest.fixture(autouse=True)
def _chosen_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """For workers that are started without a class."""
    monkeypatch.setenv("TEST_WORKER_CLASS", CHOSEN)


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A busy machine may keep the tests' own process for half of one in a transaction, which ends no session of it."""
    monkeypatch.setattr(transactions, "STANDSTILL_SHARE", 0)
    with override_settings(TENANT_SLOTS=SHORT):
        yield


@pytest.fixture(params=["Worker", "PreforkWorker"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of worker with work-horses: how the names of its classes end, here and in the tests."""
    return str(request.param)


@pytest.fixture
def workers(transactional_db: None, _nobody_is_left: None) -> Iterator[FaultWorkers]:
    started = FaultWorkers(TEST_TENANT_SLOTS=json.dumps(SHORT))
    yield started
    started.stop()


@pytest.fixture
def observer(transactional_db: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Observer]:
    """Ends the jobs that still run, then asks for the breaches."""
    with Observer(tmp_path / "history") as watching:
        if "workers" in request.fixturenames:
            started = request.getfixturevalue("workers").processes
            watching.workers = lambda: sum(process.poll() is None for process in started)
        yield watching
    breaches = watching.breaches()
    for run in open_runs(watching.path):
        os.kill(run.pid, signal.SIGKILL) if run.pid != os.getpid() else None
    assert not breaches, "\n".join(breaches)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Path]:
    """A file that `hold` jobs wait for; touch it to let them end."""
    path = tmp_path / "door"
    yield path
    path.touch()


@pytest.fixture(scope="module")
def _module_postgres() -> Iterator[Postgres]:
    if connection.vendor != "postgresql":
        pytest.skip("restarts PostgreSQL, and this run is on SQLite")
    server = Postgres()
    yield server
    server.end()


@pytest.fixture
def postgres(transactional_db: None, _module_postgres: Postgres, workers: FaultWorkers) -> Iterator[Postgres]:
    """A PostgreSQL of this module's own; Django and the workers of the test use it through its proxy."""
    _module_postgres.proxy.heal()
    _module_postgres.empty()
    workers.variables["DATABASE_URL"] = _module_postgres.url
    with django_on_database(_module_postgres.url):
        yield _module_postgres
        workers.stop()
        _module_postgres.proxy.heal()


@pytest.fixture(scope="module")
def _module_valkey() -> Iterator[Valkey]:
    server = Valkey()
    yield server
    server.end()


@pytest.fixture
def valkey(_module_valkey: Valkey, workers: FaultWorkers) -> Iterator[Valkey]:
    """A Valkey of this module's own; Django and the workers of the test use it through its proxy."""
    _module_valkey.start()
    client: Any = _module_valkey.client()
    client.flushall()
    client.config_set("maxmemory", 0)
    workers.variables["REDIS_URL"] = _module_valkey.url
    with django_on_redis(_module_valkey.url):
        yield _module_valkey
        workers.stop()
        _module_valkey.proxy.heal()
