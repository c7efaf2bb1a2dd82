"""Plain RQ jobs whose worker was killed: who finds them has RQ call their callbacks, which are the project's."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import django_rq
import pytest
from rq import Callback
from rq.job import Dependency, Job, JobStatus

from tenant_slots.models import State
from tests.factories import fresh
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
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
    if how == "hangs":
        time.sleep(3600)


def never_called(path: str, how: str) -> None:
    pytest.fail("its worker was killed")


def abandoned_job(path: Path, how: str, **options: Any) -> Job:
    """As it is found some time after its worker was killed."""
    queue = django_rq.get_queue("imports")
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
