"""What RQ's own records say of our jobs, for its pages and for whoever asks RQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import django_rq
import pytest
from rq import Retry, Worker
from rq.defaults import UNSERIALIZABLE_RETURN_VALUE_PAYLOAD
from rq.job import Job, JobStatus
from rq.results import Result

from tenant_slots import queue_directory
from tenant_slots.models import ENDED, State, TenantJob
from tests.factories import fresh
from tests.history import History
from tests.jobs import wait_for_file
from tests.processes import Workers, is_announced, wait_until
from tests.workers import jobs

CLASSES = ["tenant_slots.workers.TenantWorker", "tenant_slots.workers.TenantPreforkWorker"]

pytestmark = pytest.mark.parametrize("worker_class", CLASSES)


def queue() -> Any:
    return queue_directory.queue_named("imports")


def record(job: TenantJob) -> Job:
    job.refresh_from_db()
    found: Job = queue().fetch_job(job.rq_id)
    assert found is not None, "RQ has forgotten the job"
    return found


def run(workers: Workers, worker_class: str) -> None:
    assert workers.run("--burst", worker_class=worker_class).returncode == 0


def test_results_of_every_kind_are_kept_as_rq_keeps_them(workers: Workers, worker_class: str) -> None:
    enqueued = {kind: jobs.give.enqueue("acme", kind) for kind in jobs.RESULTS}
    run(workers, worker_class)
    records = {kind: record(job) for kind, job in enqueued.items()}
    expected = {kind: jobs.RESULTS[kind]() for kind in jobs.RESULTS}
    expected["unpicklable"] = UNSERIALIZABLE_RETURN_VALUE_PAYLOAD
    assert {kind: one.return_value() for kind, one in records.items()} == expected
    assert {one.latest_result().type for one in records.values()} == {Result.Type.SUCCESSFUL}
    assert {one.get_status() for one in records.values()} == {JobStatus.FINISHED}
    for one in records.values():
        assert one.enqueued_at <= one.started_at <= one.ended_at
        assert one.id in queue().finished_job_registry
        assert 0 < queue().connection.ttl(one.key) <= 500
    assert fresh(enqueued["plain"]).result == expected["plain"]
    assert fresh(enqueued["of a class"]).result is None
    assert not queue().started_job_registry.get_job_count()
    assert not queue().intermediate_queue.get_job_ids()


def test_a_projects_class_of_jobs_performs_each_however_its_worker_came_to_it(
    workers: Workers, worker_class: str
) -> None:
    """The first one stands in RQ's list."""
    enqueued = [jobs.give.enqueue("acme", "plain") for _ in range(2)]
    assert len(queue().job_ids) == 1
    options = ("--job-class", "tests.workers.classes.WrappingJob")
    assert workers.run("--burst", *options, worker_class=worker_class).returncode == 0
    assert [record(job).return_value() for job in enqueued] == [["wrapped", jobs.RESULTS["plain"]()]] * 2
    assert [fresh(job).result for job in enqueued] == [jobs.RESULTS["plain"]()] * 2


def test_a_failure_is_kept_without_its_error(workers: Workers, worker_class: str) -> None:
    failed = jobs.fail.enqueue("acme", "no such feed")
    run(workers, worker_class)
    one = record(failed)
    result = one.latest_result()
    assert (one.get_status(), result.type) == (JobStatus.FAILED, Result.Type.FAILED)
    assert result.exc_string.startswith(f"Job {failed.uuid} of tenant_slots has failed.")
    assert "no such feed" not in result.exc_string
    assert one.id in queue().failed_job_registry
    assert one.id not in queue().finished_job_registry
    assert one.return_value() is None


def test_nothing_is_left_of_a_job_whose_result_is_not_wanted(workers: Workers, worker_class: str) -> None:
    forgotten, kept = jobs.give_and_forget.enqueue("acme"), jobs.give.enqueue("acme", "plain")
    run(workers, worker_class)
    assert fresh(forgotten).state == State.FINISHED
    assert [key for key in queue().connection.keys(f"*{forgotten.uuid}*") if b"result" not in key] == []
    assert queue().connection.keys(f"*{kept.uuid}*"), "this would find those of another job"
    assert forgotten.rq_id not in queue().finished_job_registry


def test_what_a_job_saves_in_its_meta_stays(workers: Workers, worker_class: str) -> None:
    saves = jobs.save_meta.enqueue("acme")
    run(workers, worker_class)
    assert record(saves).meta["rows"] == 7


def test_rq_knows_a_job_that_lasts_and_counts_those_that_ended(
    workers: Workers, worker_class: str, history: History, tmp_path: Path
) -> None:
    workers.start(1, worker_class=worker_class)
    door = tmp_path / "door"
    lasting = wait_for_file.enqueue("acme", "lasting", history.path, str(door))
    wait_until(lambda: is_announced(lasting))
    (worker,) = Worker.all(connection=django_rq.get_connection("imports"))
    assert worker.get_current_job_id() == lasting.rq_id
    assert record(lasting).worker_name == worker.name
    assert queue().started_job_registry.get_job_ids() == [lasting.rq_id]
    door.touch()
    rows = [lasting, jobs.process.enqueue("acme"), jobs.fail.enqueue("acme", "odd")]
    wait_until(lambda: all(fresh(row).state in ENDED for row in rows))

    def counted() -> tuple[int, int]:
        worker.refresh()
        return worker.successful_job_count, worker.failed_job_count

    wait_until(lambda: counted() == (2, 1), message="RQ has not counted all of them")
    assert worker.total_working_time > 0
    wait_until(lambda: worker.get_current_job_id() is None)
    assert not queue().started_job_registry.get_job_count()


def test_a_projects_exception_handler_is_called_where_the_job_ran(
    workers: Workers, worker_class: str, history: History
) -> None:
    workers.variables |= {"TEST_EXCEPTION_HANDLERS": "tests.workers.handlers.note_error"}
    workers.start(1, worker_class=worker_class)
    job = jobs.run.enqueue("acme", "bad", history.path, "fails")
    wait_until(lambda: fresh(job).state == State.FAILED)
    wait_until(lambda: len(history.events()) == 2)
    ran, handled = history.events()
    assert (ran.kind, handled.kind) == ("run", "ValueError")
    assert ran.pid == handled.pid != workers.processes[0].pid


def test_of_a_plain_job_nothing_is_left_that_rq_would_take_for_one_that_never_ran(
    workers: Workers, worker_class: str
) -> None:
    """RQ fails what it finds in its intermediate list for a minute, or has it run again, though it has ended (2.12)."""
    for one in (worker_class, "tenant_slots.workers.TenantSimpleWorker"):
        plain = [queue().enqueue(jobs.give, "acme", "plain", result_ttl=-1, retry=Retry(1)) for _ in range(2)]
        assert workers.run("--burst", queues=("reports", "imports"), worker_class=one).returncode == 0
        assert {job.get_status() for job in plain} == {JobStatus.FINISHED}
        assert not queue().intermediate_queue.get_job_ids()
