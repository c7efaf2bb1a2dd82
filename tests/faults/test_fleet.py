"""Which workers are alive, after what RQ's records do not survive, or outlive."""

from __future__ import annotations

import signal
from pathlib import Path

import django_rq
import pytest
from rq import Worker

from tenant_slots import fleet
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

OURS = ["TenantPreforkWorker", "TenantWorker", "TenantSimpleWorker"]


def of_imports() -> tuple[fleet.Member, ...]:
    return fleet.known("imports").of("imports")


@pytest.mark.parametrize("worker_class", OURS)
def test_a_killed_worker_is_not_alive_long_before_rq_forgets_it(workers: FaultWorkers, worker_class: str) -> None:
    workers.start(1, worker_class=f"tenant_slots.workers.{worker_class}")
    (member,) = of_imports()
    assert member.is_alive, "the control: it is, while it lives"
    assert member.worker_class.endswith(worker_class)
    workers.kill()
    wait_until(lambda: not any(member.is_alive for member in of_imports()))
    assert Worker.count(connection=django_rq.get_connection("imports")) == 1, "RQ still counts it"


def test_a_worker_that_is_told_to_end_takes_no_more_jobs(workers: FaultWorkers, observer: Observer, door: Path) -> None:
    workers.start(1)
    jobs.hold.enqueue("acme", "last", observer.path, str(door))
    observer.process_of("last")
    assert [member.takes_jobs for member in of_imports()] == [True]
    workers.kill(number=signal.SIGTERM)
    wait_until(lambda: [member.is_leaving for member in of_imports()] == [True])
    assert [(member.is_alive, member.takes_jobs) for member in of_imports()] == [(True, False)]


@pytest.mark.parametrize("worker_class", OURS)
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_after_a_flushall_rq_knows_a_worker_again(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str, is_busy: bool
) -> None:
    workers.start(1, worker_class=f"tenant_slots.workers.{worker_class}")
    if is_busy and worker_class != "TenantSimpleWorker":
        jobs.hold.enqueue("acme", "long", observer.path, str(door))
        observer.process_of("long")
    (before,) = of_imports()
    django_rq.get_connection("imports").flushall()
    wait_until(lambda: [member.is_alive for member in of_imports()] == [True])
    (after,) = of_imports()
    assert (after.name, after.queues, after.pid) == (before.name, before.queues, before.pid)
    assert Worker.count(connection=django_rq.get_connection("imports")) == 1
