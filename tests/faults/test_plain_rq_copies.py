"""A plain RQ job is delivered to two workers: by a sweep, in the same moment, or as it was enqueued anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import django_rq
import pytest
from rq import Retry
from rq.job import Job, JobStatus

from tenant_slots import dispatch, rq_copies
from tenant_slots.models import State, TenantJob
from tenant_slots.repair import steps
from tenant_slots.repair.report import Report
from tests.factories import DeafWorker, age, counters_match, in_rq, tenant_queue
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer
from tests.processes import wait_until
from tests.repair.sweeps import LongContact

pytestmark = pytest.mark.django_db(transaction=True)

CLASSES = ["rq.Worker", "rq.worker.SpawnWorker", "tenant_slots.workers.TenantWorker"]
"""With a process for each job: a warm work-horse has imported the module when the job was deferred."""


@pytest.mark.parametrize("worker_class", CLASSES)
@pytest.mark.parametrize("sees", [True, pytest.param(False, id="control")])
def test_i4_a_plain_job_whose_process_imports_its_module_for_long_is_not_pushed_again_and_runs_once(
    workers: FaultWorkers,
    observer: Observer,
    door: Path,
    monkeypatch: pytest.MonkeyPatch,
    worker_class: str,
    sees: bool,
) -> None:
    """A sweep that did not see it would push it again: the copy does nothing."""
    reached = door.with_suffix(".reached")
    workers.variables["TEST_IMPORT_DOOR"] = str(door)
    row, queue = tenant_queue("acme", max_job=0), django_rq.get_queue("imports")
    door.touch()
    workers.start(worker_class=worker_class)
    rq_job = queue.enqueue("tests.faults.slow_to_import.quick", "acme", "once", observer.path)
    wait_until(lambda: len(queue.scheduled_job_registry) == 1, message="it is deferred")
    door.unlink()
    reached.unlink()
    row.set_limit(1)
    wait_until(reached.exists, message="a worker takes it")
    job = TenantJob.objects.get()
    age(job, admitted_at=6)
    assert (job.state, in_rq()) == (State.QUEUED, 0)
    if not sees:
        monkeypatch.setattr(dispatch, "_under_way", lambda queue: set())
    report = Report()
    steps.repush(report, LongContact())
    assert (report.repushed, in_rq()) == ((0, 0) if sees else (1, 1))
    door.touch()
    wait_until(lambda: in_rq() == queue.started_job_registry.count == 0, message="all that was delivered has ended")
    assert observer.started() == ["once"]
    assert [job.state for job in TenantJob.objects.all()] == [State.FINISHED]
    assert rq_job.is_finished


@pytest.mark.parametrize("moment", ["after it has asked", pytest.param("before it asks", id="control")])
@pytest.mark.parametrize("is_put_off", [False, True])
def test_i4_of_two_deliveries_at_the_same_moment_one_runs(
    workers: FaultWorkers, observer: Observer, monkeypatch: pytest.MonkeyPatch, moment: str, is_put_off: bool
) -> None:
    """The other one begins and ends while this one asks the project for its tenant, and the database for its row."""
    queue, row = django_rq.get_queue("imports"), tenant_queue("acme", max_job=0 if is_put_off else 5)
    here = DeafWorker([queue], connection=queue.connection)
    rq_job = queue.enqueue(jobs.quick, "acme", "once", observer.path)
    if is_put_off:  # RQ's scheduler pushes it as its turn comes
        here.work(burst=True, logging_level="ERROR")
        row.set_limit(5)
    queue.push_job_id(rq_job.id)
    assert in_rq() == 2
    row_of = rq_copies.row_of

    def meanwhile(delivered: Job) -> Any:
        monkeypatch.undo()
        found = row_of(delivered) if moment == "after it has asked" else None
        workers.run("--burst", worker_class="rq.Worker")
        assert observer.ended("once")
        return found if moment == "after it has asked" else row_of(delivered)

    monkeypatch.setattr(rq_copies, "row_of", meanwhile)
    here.work(burst=True, max_jobs=1, logging_level="ERROR")
    assert (observer.started(), rq_job.get_status()) == (["once"], JobStatus.FINISHED)
    made = [State.FINISHED] if moment == "before it asks" else [State.CANCELED, State.FINISHED]
    assert sorted(job.state for job in TenantJob.objects.all()) == made
    assert (queue.scheduled_job_registry.count, in_rq(), counters_match()) == (0, 0, True)


@pytest.mark.parametrize(
    ("worker_class", "by_its_id"),
    [
        ("tenant_slots.workers.TenantPreforkWorker", False),
        ("tenant_slots.workers.TenantSimpleWorker", True),
        ("rq.Worker", True),
    ],
)
@pytest.mark.parametrize("count", [2, pytest.param(1, id="control")])
def test_i3_i4_a_job_that_is_enqueued_anew_while_it_runs_runs_again_after_that(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str, by_its_id: bool, count: int
) -> None:
    """Also where a worker is free to take it meanwhile; with room for more jobs of the tenant."""
    queue, arguments = django_rq.get_queue("imports"), ("acme", "nightly", observer.path, str(door))
    tenant_queue("acme", max_job=5)
    workers.start(count, worker_class=worker_class)
    rq_job = queue.enqueue(jobs.hold, *arguments, job_id="nightly")
    observer.process_of("nightly")
    if by_its_id:
        queue.enqueue(jobs.hold, *arguments, job_id="nightly")
    else:
        queue.enqueue_job(Job.fetch("nightly", queue.connection))
    wait_until(lambda: count == 1 or queue.scheduled_job_registry.count == 1, message="the other worker puts it off")
    assert observer.started() == ["nightly"]
    door.touch()
    wait_until(lambda: TenantJob.objects.filter(state=State.FINISHED).count() == 2, 10, "it does not run again")
    assert observer.started() == ["nightly"] * 2
    wait_until(lambda: rq_job.get_status() == JobStatus.FINISHED and queue.started_job_registry.count == 0)
    assert (queue.scheduled_job_registry.count, in_rq()) == (0, 0)


@pytest.mark.parametrize("interval", [0, 3600])
def test_i4_a_run_that_rq_takes_for_dead_and_retries_runs_once(
    workers: FaultWorkers, observer: Observer, door: Path, interval: int
) -> None:
    """RQ enqueues it as anew as anybody does."""
    queue, arguments = django_rq.get_queue("imports"), ("acme", "long", observer.path, str(door))
    tenant_queue("acme", max_job=5)
    workers.start(2, worker_class="rq.Worker")
    queue.enqueue(jobs.hold, *arguments, retry=Retry(max=3, interval=interval))
    observer.process_of("long")
    registry = queue.started_job_registry
    for execution in registry.connection.zrange(registry.key, 0, -1):
        registry.connection.zadd(registry.key, {execution: 1})
    registry.cleanup()
    wait_until(lambda: queue.scheduled_job_registry.count == 1, message="RQ schedules it, or a worker puts it off")
    door.touch()
    wait_until(lambda: TenantJob.objects.filter(state=State.FINISHED).count() == 1)
    wait_until(lambda: queue.scheduled_job_registry.count == in_rq() == 0)
    assert observer.started() == ["long"]


@pytest.mark.parametrize(
    ("how", "is_taken"),
    [
        ("canceled", False),
        ("canceled", True),
        ("killed", False),
        ("killed", True),
        ("killed, with retries left", False),  # else RQ's retry is one more time
    ],
)
def test_i3_i4_another_call_that_is_enqueued_while_a_run_is_ended_by_force_runs_after_that(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str, how: str, is_taken: bool
) -> None:
    """RQ has the worker write what it had read of the first call, and enqueue that again where retries are left."""
    queue, retry = django_rq.get_queue("imports"), Retry(max=2) if how.endswith("left") else None
    tenant_queue("acme", max_job=5)
    worker_class = f"tenant_slots.workers.Tenant{kind}"
    workers.start(1 + is_taken, "--with-scheduler", worker_class=worker_class)
    queue.enqueue(jobs.hold, "acme", "first", observer.path, str(door), job_id="nightly", retry=retry)
    process = observer.process_of("first")
    queue.enqueue(jobs.hold, "acme", "second", observer.path, str(door), job_id="nightly")
    wait_until(lambda: not is_taken or queue.scheduled_job_registry.count == 1, message="the other worker puts it off")
    if how == "canceled":
        assert TenantJob.objects.get().cancel()
    else:
        os.kill(process, signal.SIGKILL)
    observer.process_of("second")
    door.touch()
    observer.wait_for_all()
    wait_until(lambda: queue.scheduled_job_registry.count == in_rq() == queue.started_job_registry.count == 0)
    assert observer.started() == ["first", "second"]
    assert counters_match()
