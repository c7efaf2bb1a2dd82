"""A sweep, while a process that is to run a plain RQ job starts: the job has left RQ's list, and has not begun."""

from __future__ import annotations

from pathlib import Path

import django_rq
import pytest

from tenant_slots import dispatch
from tenant_slots.models import State, TenantJob
from tenant_slots.repair import steps
from tenant_slots.repair.report import Report
from tests.factories import age, in_rq, tenant_queue
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
