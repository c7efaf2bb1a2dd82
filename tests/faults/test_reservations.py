"""Processes that hold a slot without being a job die, stand still, and wait beside real workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenant_slots.models import Kind, State, TenantJob, TenantQueue
from tests import jobs as plain_jobs
from tests.factories import counters_match, fresh, tenant_queue
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer
from tests.processes import ROOT, environment, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Owners:
    """The processes of one test, each of which holds a slot until its door is open."""

    def __init__(self, history: str, door: Path, variables: dict[str, str]) -> None:
        self._history, self._door, self._variables = history, door, variables
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, timeout: float = 60, tenant: str = "acme") -> subprocess.Popen[bytes]:
        arguments = [tenant, name, self._history, str(self._door), str(timeout)]
        command = [sys.executable, "-W", "ignore", "-m", "tests.faults.reserve", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env={**environment(), **self._variables})
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def owners(observer: Observer, door: Path, workers: FaultWorkers) -> Iterator[Owners]:
    started = Owners(observer.path, door, workers.variables)
    yield started
    started.end()


def reservations() -> list[str]:
    return list(TenantJob.objects.filter(kind=Kind.RESERVATION).order_by("pk").values_list("state", flat=True))


def test_the_slot_of_a_killed_owner_goes_to_the_waiting_job(
    workers: FaultWorkers, owners: Owners, observer: Observer
) -> None:
    tenant_queue()
    owner = owners.start("held")
    wait_until(lambda: observer.started() == ["held"])
    job = jobs.quick.enqueue("acme", "job", observer.path)
    workers.start(1)
    assert fresh(job).state == State.WAITING
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    wait_until(lambda: fresh(job).state == State.FINISHED)
    assert reservations() == ["failed"]
    assert counters_match()


def test_a_killed_one_that_waits_does_not_block_the_backlog(
    workers: FaultWorkers, owners: Owners, observer: Observer, door: Path
) -> None:
    tenant_queue()
    workers.start(1)
    first = jobs.hold.enqueue("acme", "first", observer.path, str(door))
    wait_until(lambda: fresh(first).state == State.RUNNING)
    waiting = owners.start("never")
    wait_until(lambda: reservations() == ["waiting"])
    last = jobs.quick.enqueue("acme", "last", observer.path)
    os.kill(waiting.pid, signal.SIGKILL)
    waiting.wait()
    door.touch()
    wait_until(lambda: fresh(last).state == State.FINISHED)
    assert reservations() == ["canceled"]
    assert observer.started() == ["first", "last"]
    assert TenantQueue.objects.get().current_job == 0


def test_one_that_stands_still_after_its_admission_loses_its_slot_again(
    workers: FaultWorkers, owners: Owners, observer: Observer, door: Path
) -> None:
    tenant_queue(max_job=0)
    waiting = owners.start("never")
    wait_until(lambda: reservations() == ["waiting"])
    os.kill(waiting.pid, signal.SIGSTOP)
    workers.start(1)
    row = TenantQueue.objects.get()
    row.max_job = 1
    row.save()
    job = jobs.quick.enqueue("acme", "job", observer.path)
    wait_until(lambda: fresh(job).state == State.FINISHED)
    os.kill(waiting.pid, signal.SIGCONT)
    assert waiting.wait(15) != 0, "it must be told that it got no slot"
    assert (reservations(), observer.started()) == (["canceled"], ["job"])


def test_one_that_stands_still_while_it_holds_is_fenced_and_lives(
    workers: FaultWorkers, owners: Owners, observer: Observer, door: Path
) -> None:
    tenant_queue()
    owner = owners.start("held")
    wait_until(lambda: observer.started() == ["held"])
    job = jobs.quick.enqueue("acme", "job", observer.path)
    os.kill(owner.pid, signal.SIGSTOP)
    workers.start(1)
    wait_until(lambda: fresh(job).state == State.FINISHED)
    last = TenantQueue.objects.get()
    os.kill(owner.pid, signal.SIGCONT)
    door.touch()
    assert owner.wait(15) == 0, "its process must not have been killed"
    assert (reservations(), fresh(last).current_job) == (["failed"], 0)


def test_jobs_and_reservations_share_one_limit(
    workers: FaultWorkers, owners: Owners, observer: Observer, door: Path
) -> None:
    tenant_queue(max_job=2)
    door.touch()
    workers.start(2)
    several = [jobs.quick.enqueue("acme", f"job-{number}", observer.path, 0.1) for number in range(6)]
    for number in range(4):
        owners.start(f"held-{number}")
    several += [jobs.quick.enqueue("acme", f"late-{number}", observer.path, 0.1) for number in range(6)]
    assert [process.wait(60) for process in owners.processes] == [0, 0, 0, 0]
    wait_until(lambda: all(fresh(job).state == State.FINISHED for job in several))
    assert reservations() == ["finished"] * 4
    assert counters_match()


def test_a_job_on_a_real_worker_holds_a_slot_of_another_queue(workers: FaultWorkers) -> None:
    workers.start(1, queues=("reports",))
    job = plain_jobs.hold_inside.enqueue("acme")
    wait_until(lambda: fresh(job).has_ended)
    assert (job.state, job.result, reservations()) == (State.FINISHED, 1, ["finished"])
    assert counters_match()
