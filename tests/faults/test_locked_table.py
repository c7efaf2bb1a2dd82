"""A migration locks the table of jobs for longer than a lease: whoever cannot send heartbeats meanwhile is not dead."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from django.db import connection

from tenant_slots.models import State, SweepClaim
from tests.factories import fresh, tenant_queue
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer
from tests.locks import kept_out
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer"),
]

MODES = pytest.mark.parametrize("mode", ["SHARE", "SHARE ROW EXCLUSIVE", "ACCESS EXCLUSIVE"])
CLASSES = pytest.mark.parametrize("worker_class", ["TenantPreforkWorker", "TenantWorker", "TenantSimpleWorker"])
SECONDS = 6
"""Three leases."""


def sweeps() -> int:
    return sum(SweepClaim.objects.values_list("sweeps", flat=True))


def wait_for_sweeps(number: int) -> None:
    before = sweeps()
    wait_until(lambda: sweeps() >= before + number, 60)


@MODES
@CLASSES
def test_i4_i11_nobody_is_killed_whose_heartbeats_a_lock_keeps_out(
    workers: FaultWorkers, observer: Observer, door: Path, mode: str, worker_class: str
) -> None:
    for tenant in ("one", "two"):
        tenant_queue(tenant, max_job=1)
    workers.start(2, worker_class=f"tenant_slots.workers.{worker_class}")
    workers.start(1, queues=("reports",), worker_class=f"tenant_slots.workers.{worker_class}")
    held = [jobs.hold.enqueue(tenant, tenant, observer.path, str(door)) for tenant in ("one", "two")]
    for tenant in ("one", "two"):
        observer.process_of(tenant)
    wait_for_sweeps(4)  # somebody has watched for a lease
    with kept_out(mode):
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > SECONDS)
    wait_for_sweeps(4)
    assert [(fresh(job).state, job.attempt, job.crashes, job.interruptions) for job in held] == [
        ("running", 1, 0, 0)
    ] * 2
    assert all(process.poll() is None for process in workers.processes)
    door.touch()
    wait_until(lambda: all(fresh(job).has_ended for job in held), 20)
    assert {job.state for job in held} == {State.FINISHED}


def test_control_i2_a_run_that_stands_still_is_ended_after_such_a_lock(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    tenant_queue("one", max_job=1)
    workers.start(1, worker_class="tests.faults.workers.ElsewhereWorker")
    held = jobs.hold.enqueue("one", "one", observer.path, str(door))
    observer.process_of("one")
    workers.start(1, queues=("reports",), worker_class="tenant_slots.workers.TenantPreforkWorker")
    with kept_out("SHARE"):
        workers.kill(0)
    wait_until(lambda: fresh(held).interruptions == 1, 20)
    door.touch()
