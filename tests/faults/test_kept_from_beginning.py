"""A warm work-horse does not come to its next job: what the job before has left keeps it."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

import django_rq
import pytest
from django.db import connection
from rq.command import send_stop_job_command

from tenant_slots import tenant_job
from tenant_slots.models import State, TenantJob
from tests.factories import counters_match, fresh, tenant_queue
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer
from tests.processes import is_announced, last_rq_id, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PREFORK = "tenant_slots.workers.TenantPreforkWorker"


class Keeping(deque[Any]):
    """Its work-horse clears Django's notes of queries once it has said that the job has ended."""

    door = ""

    def clear(self) -> None:
        while not Path(self.door).exists():
            time.sleep(0.05)
        super().clear()


@tenant_job("imports", tenant="tenant")
def leave_notes(tenant: str, door: str) -> None:
    Keeping.door = door
    connection.queries_log = Keeping()


def kept(workers: FaultWorkers, observer: Observer, door: Path) -> TenantJob:
    """A job that was handed out, and that its work-horse does not come to before the door is opened."""
    for tenant in ("whale", "acme"):
        tenant_queue(tenant, max_job=1)
    leave_notes.enqueue("whale", str(door))
    job = jobs.quick.enqueue("acme", "victim", observer.path)
    workers.start(1, worker_class=PREFORK)
    wait_until(lambda: fresh(job).state == State.RUNNING and is_announced(job), 20)
    assert observer.started() == []
    return job


def test_a_stop_by_rq_cancels_it(workers: FaultWorkers, observer: Observer, door: Path) -> None:
    """It went back to its backlog, and ran to its end, while RQ had it as stopped."""
    workers.variables["TEST_TENANT_SLOTS"] = "{}"  # the lease is long enough for somebody to stop it
    job = kept(workers, observer, door)
    send_stop_job_command(django_rq.get_connection("imports"), last_rq_id(job))
    wait_until(lambda: fresh(job).has_ended, 10)
    assert (job.state, job.attempt, job.crashes) == (State.CANCELED, 1, 0)
    assert observer.started() == []
    assert counters_match()


def test_i8_another_work_horse_gets_it_within_a_lease(workers: FaultWorkers, observer: Observer, door: Path) -> None:
    job = kept(workers, observer, door)
    wait_until(lambda: fresh(job).has_ended, SHORT["LEASE_TTL"] + 8, "another tenant's loop holds it up")
    assert (job.state, job.attempt, job.crashes, job.interruptions) == (State.FINISHED, 2, 0, 0)
    assert not door.exists()
