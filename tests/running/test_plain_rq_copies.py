"""RQ delivers twice what it has enqueued once. A copy that comes when the run has ended does nothing.

What RQ enqueues anew, by a retry or by hand, runs again.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import django_rq
import pytest
from redis.exceptions import ResponseError
from rq import Callback, Queue, Retry, get_current_job
from rq.job import Job, JobStatus
from rq.scheduler import RQScheduler

from tenant_slots import rq_copies, tenant_job
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs
from tenant_slots.running import beside
from tests import jobs
from tests.factories import DeafWorker, another_process, counters_match, in_rq, tenant_queue, work
from tests.history import History

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def queue() -> Queue:
    found: Queue = django_rq.get_queue("imports")
    return found


def deliver_copy(queue: Queue, rq_job: Job) -> None:
    """As after a sweep that has pushed the id again, and not enqueued the job."""
    queue.push_job_id(rq_job.id)
    work()


def states() -> list[str]:
    return list(TenantJob.objects.order_by("pk").values_list("state", flat=True))


def forget_enqueueing(rq_job: Job) -> None:
    """For the controls: without what tells a copy."""
    rq_job.connection.hdel(rq_job.key, rq_copies.RUN)


@pytest.mark.parametrize("is_told", [True, pytest.param(False, id="control")])
def test_a_copy_of_a_job_that_has_finished_runs_nothing_and_records_nothing(
    queue: Queue, history: History, is_told: bool
) -> None:
    rq_job = queue.enqueue(jobs.record, "acme", "once", history.path)
    work()
    is_told or forget_enqueueing(rq_job)
    deliver_copy(queue, rq_job)
    assert len(history.started()) == len(states()) == len(rq_job.results()) == (1 if is_told else 2)
    assert rq_job.get_status() == JobStatus.FINISHED
    assert rq_job.return_value(refresh=True) == "once"
    assert 0 < queue.connection.ttl(rq_job.key) <= 500
    assert counters_match()


@pytest.mark.parametrize("is_told", [True, pytest.param(False, id="control")])
def test_a_copy_of_a_job_that_has_failed_runs_nothing_and_records_nothing(queue: Queue, is_told: bool) -> None:
    rq_job = queue.enqueue(jobs.fail, "acme", failure_ttl=3600)
    work()
    is_told or forget_enqueueing(rq_job)
    deliver_copy(queue, rq_job)
    assert len(states()) == len(rq_job.results()) == (1 if is_told else 2)
    assert (rq_job.get_status(), queue.failed_job_registry.get_job_ids()) == (JobStatus.FAILED, [rq_job.id])
    assert 500 < queue.connection.ttl(rq_job.key) <= 3600, "it is to be requeued for as long"


def test_a_copy_of_a_job_whose_row_was_pruned_since_runs_nothing(queue: Queue, history: History) -> None:
    rq_job = queue.enqueue(jobs.record, "acme", "once", history.path)
    work()
    TenantJob.objects.all().delete()
    deliver_copy(queue, rq_job)
    assert (history.started(), states(), rq_job.get_status()) == (["once"], [], JobStatus.FINISHED)


def test_many_copies_run_nothing(queue: Queue, history: History) -> None:
    rq_job = queue.enqueue(jobs.record, "acme", "once", history.path)
    for _ in range(3):
        queue.push_job_id(rq_job.id)
    work()
    assert (history.started(), states()) == (["once"], [State.FINISHED])


def test_a_copy_of_a_job_that_deferred_itself_runs_nothing(queue: Queue, history: History) -> None:
    """The copy was pushed before the job ran, and comes after it."""
    row = tenant_queue(max_job=0)
    rq_job = queue.enqueue(jobs.record, "acme", "once", history.path)
    work()
    assert states() == [State.WAITING], "the control: it is deferred"
    row.set_limit(1)
    queue.push_job_id(rq_job.id)
    assert in_rq() == 2
    work()
    assert (history.started(), states()) == (["once"], [State.FINISHED])


def test_a_job_that_defers_itself_again_and_again_runs_when_its_turn_comes(queue: Queue, history: History) -> None:
    row = tenant_queue(max_job=0)
    rq_job = queue.enqueue(jobs.record, "acme", "once", history.path)
    for _ in range(3):
        work()
        queue.scheduled_job_registry.requeue(rq_job)
    work()
    assert (history.started(), states()) == ([], [State.WAITING])
    row.set_limit(1)
    work()
    assert (history.started(), states()) == (["once"], [State.FINISHED])


def test_a_copy_of_a_run_that_was_lost_runs_in_its_place(queue: Queue, history: History) -> None:
    rq_job = queue.enqueue(jobs.record, "acme", "again", history.path)
    work()
    TenantJob.objects.update(state=State.RUNNING, ended_at=None, **another_process(host="elsewhere").as_fields())
    TenantQueue.objects.update(current_job=1)
    assert lost_runs.end_lost_run(TenantJob.objects.get(), "its process died")
    assert states() == [State.FAILED]
    deliver_copy(queue, rq_job)
    assert (history.started(), states()) == (["again", "again"], [State.FAILED, State.FINISHED])


def test_a_failed_job_that_somebody_requeues_runs_again(queue: Queue) -> None:
    """As the button of RQ's pages does."""
    rq_job = queue.enqueue(jobs.fail, "acme")
    for runs in (1, 2, 3):
        work()
        assert states() == [State.FAILED] * runs
        rq_job.requeue()


def test_a_finished_job_that_somebody_enqueues_again_runs_again(queue: Queue, history: History) -> None:
    rq_job = queue.enqueue(jobs.record, "acme", "again", history.path)
    work()
    queue.enqueue_job(rq_job)
    work()
    assert (history.started(), states()) == (["again", "again"], [State.FINISHED] * 2)


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_rqs_retries_run_as_often_as_they_should_with_copies_or_without(queue: Queue, copies: int) -> None:
    rq_job = queue.enqueue(jobs.fail, "acme", retry=Retry(max=2))
    for _ in range(copies):
        queue.push_job_id(rq_job.id)
    work()
    assert states() == [State.FAILED] * 3
    assert (rq_job.get_status(), in_rq()) == (JobStatus.FAILED, 0)


def test_a_copy_leaves_a_retry_that_is_scheduled_to_rq(queue: Queue) -> None:
    rq_job = queue.enqueue(jobs.fail, "acme", retry=Retry(max=1, interval=3600), failure_ttl=1)
    work()
    deliver_copy(queue, rq_job)
    assert states() == [State.FAILED]
    assert (rq_job.get_status(), queue.scheduled_job_registry.get_job_ids()) == (JobStatus.SCHEDULED, [rq_job.id])
    assert queue.connection.ttl(rq_job.key) == -1, "its record would be gone before the retry"
    queue.scheduled_job_registry.requeue(rq_job.id)
    work()
    assert states() == [State.FAILED] * 2


def test_a_copy_that_was_taken_before_a_retry_leaves_that_one_in_its_list(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on its way, in a process that was slow to start, when the run failed and RQ enqueued the job again."""
    rq_job = queue.enqueue(jobs.fail, "acme")
    work()
    retried = Job.fetch(rq_job.id, queue.connection)
    row_of = rq_copies.row_of

    def retried_meanwhile(delivered: Job) -> Any:
        monkeypatch.undo()
        queue.enqueue_job(retried)
        return row_of(delivered)

    monkeypatch.setattr(rq_copies, "row_of", retried_meanwhile)
    queue.push_job_id(rq_job.id)
    DeafWorker([queue]).work(burst=True, max_jobs=1, logging_level="ERROR")
    assert (states(), in_rq(), rq_job.get_status()) == ([State.FAILED], 1, JobStatus.QUEUED)
    work()
    assert (states(), rq_job.get_status()) == ([State.FAILED] * 2, JobStatus.FAILED)


@pytest.mark.parametrize(
    ("asked", "made"),
    [("row_of", []), ("row_of_either", [State.CANCELED]), pytest.param("", [State.FINISHED], id="control")],
)
def test_a_copy_that_was_taken_before_rq_has_deleted_its_record_runs_nothing(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, asked: str, made: list[str]
) -> None:
    """As at the end of a run with a ``result_ttl`` of 0. Nothing says of what the delivery is a copy then."""

    def after_the_end(delivered: Job) -> Any:
        monkeypatch.undo()
        Job.fetch(rq_job.id, queue.connection).delete()
        return getattr(rq_copies, asked)(delivered)

    if asked:
        monkeypatch.setattr(rq_copies, asked, after_the_end)
    rq_job = queue.enqueue(jobs.record, "acme", "once", history.path, result_ttl=0)
    work()
    assert (states(), len(history.started())) == (made, 0 if asked else 1)
    assert (queue.scheduled_job_registry.count, queue.connection.exists(rq_job.key)) == (0, 0)
    assert counters_match()


def test_a_run_whose_record_a_copy_has_deleted_before_rq_has_its_end_has_not_failed(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RQ finds no status then. What fails so would be retried."""
    has_ended = beside.has_ended

    def then_a_copy_comes(rq_job: Job, job: TenantJob) -> None:
        has_ended(rq_job, job)
        Job.fetch(rq_job.id, queue.connection).delete()

    monkeypatch.setattr(beside, "has_ended", then_a_copy_comes)
    rq_job = queue.enqueue(jobs.record, "acme", "once", history.path, result_ttl=0, retry=Retry(max=2))
    work()
    assert (history.started(), states()) == (["once"], [State.FINISHED])
    assert (queue.failed_job_registry.count, queue.connection.exists(rq_job.key)) == (0, 0)
    assert queue.connection.zcard(queue.started_job_registry.key) == 0


@pytest.mark.parametrize("is_told", [True, pytest.param(False, id="control")])
def test_a_job_that_rqs_scheduler_and_its_turn_push_in_the_same_moment_runs_once(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """RQ's scheduler reads what is due, enqueues it, and then takes it out of its registry without a look."""
    row = tenant_queue(max_job=0)
    rq_job = queue.enqueue(jobs.record, "acme", "once", history.path)
    work()
    queue.connection.zadd(queue.scheduled_job_registry.key, {rq_job.id: 1})
    fetch_many = Job.fetch_many

    def turn_comes(*args: Any, **options: Any) -> Any:
        found = fetch_many(*args, **options)
        row.set_limit(1)
        return found

    monkeypatch.setattr(Job, "fetch_many", turn_comes)
    scheduler = RQScheduler([queue], connection=queue.connection)
    scheduler.acquire_locks()
    scheduler.enqueue_scheduled_jobs()
    scheduler.release_locks()  # type: ignore[no-untyped-call]
    assert in_rq() == 2, "the control: both have pushed it"
    if not is_told:
        monkeypatch.setattr(rq_copies, "belong_to", lambda *_: None)
    work()
    assert len(history.started()) == len(states()) == (1 if is_told else 2)
    assert rq_job.get_status() == JobStatus.FINISHED


@pytest.mark.parametrize("state", ["deferred", "admitted"])
def test_a_job_that_is_canceled_when_a_worker_has_just_taken_it_does_not_run(
    queue: Queue, history: History, state: str
) -> None:
    row = tenant_queue(max_job=0)
    rq_job = queue.enqueue(jobs.record, "acme", "never", history.path)
    work()
    row.set_limit(1) if state == "admitted" else queue.scheduled_job_registry.requeue(rq_job.id)
    assert queue.connection.lpop(queue.key) == rq_job.id.encode()
    assert TenantJob.objects.get().cancel()
    deliver_copy(queue, rq_job)
    assert (history.started(), states(), rq_job.get_status()) == ([], [State.CANCELED], JobStatus.CANCELED)


def test_a_canceled_job_that_somebody_enqueues_again_runs(queue: Queue, history: History) -> None:
    tenant_queue(max_job=0)
    rq_job = queue.enqueue(jobs.record, "acme", "again", history.path)
    work()
    assert TenantJob.objects.get().cancel()
    TenantJob.objects.get().tenant_queue.set_limit(1)
    queue.enqueue_job(Job.fetch(rq_job.id, queue.connection))
    work()
    assert (history.started(), states()) == (["again"], [State.CANCELED, State.FINISHED])


def test_of_a_job_that_rq_has_forgotten_nothing_is_noted(queue: Queue, history: History) -> None:
    rq_job = queue.enqueue(jobs.record, "acme", "once", history.path)
    work()
    rq_job.delete()
    rq_copies.belong_to(TenantJob.objects.get().uuid, rq_job)
    assert not queue.connection.exists(rq_job.key), "a record that nobody would take away"


def test_a_redis_that_cannot_be_told_changes_no_outcome(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ResponseError("OOM command not allowed")

    monkeypatch.setattr(rq_copies, "belong_to", refuse)
    rq_job = queue.enqueue(jobs.record, "acme", "once", history.path)
    work()
    assert (history.started(), rq_job.get_status()) == (["once"], JobStatus.FINISHED)


@pytest.mark.parametrize("how", ["the job", "its id"])
def test_what_is_enqueued_anew_while_it_runs_runs_again(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """As a periodic job with an id of its own whose run takes longer than its period."""
    note = rq_copies.belong_to

    def enqueued_anew(uuid: UUID, rq_job: Job) -> None:
        note(uuid, rq_job)
        if TenantJob.objects.count() > 1:
            return
        if how == "the job":
            queue.enqueue_job(Job.fetch(rq_job.id, connection=queue.connection))
        else:
            queue.enqueue(jobs.record, "acme", "nightly", history.path, job_id=rq_job.id)

    monkeypatch.setattr(rq_copies, "belong_to", enqueued_anew)
    queue.enqueue(jobs.record, "acme", "nightly", history.path, job_id="nightly")
    work()
    assert history.started() == ["nightly"] * 2
    assert states() == ["finished"] * 2
    assert counters_match()


def enqueues_itself(rq_job: Job) -> None:
    """Once, by its id, as what runs on a schedule of its own does."""
    queue = django_rq.get_queue("imports")
    if queue.connection.incr("tests:enqueued anew") == 1:
        queue.enqueue(rq_job.func_name, *rq_job.args, job_id=rq_job.id)


def enqueue_again(rq_job: Job, connection: Any, result: Any) -> None:
    enqueues_itself(rq_job)


def test_what_its_callback_enqueues_anew_by_its_id_runs_again(queue: Queue, history: History) -> None:
    queue.enqueue(jobs.record, "acme", "tick", history.path, job_id="nightly", on_success=Callback(enqueue_again))
    work()
    assert (history.started(), states()) == (["tick"] * 2, [State.FINISHED] * 2)


@tenant_job("imports", tenant="tenant")
def saves_its_job(tenant: str, name: str, history: str) -> None:
    rq_job = get_current_job()
    assert rq_job is not None
    enqueues_itself(rq_job)
    rq_job.meta["progress"] = 50
    rq_job.save()
    jobs.note(history, "start", tenant, name)


def test_so_does_what_was_enqueued_before_the_function_saves_its_job(queue: Queue, history: History) -> None:
    rq_job = queue.enqueue(saves_its_job, "acme", "tick", history.path, job_id="nightly")
    work()
    assert (history.started(), states()) == (["tick"] * 2, [State.FINISHED] * 2)
    assert rq_job.get_meta() == {"progress": 50}


def test_control_where_a_save_writes_back_what_was_delivered_it_is_taken_for_a_copy(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rq_copies, "keep_latest", lambda *_: None)
    queue.enqueue(saves_its_job, "acme", "tick", history.path, job_id="nightly")
    work()
    assert history.started() == ["tick"]
