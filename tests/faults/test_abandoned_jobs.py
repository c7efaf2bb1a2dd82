"""Plain RQ jobs whose worker was killed: who finds them has RQ call their callbacks, which are the project's."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django_rq
import pytest
from rq import Callback
from rq.job import Dependency, Job, JobStatus
from rq.queue import Queue

from tenant_slots.models import State
from tenant_slots.workers import TenantPreforkWorker
from tenant_slots.workers.aside import Aside
from tests.factories import fresh
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

CLASSES = pytest.mark.parametrize(
    "worker_class", ["tenant_slots.workers.TenantPreforkWorker", "tenant_slots.workers.TenantWorker"]
)


def on_failure(job: Job, *_: Any) -> None:
    path, how = job.args
    Path(path).write_text(str(os.getpid()))
    if how == "exits":
        raise SystemExit(3)
    if how == "raises":
        raise ValueError
    if how == "kills":
        os._exit(3)
    if how == "hangs":
        time.sleep(3600)


def never_called(path: str, how: str) -> None:
    pytest.fail("its worker was killed")


def abandoned_job(path: Path, how: str, name: str = "imports", **options: Any) -> Job:
    """As it is found some time after its worker was killed."""
    queue = django_rq.get_queue(name)
    callback = Callback(on_failure, timeout=600)
    job = queue.create_job(never_called, (str(path), how), on_failure=callback, status=JobStatus.STARTED, **options)
    job.save()
    queue.connection.zadd(queue.started_job_registry.key, {f"{job.id}:execution": time.time() - 100})
    return job


@CLASSES
@pytest.mark.parametrize("how", ["returns", "exits", "hangs"])
def test_i8_their_callbacks_are_called_in_no_workers_own_process(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, how: str, worker_class: str
) -> None:
    path = tmp_path / "called"
    abandoned = abandoned_job(path, how)
    (worker,) = workers.start(1, worker_class=worker_class)
    wait_until(path.exists, 20, "the callback was not called")
    job = jobs.quick.enqueue("acme", "other", observer.path)
    wait_until(lambda: fresh(job).has_ended or worker.poll() is not None, 20, "the worker stands still")
    assert (worker.poll(), job.state) == (None, State.FINISHED)
    assert int(path.read_text()) != worker.pid
    if how == "returns":
        wait_until(lambda: abandoned.get_status() == JobStatus.FAILED, 10, "the control: RQ goes on")


@CLASSES
def test_a_burst_worker_does_not_leave_before_what_depends_on_them_has_run(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str
) -> None:
    abandoned = abandoned_job(tmp_path / "called", "returns")
    queue = django_rq.get_queue("imports")
    depends_on = Dependency(abandoned, allow_failure=True)
    queue.enqueue(jobs.quick, "plain", "dependent", observer.path, depends_on=depends_on)
    assert workers.run("--burst", worker_class=worker_class).returncode == 0
    assert "dependent" in observer.started()


@CLASSES
def test_i8_a_burst_worker_runs_what_others_enqueue_while_a_callback_hangs_and_ends_when_it_is_asked_to(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str
) -> None:
    """It waited for a lease, after each job, and twice before it ended."""
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps({**SHORT, "LEASE_TTL": 20})
    path = tmp_path / "called"
    abandoned_job(path, "hangs")
    (worker,) = workers.start(1, "--burst", worker_class=worker_class)
    wait_until(path.exists, 20, "the callback was not called")
    for nth in range(2):
        job = jobs.quick.enqueue("acme", f"other-{nth}", observer.path)
        wait_until(lambda: fresh(job).has_ended, 10, "it waits for the callback")  # noqa: B023 - called at once
    assert worker.poll() is None, "the control: it waits for what RQ may run again"
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 0


def test_a_burst_worker_leaves_though_a_callback_hangs(workers: FaultWorkers, tmp_path: Path) -> None:
    path = tmp_path / "called"
    abandoned_job(path, "hangs")
    assert workers.run("--burst", worker_class="tenant_slots.workers.TenantPreforkWorker").returncode == 0
    assert path.exists(), "the control: it is called"


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_a_callback_that_fails_keeps_nobody_from_cleaning_queues(tmp_path: Path, how: str) -> None:
    """RQ would let nobody do so for a quarter of an hour, and would leave out the queues behind."""
    queues: list[Queue] = [django_rq.get_queue(name) for name in ("imports", "reports")]
    fails = abandoned_job(tmp_path / "first", how)
    other = abandoned_job(tmp_path / "other", "returns", "reports")
    with worker_of(queues) as worker:
        worker.clean_registries()
        answer = worker._cleaning.answer(20)
    assert answer is not None
    assert answer.is_whole
    assert (fails.get_status(), other.get_status()) == (JobStatus.STARTED, JobStatus.FAILED)
    assert queues[0].acquire_maintenance_lock()


def test_a_callback_that_kills_its_process_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    abandoned_job(tmp_path / "called", "kills")
    with worker_of([django_rq.get_queue("imports")]) as worker:
        worker.clean_registries()
        worker._note_cleaned(20)
    assert "RQ's registries are not cleaned" in caplog.text
    assert worker.should_run_maintenance_tasks, "other queues are still to be cleaned"


@pytest.mark.parametrize("has_room", [False, pytest.param(True, id="control")])
def test_a_cleaning_for_which_there_is_no_room_is_tried_again_soon(
    has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_room:
        monkeypatch.setattr(Aside, "start", lambda *_: False)
    with worker_of([django_rq.get_queue("imports")]) as worker:
        worker.sweeper.put_off()
        worker.clean_registries()
        worker._note_cleaned(20)
        assert worker.should_run_maintenance_tasks is not has_room


@contextmanager
def worker_of(queues: list[Queue]) -> Iterator[TenantPreforkWorker]:
    worker = TenantPreforkWorker(queues, connection=queues[0].connection)
    try:
        yield worker
    finally:
        worker.heartbeats.stop()
