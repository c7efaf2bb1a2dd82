"""Recording the end never changes how a job ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import django_rq
import pytest
from django.db import DataError, OperationalError, connection
from rq.job import JobStatus

from tenant_slots import signals, slots
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running import recording, runner
from tests import jobs
from tests.factories import another_process, counters_match, fresh, in_rq, tenant_queue, work

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_database_that_answers_late_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = slots.release, [OperationalError("gone"), OperationalError("still gone")]

    def release(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*args, **kwargs)

    monkeypatch.setattr(slots, "release", release)
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert (fresh(job).state, job.result) == (State.FINISHED, 3)


def test_a_start_whose_answer_was_lost_is_still_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    original, lose = slots.start, [True]

    def start(*args: Any) -> bool:
        started = original(*args)
        if lose.pop() if lose else False:
            raise OperationalError("committed, but nobody heard")
        return started

    monkeypatch.setattr(slots, "start", start)
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert (fresh(job).state, job.attempt) == (State.FINISHED, 1)


def test_an_end_that_cannot_be_recorded_is_left_to_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "PAUSES", (0,))

    def release(*_: Any, **__: Any) -> Any:
        raise OperationalError("gone for good")

    monkeypatch.setattr(slots, "release", release)
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert fresh(job).state == State.RUNNING


def test_a_result_that_the_database_refuses_does_not_fail_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    original = slots.release

    def release(job: TenantJob, **changes: Any) -> Any:
        if "result" in changes:
            raise DataError("no such thing")
        return original(job, **changes)

    monkeypatch.setattr(slots, "release", release)
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert (fresh(job).state, job.result) == (State.FINISHED, None)


@pytest.mark.parametrize("kind", ["object", "huge", "recursive", "nul"])
def test_a_result_that_is_not_storable_stays_with_rq(kind: str) -> None:
    job = jobs.odd_result.enqueue("acme", kind)
    work()
    assert (fresh(job).state, job.result) == (State.FINISHED, None)


def test_an_error_with_a_nul_character_is_kept() -> None:
    job = jobs.fail.enqueue("acme", "bad \\0 byte".replace("\\0", "/0"))
    TenantJob.objects.filter(pk=job.pk).update(task="tests.jobs.fail_with_nul", args=["acme"])
    work()
    assert (fresh(job).state, "bad \\0 byte" in job.error) == (State.FAILED, True)


def test_a_function_that_leaves_a_transaction_open_does_not_swallow_its_end() -> None:
    job = jobs.leaves_transaction_open.enqueue("acme")
    work()
    connection.close()
    assert fresh(job).state == State.FINISHED
    assert counters_match()


def test_a_row_that_was_deleted_while_its_job_ran_does_not_fail_the_job() -> None:
    job = jobs.deletes_its_row.enqueue("acme")
    work()
    assert not TenantJob.objects.filter(pk=job.pk).exists()
    assert not TenantQueue.objects.exists()


def test_a_second_delivery_of_a_running_job_leaves_rqs_record_to_the_first() -> None:
    job = jobs.record.enqueue("acme", "twice", "/nowhere")
    slots.start(fresh(job), another_process("first"))
    work()
    rq_job = django_rq.get_queue("imports").fetch_job(job.rq_id)
    assert rq_job is not None
    assert rq_job.get_status() == JobStatus.STARTED
    assert rq_job.worker_name == "first", "a stop command must go there"
    assert rq_job.latest_result() is None
    assert django_rq.get_connection("imports").ttl(rq_job.key) == -1, "the record of a running job must not expire"


def test_a_second_delivery_of_a_job_that_has_ended_keeps_its_result() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    queue = django_rq.get_queue("reports")
    queue.push_job_id(fresh(job).rq_id)
    work()
    rq_job = queue.fetch_job(job.rq_id)
    assert rq_job is not None
    assert (rq_job.get_status(), rq_job.return_value()) == (JobStatus.FINISHED, 3)
    assert job.attempt == 1


def test_a_delivery_of_a_job_that_was_canceled_is_no_success() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    TenantJob.objects.update(state=State.CANCELED)
    work()
    rq_job = django_rq.get_queue("reports").fetch_job(fresh(job).last_rq_id)
    assert rq_job is not None
    assert rq_job.get_status() == JobStatus.CANCELED
    assert rq_job.latest_result() is None


def test_a_failing_receiver_changes_nothing() -> None:
    def receiver(**_: Any) -> None:
        raise RuntimeError("receiver")

    for signal in (signals.jobs_enqueued, signals.jobs_admitted, signals.job_started, signals.job_ended):
        signal.connect(receiver)
    try:
        job = jobs.add.enqueue(1, 2, tenant="acme")
        work()
    finally:
        for signal in (signals.jobs_enqueued, signals.jobs_admitted, signals.job_started, signals.job_ended):
            signal.disconnect(receiver)
    assert fresh(job).state == State.FINISHED


def test_signals_tell_a_jobs_story_in_order() -> None:
    story: list[str] = []

    def note(signal: Any, **_: Any) -> None:
        story.append(names[signal])

    names = {
        signals.jobs_enqueued: "enqueued",
        signals.jobs_admitted: "admitted",
        signals.job_started: "started",
        signals.job_ended: "ended",
    }
    for signal in names:
        signal.connect(note)
    try:
        jobs.add.enqueue(1, 2, tenant="acme")
        work()
    finally:
        for signal in names:
            signal.disconnect(note)
    assert story == ["enqueued", "admitted", "started", "ended"]


@pytest.mark.parametrize("kind", ["none", "nan"])
def test_a_job_that_asks_to_run_again_without_saying_when_fails(kind: str) -> None:
    job = jobs.returns_retry.enqueue("acme", kind)
    work()
    assert (fresh(job).state, job.attempt, job.failures) == (State.FAILED, 1, 1)
    assert "InvalidOption" in job.error
    assert counters_match()


def test_a_job_whose_cancel_was_asked_for_does_not_retry() -> None:
    job = jobs.cancels_itself.enqueue("acme")
    work()
    assert (fresh(job).state, job.attempt) == (State.CANCELED, 1)
    assert job.ended_at is not None
    assert counters_match()


CHANGES: dict[str, Callable[[TenantQueue], object]] = {
    "paused": TenantQueue.pause,
    "lowered": lambda row: row.set_limit(0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_job_in_the_window_goes_back_without_a_failure_when_its_tenant_is(name: str) -> None:
    """The change bites at the next start: nothing that has not begun begins after it."""
    row = tenant_queue(queue="reports", max_job=1)
    job = jobs.add.enqueue(1, 2, tenant="acme")
    CHANGES[name](row)
    assert (fresh(job).state, in_rq("reports")) == (State.QUEUED, 1)
    work()
    job.refresh_from_db()
    assert (job.state, job.failures, job.crashes, job.interruptions) == (State.WAITING, 0, 0, 0)
    assert (in_rq("reports"), job.error, job.started_at) == (0, "", None)
    assert django_rq.get_queue("reports").failed_job_registry.count == 0
    assert counters_match()
    row.set_limit(1)
    row.resume()
    assert fresh(job).state == State.QUEUED
    work()
    assert (fresh(job).state, job.result) == (State.FINISHED, 3)


def test_a_more_urgent_job_takes_the_place_of_one_in_the_window() -> None:
    first = jobs.add.enqueue(1, 2, tenant="acme")
    urgent = jobs.add.using(priority=1).enqueue(3, 4, tenant="acme")
    assert (fresh(first).state, fresh(urgent).state) == (State.QUEUED, State.WAITING)
    work()
    assert (fresh(first).state, fresh(urgent).state) == (State.FINISHED, State.FINISHED)
    assert urgent.started_at < first.started_at
    assert (first.attempt, first.failures, first.crashes) == (2, 0, 0)
    assert counters_match()


@pytest.mark.usefixtures("no_workers")
def test_an_attempt_that_is_not_to_be_run_leaves_its_place_in_rqs_list_to_the_next_job() -> None:
    """It ended while RQ held it; nobody else would look before the sweep."""
    tenant_queue(queue="reports", max_job=2)
    first, second = jobs.add.enqueue(1, 2, tenant="acme"), jobs.add.enqueue(3, 4, tenant="acme")
    assert (fresh(first).state, fresh(second).state) == (State.QUEUED, State.WAITING)
    assert slots.release(fresh(first), state=State.CANCELED)
    work()
    assert (fresh(first).state, fresh(second).state) == (State.CANCELED, State.FINISHED)


@pytest.mark.parametrize(("number", "is_kept"), [(1.5, True), (1e15, True), (1e16, True), (1e308, False)])
def test_a_result_is_measured_as_the_database_gets_it(number: float, is_kept: bool) -> None:
    """jsonb has each digit of a float."""
    assert (runner.result_problem([number] * 10_000) == "") == is_kept
