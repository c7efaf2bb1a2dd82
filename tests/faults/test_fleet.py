"""Which workers are alive, after what RQ's records do not survive, or outlive."""

from __future__ import annotations

import signal
from pathlib import Path

import django_rq
import pytest
from redis import Redis
from rq import Worker

from tenant_slots import fleet
from tenant_slots.workers.presence import SECONDS_BETWEEN_SIGNS
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


def sign_of(worker: str, connection: Redis) -> float:
    """Until when it counts as there."""
    return float(connection.zscore("tenant_slots:workers:imports", f"rq:worker:{worker}") or 0)


SILENT = pytest.param("tests.faults.workers.SilentWorker", False, id="control: says nothing")


@pytest.mark.parametrize(("worker_class", "says"), [*((f"tenant_slots.workers.{name}", True) for name in OURS), SILENT])
def test_a_worker_says_that_it_is_there_for_as_long_as_its_job_runs(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str, says: bool
) -> None:
    """In the order of tenants, and in RQ's record, which else is over with the job's timeout, or after 7 minutes."""
    workers.start(1, worker_class=worker_class)
    jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    (member,) = of_imports()
    connection = django_rq.get_connection("imports")
    before = sign_of(member.name, connection)
    connection.expire(f"rq:worker:{member.name}", 30)

    def is_renewed() -> bool:
        return sign_of(member.name, connection) > before and connection.ttl(f"rq:worker:{member.name}") > 30

    if says:
        wait_until(is_renewed)
    else:
        with pytest.raises(AssertionError):
            wait_until(is_renewed, timeout=2 * SECONDS_BETWEEN_SIGNS)


@pytest.mark.parametrize("worker_class", OURS)
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_after_a_flushall_rq_knows_a_worker_again(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str, is_busy: bool
) -> None:
    workers.start(1, worker_class=f"tenant_slots.workers.{worker_class}")
    if is_busy:
        jobs.hold.enqueue("acme", "long", observer.path, str(door))
        observer.process_of("long")
    (before,) = of_imports()
    django_rq.get_connection("imports").flushall()
    wait_until(lambda: [member.is_alive for member in of_imports()] == [True])
    (after,) = of_imports()
    assert (after.name, after.queues, after.pid) == (before.name, before.queues, before.pid)
    assert Worker.count(connection=django_rq.get_connection("imports")) == 1
