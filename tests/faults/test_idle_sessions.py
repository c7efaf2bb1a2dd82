"""Sessions that a server or a proxy ends when nobody uses them are no outage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.db import connection

from tenant_slots.models import State, TenantJob
from tests import jobs
from tests.factories import fresh, tenant_queue
from tests.faults.conftest import FaultWorkers
from tests.history import History
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about sessions of PostgreSQL"),
]

CLASSES = pytest.mark.parametrize(
    "worker_class", ["tenant_slots.workers.TenantPreforkWorker", "tenant_slots.workers.TenantWorker"]
)
LEASE = 5


@pytest.fixture
def lost(workers: FaultWorkers, tmp_path: Path) -> TenantJob:
    """A job that the first worker runs, as if on another host. What is started from now on has its sessions ended."""
    path = tmp_path / "events"
    settings = {"BEAT_INTERVAL": 1, "LEASE_TTL": LEASE, "SWEEP_INTERVAL": 1, "RESCHEDULE_DELAY": 1}
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps(settings)
    workers.start(1, worker_class="tests.faults.workers.ElsewhereWorker")
    job = jobs.wait_for_file.enqueue("acme", "lost", str(path), str(tmp_path / "door"))
    wait_until(lambda: History(path).started("acme"))
    workers.variables["PGOPTIONS"] = "-c idle_session_timeout=700"
    return job


def is_reclaimed_once_its_worker_is_killed(lost: TenantJob, workers: FaultWorkers) -> None:
    workers.kill(0)
    wait_until(lambda: fresh(lost).state != State.RUNNING or lost.crashes, 6 * LEASE, "a dead worker holds its slot")


@CLASSES
def test_i2_who_is_reconnected_still_reclaims_what_the_dead_held(
    workers: FaultWorkers, tmp_path: Path, lost: TenantJob, worker_class: str
) -> None:
    """The other one's sessions are ended before each heartbeat."""
    tenant_queue("other", max_job=1)
    workers.start(1, worker_class=worker_class)
    jobs.wait_for_file.enqueue("other", "long", str(tmp_path / "events"), str(tmp_path / "other door"))
    wait_until(lambda: History(tmp_path / "events").started("other"))
    is_reclaimed_once_its_worker_is_killed(lost, workers)
    (tmp_path / "door").touch()
    (tmp_path / "other door").touch()


@pytest.mark.parametrize("sweeper", ["TenantSimpleWorker", "slots_sweep --loop"])
def test_i2_so_does_who_sweeps_in_the_projects_session(
    workers: FaultWorkers, tmp_path: Path, lost: TenantJob, sweeper: str
) -> None:
    """It is ended before each sweep."""
    if sweeper == "TenantSimpleWorker":
        workers.start(1, worker_class="tenant_slots.workers.TenantSimpleWorker")
    else:
        workers.processes.append(workers.start_sweeper())
    is_reclaimed_once_its_worker_is_killed(lost, workers)
    (tmp_path / "door").touch()
