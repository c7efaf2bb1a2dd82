"""Plain RQ jobs that depend on one of ours: to enqueue them RQ reads their meta, which is pickled by the project."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import django_rq
import pytest
from rq import get_current_job

from tenant_slots import tenant_job
from tenant_slots.models import State
from tests.factories import fresh
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def read_back(path: str) -> dict[str, Any]:
    """Called where the meta is read."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    if path.endswith("exits"):
        raise SystemExit("as in the import of a module")
    if path.endswith("slow"):
        time.sleep(1)
    if path.endswith("hangs"):
        time.sleep(3600)
    return {}


class OfProject:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return read_back, (self.path,)


def enqueue_dependent(history: str, **meta: object) -> None:
    time.sleep(0.5)  # RQ has heard of the job by now
    parent = get_current_job()
    django_rq.get_queue("imports").enqueue(jobs.quick, "plain", "dependent", history, depends_on=parent, meta=meta)


@tenant_job("imports", tenant="tenant")
def has_dependent(tenant: str, path: str, history: str) -> None:
    enqueue_dependent(history, of_project=OfProject(path))


@tenant_job("imports", tenant="tenant", result_ttl=0)
def has_dependent_and_no_result(tenant: str, path: str, history: str) -> None:
    enqueue_dependent(history, of_project=OfProject(path))


@tenant_job("imports", tenant="tenant")
def has_dependent_and_no_room(tenant: str, no_room: str, history: str) -> None:
    enqueue_dependent(history)
    Path(no_room).touch()


CLASSES = pytest.mark.parametrize(
    "worker_class", ["tenant_slots.workers.TenantPreforkWorker", "tenant_slots.workers.TenantWorker"]
)


@CLASSES
@pytest.mark.parametrize("task", [has_dependent, has_dependent_and_no_result], ids=["result", "no result"])
@pytest.mark.parametrize("end", ["returns", "exits", "hangs"])
def test_i8_nothing_of_the_project_is_read_in_the_workers_own_process(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str, end: str, task: Any
) -> None:
    """Of a job whose result it does not keep RQ enqueues them in the transaction in which it forgets the job."""
    (worker,) = workers.start(1, worker_class=worker_class)
    path = tmp_path / end
    first = task.enqueue("whale", str(path), observer.path)
    wait_until(path.exists, 20, "the meta was read by nobody")
    other = jobs.quick.enqueue("acme", "other", observer.path)
    wait_until(lambda: fresh(other).has_ended or worker.poll() is not None, 20, "the worker stands still")
    assert (worker.poll(), other.state, fresh(first).state) == (None, State.FINISHED, State.FINISHED)
    if end == "returns":
        wait_until(lambda: "dependent" in observer.started(), 10, "the control: it is enqueued")


@CLASSES
def test_i8_another_tenants_job_is_watched_while_what_depends_on_a_job_hangs(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str
) -> None:
    """Its end was looked at once RQ had been waited for, for a lease."""
    lease = 8  # far longer than a slow machine takes for a job
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps({**SHORT, "LEASE_TTL": lease})
    workers.start(1, worker_class=worker_class)
    path = tmp_path / "hangs"
    first = has_dependent.enqueue("whale", str(path), observer.path)
    wait_until(lambda: fresh(first).state == State.RUNNING)
    others = [jobs.quick.enqueue("acme", f"other-{n}", observer.path) for n in range(5)]
    wait_until(lambda: all(fresh(job).has_ended for job in others), 20)
    wait_until(path.exists, 10, "the control: it is read")
    longest = max((job.ended_at - job.started_at).total_seconds() for job in others)
    assert longest < lease / 2, "no job had its slot for the time that another one's dependents take"


def test_i2_what_depends_on_a_job_is_enqueued_once_there_is_room_for_a_process(
    workers: FaultWorkers, observer: Observer, tmp_path: Path
) -> None:
    no_room = tmp_path / "no_room"
    workers.variables["TEST_NO_ROOM"] = str(no_room)
    workers.start(1, worker_class="tests.faults.workers.CrowdedPreforkWorker")
    job = has_dependent_and_no_room.enqueue("acme", str(no_room), observer.path)
    wait_until(lambda: fresh(job).has_ended, 20)
    assert "dependent" not in observer.started()
    no_room.unlink()
    wait_until(lambda: "dependent" in observer.started(), 20)


@CLASSES
def test_a_burst_worker_does_not_leave_before_what_depends_on_its_last_job_has_run(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str
) -> None:
    has_dependent.enqueue("acme", str(tmp_path / "slow"), observer.path)
    assert workers.run("--burst", worker_class=worker_class).returncode == 0
    assert "dependent" in observer.started()


@CLASSES
def test_i8_while_it_waits_for_that_it_runs_what_others_enqueue(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str
) -> None:
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps({**SHORT, "LEASE_TTL": 20})
    path = tmp_path / "hangs"
    has_dependent.enqueue("whale", str(path), observer.path)
    (worker,) = workers.start(1, "--burst", worker_class=worker_class)
    wait_until(path.exists, 20, "the meta was read by nobody")
    other = jobs.quick.enqueue("acme", "other", observer.path)
    wait_until(lambda: fresh(other).has_ended, 20)
    assert len(path.read_text().split()) == 1, "not only when it was given up"
    assert worker.poll() is None, "the control: it still waits"


def test_i8_those_of_one_tenant_that_take_long_come_after_all_of_another_one(
    workers: FaultWorkers, observer: Observer, tmp_path: Path
) -> None:
    """In turn, each job of the other one would wait until one that hangs is given up."""
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps({**SHORT, "LEASE_TTL": 8})
    path, quick = tmp_path / "hangs", tmp_path / "returns"
    whales = [has_dependent.enqueue("whale", str(path), observer.path) for _ in range(3)]
    workers.start(1, worker_class="tenant_slots.workers.TenantPreforkWorker")
    wait_until(path.exists, 20, "the meta was read by nobody")
    acmes = [has_dependent.enqueue("acme", str(quick), observer.path) for _ in range(3)]
    wait_until(lambda: all(fresh(job).has_ended for job in (*whales, *acmes)), 20)
    wait_until(lambda: len(observer.started()) == 3, 30, "they are enqueued")
    assert len(path.read_text().split()) <= 2, "the one at the beginning, and the next one behind all others"
