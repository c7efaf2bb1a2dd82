"""A plain RQ job that somebody ends in RQ itself, by its API or pages, while it is put off: it is not to run.

It is found when its turn comes: by whoever would bring it forward, or by a sweep that would push it again.
"""

from __future__ import annotations

from collections.abc import Callable

import django_rq
import pytest
from rq import Queue, Retry
from rq.job import Job, JobStatus

from tenant_slots import dispatch, signals
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running import deliveries
from tests import jobs
from tests.factories import DeafWorker, age, counters_match, fresh, tenant_queue, work
from tests.history import History
from tests.repair.sweeps import sweep_now
from tests.sleeping import replace_sleep

pytestmark = pytest.mark.django_db(transaction=True)

End = Callable[[Job], object]

CANCELED = "RQ's record of it was canceled"


def ended_as(status: JobStatus) -> End:
    def end(rq_job: Job) -> None:
        rq_job.set_status(status)
        Queue(rq_job.origin, connection=rq_job.connection).scheduled_job_registry.remove(rq_job)

    return end


ENDS = [
    pytest.param(Job.cancel, State.CANCELED, CANCELED, id="canceled"),
    pytest.param(Job.delete, State.FAILED, "RQ lost it with its arguments", id="deleted"),
    pytest.param(
        ended_as(JobStatus.FINISHED), State.CANCELED, "RQ's record of it says that it has finished", id="finished"
    ),
    pytest.param(
        ended_as(JobStatus.STOPPED), State.CANCELED, "RQ's record of it says that it was stopped", id="stopped"
    ),
    pytest.param(ended_as(JobStatus.FAILED), State.FAILED, "RQ's record of it says that it has failed", id="failed"),
]


@pytest.fixture
def row() -> TenantQueue:
    return tenant_queue(max_job=0)


@pytest.fixture
def queue() -> Queue:
    found: Queue = django_rq.get_queue("imports")
    return found


@pytest.fixture
def put_off(row: TenantQueue, queue: Queue, history: History) -> Job:
    """It has been delivered, and its tenant is busy."""
    rq_job: Job = queue.enqueue(jobs.record, "acme", "waited", history.path)
    work()
    assert TenantJob.objects.get().state == State.WAITING
    return rq_job


def let_time_pass() -> None:
    """A sweep looks for what has been in RQ's list for a while."""
    for job in TenantJob.objects.filter(state=State.QUEUED):
        age(job, admitted_at=30)
    sweep_now()
    work()


@pytest.mark.parametrize(("end", "state", "error"), ENDS)
def test_it_does_not_run_and_gives_its_slot_back_at_once(
    end: End, state: State, error: str, row: TenantQueue, put_off: Job, queue: Queue, history: History
) -> None:
    following = jobs.record.enqueue("acme", "following", history.path)
    end(Job.fetch(put_off.id, queue.connection))
    row.set_limit(1)
    job = TenantJob.objects.get(rq_job_id=put_off.id)
    assert job.state == state
    assert error in job.error
    assert fresh(following).state == State.QUEUED, "it has the slot"
    let_time_pass()
    assert (history.started(), counters_match()) == (["following"], True)


def test_control_one_that_nobody_has_ended_runs(row: TenantQueue, put_off: Job, history: History) -> None:
    row.set_limit(1)
    let_time_pass()
    assert (history.started(), put_off.get_status()) == (["waited"], JobStatus.FINISHED)


@pytest.mark.parametrize(("end", "state", "error"), ENDS)
def test_nor_does_one_that_is_ended_when_it_has_its_slot_and_is_in_rqs_list(
    end: End, state: State, error: str, row: TenantQueue, put_off: Job, queue: Queue, history: History
) -> None:
    row.set_limit(1)
    assert queue.job_ids == [put_off.id]
    end(Job.fetch(put_off.id, queue.connection))
    queue.remove(put_off.id)
    let_time_pass()
    job = TenantJob.objects.get()
    assert (job.state, history.started(), counters_match()) == (state, [], True)
    assert error.partition(" with")[0] in job.error


def test_rqs_record_and_receivers_say_canceled(row: TenantQueue, put_off: Job, queue: Queue) -> None:
    told: list[tuple[str, str]] = []

    def receive(job: TenantJob, **_: object) -> None:
        told.append((job.state, job.error))

    Job.fetch(put_off.id, queue.connection).cancel()
    signals.job_ended.connect(receive)
    try:
        row.set_limit(1)
    finally:
        signals.job_ended.disconnect(receive)
    assert told == [(State.CANCELED, CANCELED)]
    assert put_off.get_status() == JobStatus.CANCELED
    assert queue.canceled_job_registry.get_job_ids() == [put_off.id]


def test_a_copy_of_it_that_is_on_its_way_does_not_run_either(
    row: TenantQueue, put_off: Job, queue: Queue, history: History
) -> None:
    Job.fetch(put_off.id, queue.connection).cancel()
    row.set_limit(1)
    queue.push_job_id(put_off.id)
    work()
    assert (history.started(), put_off.get_status()) == ([], JobStatus.CANCELED)


def test_what_somebody_enqueues_again_afterwards_runs(
    row: TenantQueue, put_off: Job, queue: Queue, history: History
) -> None:
    Job.fetch(put_off.id, queue.connection).cancel()
    row.set_limit(1)
    queue.enqueue_job(Job.fetch(put_off.id, queue.connection))
    work()
    assert history.started() == ["waited"]
    assert set(TenantJob.objects.values_list("state", flat=True)) == {State.CANCELED, State.FINISHED}


def test_what_was_enqueued_again_before_its_turn_runs(
    row: TenantQueue, put_off: Job, queue: Queue, history: History
) -> None:
    Job.fetch(put_off.id, queue.connection).cancel()
    queue.enqueue_job(Job.fetch(put_off.id, queue.connection))
    row.set_limit(1)
    let_time_pass()
    assert (history.started(), TenantJob.objects.get().state) == (["waited"], State.FINISHED)


def test_one_that_rq_is_about_to_schedule_and_somebody_cancels_then_does_not_run(
    row: TenantQueue, queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of the delivery that finds no slot and RQ's note of it."""
    deferred = deliveries.deferred

    def canceled_before(rq_job: Job, seconds: float) -> Retry:
        Job.fetch(rq_job.id, queue.connection).cancel()
        return deferred(rq_job, seconds=seconds)

    monkeypatch.setattr(deliveries, "deferred", canceled_before)
    rq_job = queue.enqueue(jobs.record, "acme", "never", history.path)
    work()
    assert (rq_job.get_status(), queue.scheduled_job_registry.get_job_ids()) == (JobStatus.CANCELED, [])
    row.set_limit(1)
    let_time_pass()
    job = TenantJob.objects.get()
    assert (job.state, job.error, history.started()) == (State.CANCELED, CANCELED, [])


@pytest.mark.parametrize("is_canceled", [True, pytest.param(False, id="control")])
def test_one_that_is_canceled_while_its_turn_waits_for_rq_to_schedule_it_does_not_run(
    is_canceled: bool, row: TenantQueue, put_off: Job, queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.scheduled_job_registry.remove(put_off)
    pauses: list[float] = []

    def meanwhile(seconds: float) -> None:
        pauses.append(seconds)
        if is_canceled:
            Job.fetch(put_off.id, queue.connection).cancel()
        else:
            queue.scheduled_job_registry.add(put_off, ttl=60)

    replace_sleep(monkeypatch, meanwhile)
    row.set_limit(1)
    monkeypatch.undo()
    assert pauses == [dispatch.DEFER_PAUSES[0]]
    work()
    assert history.started() == ([] if is_canceled else ["waited"])
    assert TenantJob.objects.get().state == (State.CANCELED if is_canceled else State.FINISHED)


def test_many_that_were_canceled_are_not_too_deep_for_pythons_stack(
    row: TenantQueue, queue: Queue, history: History
) -> None:
    many = [queue.enqueue(jobs.record, "acme", "never", history.path) for _ in range(60)]
    work()
    for rq_job in many:
        Job.fetch(rq_job.id, queue.connection).cancel()
    row.set_limit(1)
    assert set(TenantJob.objects.values_list("state", flat=True)) == {State.CANCELED}
    assert counters_match()


def test_a_worker_passes_over_it_and_runs_the_next_one(
    row: TenantQueue, put_off: Job, queue: Queue, history: History
) -> None:
    queue.enqueue(jobs.record, "acme", "next", history.path)
    work()
    Job.fetch(put_off.id, queue.connection).cancel()
    row.set_limit(1)
    DeafWorker([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")
    assert history.started() == ["next"]
