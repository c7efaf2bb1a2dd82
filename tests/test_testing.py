"""What projects test with: jobs run in the test's own process, without a worker and without Redis."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from functools import partial
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection
from django.dispatch import Signal
from django.test import TestCase, override_settings
from django.utils import timezone

from tenant_slots import Throttle
from tenant_slots.enqueueing import on_busy, overflow
from tenant_slots.exceptions import JobsDoNotEnd
from tenant_slots.models import Kind, State, TenantJob, TenantQueue
from tenant_slots.signals import job_ended, job_started
from tenant_slots.testing import assert_enqueued, enqueued, run_jobs
from tests import async_jobs, jobs
from tests.django_tasks import tasks
from tests.enqueueing.test_overflow import with_rules
from tests.factories import age, another_process, counters_match, fresh, running_job, tenant_queue, waiting_job
from tests.history import History
from tests.reports_app.models import DraftReport, Export, Line, Named, Report

pytestmark = pytest.mark.django_db

REDIS = settings.RQ_QUEUES
NOWHERE = {name: {"URL": "redis://127.0.0.1:1/0"} for name in ("imports", "reports")}


@contextmanager
def told(signal: Signal) -> Iterator[list[tuple[TenantJob, State]]]:
    """The jobs that it tells of in the block, with the states that they have then."""
    heard: list[tuple[TenantJob, State]] = []

    def hear(job: TenantJob, **facts: Any) -> None:
        heard.append((job, State(job.state)))

    signal.connect(hear)
    try:
        yield heard
    finally:
        signal.disconnect(hear)


@pytest.fixture(autouse=True)
def _without_redis(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nobody listens there, and whoever asks for it all the same writes a warning."""
    with caplog.at_level(logging.WARNING), override_settings(RQ_QUEUES=NOWHERE):
        yield
        said = [record.message for record in caplog.get_records("call")]
        assert [message for message in said if "Redis" in message or "out of reach" in message] == []


def test_three_jobs_of_one_tenant_run_one_after_the_other_in_their_order(history: History) -> None:
    stored = [jobs.record.enqueue("acme", name, history.path) for name in ("one", "two", "three")]
    ran = run_jobs()
    assert history.started() == ["one", "two", "three"]
    assert [job.pk for job in ran] == [job.pk for job in stored]
    assert {job.state for job in ran} == {State.FINISHED}
    assert counters_match()


class InATestCase(TestCase):
    """Its transaction never commits."""

    def test_a_job_runs_and_returns(self) -> None:
        job = jobs.add.enqueue(1, 2, tenant="acme")
        (ran,) = run_jobs()
        assert (ran.pk, ran.state, ran.result, ran.attempt) == (job.pk, State.FINISHED, 3, 1)

    def test_jobs_run_after_those_for_which_they_wait(self) -> None:
        first = jobs.fail.enqueue("acme")
        never = jobs.add.using(after=[first]).enqueue(1, 2, tenant="beta")
        after_never = jobs.add.using(after=[never]).enqueue(1, 2, tenant="beta")
        in_any_case = jobs.add.using(after=[first, after_never], after_any=True).enqueue(1, 2, tenant="acme")
        assert [job.pk for job in run_jobs(scheduled=True)] == [first.pk, in_any_case.pk]
        assert [fresh(job).state for job in (never, after_never)] == [State.CANCELED] * 2
        assert "has failed" in never.error

    def test_a_function_with_a_throttle_is_not_counted_in_immediate_mode_and_waits_all_the_same(self) -> None:
        throttled = with_rules(jobs.throttled, Throttle(0, timedelta(hours=1), "reports"))
        with override_settings(TENANT_SLOTS={"IMMEDIATE": True}), mock.patch.object(overflow, "_ask_again", {}):
            job = throttled.enqueue("acme")
            assert (fresh(job).state, job.rq_queue) == (State.WAITING, "")
            assert [ran.state for ran in run_jobs()] == [State.FINISHED]

    def test_an_error_of_the_database_fails_its_job_and_nothing_else(self) -> None:
        bad = [jobs.stores_its_tenant_queue_again.enqueue("acme", sql=sql) for sql in (True, False)]
        good = jobs.add.enqueue(1, 2, tenant="beta")
        run_jobs()
        assert [fresh(job).state for job in bad] == [State.FAILED] * 2
        assert "IntegrityError" in bad[0].error
        assert fresh(good).state == State.FINISHED

    def test_what_a_job_has_stored_stays_when_it_fails_otherwise(self) -> None:
        jobs.pauses_itself_and_fails.enqueue("acme")
        (job,) = run_jobs()
        assert (job.state, job.tenant_queue.paused) == (State.FAILED, True)

    def test_a_job_may_ask_for_a_transaction_of_its_own(self) -> None:
        jobs.commits_durably.enqueue("acme")
        assert [job.state for job in run_jobs()] == [State.FINISHED]

    def test_a_coroutine_sees_what_the_test_has_stored(self) -> None:
        async_jobs.count_running.enqueue("acme")
        assert [job.result for job in run_jobs()] == [1]

    async def test_an_asynchronous_test_runs_jobs_too(self) -> None:
        await async_jobs.count_running.aenqueue("acme")
        assert [job.result for job in await sync_to_async(run_jobs)()] == [1]


@pytest.mark.django_db(transaction=True)
def test_where_commits_are_real_too(settings: Any) -> None:
    TenantJob.objects.create(tenant_queue=tenant_queue(), task="tests.jobs.add", args=[1, 2])
    assert [job.state for job in run_jobs()] == [State.FINISHED]


class TestWithRedis:
    """Where commits are real, a job is admitted for a worker as it is enqueued: it waits in RQ."""

    pytestmark = pytest.mark.django_db(transaction=True)

    @pytest.fixture(autouse=True)
    def _there(self, _without_redis: None, no_workers: None) -> Iterator[None]:
        with override_settings(RQ_QUEUES=REDIS):
            yield

    def test_a_job_that_was_admitted_for_a_worker_runs_first(self) -> None:
        stored = [jobs.add.enqueue(number, 2, tenant="acme") for number in range(3)]
        assert [fresh(job).state for job in stored] == [State.QUEUED, State.WAITING, State.WAITING]
        assert run_jobs() == stored
        assert {fresh(job).state for job in stored} == {State.FINISHED}
        assert counters_match()

    def test_what_may_not_start_any_more_is_put_back(self) -> None:
        job = jobs.add.enqueue(1, 2, tenant="acme")
        TenantQueue.objects.update(paused=True)
        assert run_jobs() == []
        assert fresh(job).state == State.WAITING

    def test_a_job_that_has_become_more_urgent_goes_first(self) -> None:
        low = jobs.add.enqueue(1, 2, tenant="acme")
        assert fresh(low).state == State.QUEUED
        high = jobs.add.using(priority=5).enqueue(3, 4, tenant="acme")
        assert run_jobs() == [high, low]

    def test_receivers_hear_of_jobs_that_expired(self) -> None:
        tenant_queue("acme", queue="reports", max_job=0)
        job = jobs.add.using(expires=timedelta(hours=1)).enqueue(1, 2, tenant="acme")
        behind = jobs.add.using(after=[job]).enqueue(3, 4, tenant="acme")
        age(job, expires_at=1)
        with told(job_ended) as heard:
            run_jobs()
        assert heard == [(job, State.CANCELED), (behind, State.CANCELED)]


def breaks_the_transaction(*_: Any, **__: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nothing_of_that_name")


@pytest.mark.parametrize("state", [State.FINISHED, State.FAILED])
def test_a_callback_that_breaks_the_transaction_harms_nothing_else(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(jobs.add.tenant_task), "on_success", breaks_the_transaction)
    monkeypatch.setitem(vars(jobs.fail.tenant_task), "on_failure", breaks_the_transaction)
    enqueue = partial(jobs.fail.enqueue, "acme") if state == State.FAILED else partial(jobs.add.enqueue, 1, 2, "acme")
    stored = [enqueue() for _ in range(2)]
    assert [(job.pk, job.state) for job in run_jobs()] == [(job.pk, state) for job in stored]


def test_a_receiver_that_breaks_the_transaction_harms_nothing_else() -> None:
    stored = [jobs.add.enqueue(number, 2, tenant="acme") for number in range(2)]
    job_started.connect(breaks_the_transaction)
    try:
        assert [(job.pk, job.state) for job in run_jobs()] == [(job.pk, State.FINISHED) for job in stored]
    finally:
        job_started.disconnect(breaks_the_transaction)


def test_tenants_have_their_turns(history: History) -> None:
    for name in ("a1", "a2", "a3"):
        jobs.record.enqueue("a", name, history.path)
    for name in ("b1", "b2"):
        jobs.record.enqueue("b", name, history.path)
    run_jobs()
    assert history.started() == ["a1", "b1", "a2", "b2", "a3"]


def test_a_higher_priority_goes_first(history: History) -> None:
    jobs.record.enqueue("acme", "low", history.path)
    jobs.record.using(priority=5).enqueue("acme", "high", history.path)
    run_jobs()
    assert history.started() == ["high", "low"]


def test_what_may_not_start_waits() -> None:
    paused = waiting_job(tenant_queue("paused", paused=True))
    none = waiting_job(tenant_queue("none", max_job=0))
    full = tenant_queue("full", max_job=1)
    running_job(full, another_process())
    behind = waiting_job(full)
    assert run_jobs() == []
    assert {fresh(job).state for job in (paused, none, behind)} == {State.WAITING}
    TenantQueue.objects.update(max_job=5, paused=False)
    assert len(run_jobs()) == 3, "the control"


def test_a_job_that_finds_no_free_slot_does_what_its_on_busy_says() -> None:
    """Where nothing commits. Those for which there is a slot wait for it, as for a worker."""
    tenant_queue("paused", paused=True)
    discarded, deferred = jobs.only_now.enqueue("paused"), jobs.later.enqueue("paused")
    waiting = jobs.decides.enqueue("paused", on_busy="wait")
    first, second = jobs.only_now.enqueue("acme"), jobs.only_now.enqueue("acme")
    assert run_jobs() == [first]
    assert [fresh(job).state for job in (discarded, second)] == [State.CANCELED] * 2
    assert fresh(discarded).error == "discarded: paused on imports was paused (0 of 1 taken)"
    assert (fresh(deferred).state, fresh(waiting).state) == (State.SCHEDULED, State.WAITING)


def test_scheduled_jobs_that_find_no_free_slot_when_their_time_has_come_are_asked_too() -> None:
    tomorrow = timezone.now() + timedelta(days=1)
    tenant_queue("paused", paused=True)
    paused = jobs.only_now.using(run_after=tomorrow).enqueue("paused")
    first, *others = (jobs.only_now.using(run_after=tomorrow).enqueue("acme") for _ in range(3))
    assert run_jobs(scheduled=True) == [first]
    assert [fresh(job).state for job in (paused, *others)] == [State.CANCELED] * 3


def test_jobs_that_find_no_free_slot_when_those_before_them_have_ended_are_asked_too() -> None:
    before = jobs.add.enqueue(1, 2, tenant="beta")
    first, second = (jobs.only_now.using(after=[before]).enqueue("acme") for _ in range(2))
    assert run_jobs() == [before, first]
    assert fresh(second).state == State.CANCELED


def test_a_job_that_wants_to_wait_is_asked_once() -> None:
    tenant_queue("paused", paused=True)
    before = jobs.add.enqueue(1, 2, tenant="beta")
    waiting = [
        jobs.decides.enqueue("paused", on_busy="wait"),
        jobs.decides.using(run_after=timezone.now() + timedelta(days=1)).enqueue("paused", on_busy="wait"),
        jobs.decides.using(after=[before]).enqueue("paused", on_busy="wait"),
    ]
    with mock.patch.object(on_busy, "_answer", return_value="wait") as answer:
        run_jobs(scheduled=True)
    assert sorted(call.args[1].pk for call in answer.call_args_list) == [job.pk for job in waiting]


def test_what_a_job_enqueues_is_asked_what_to_do_too() -> None:
    tenant_queue("paused", paused=True)
    jobs.enqueues_for.enqueue("acme", "paused")
    run_jobs()
    assert TenantJob.objects.get(tenant_queue__tenant="paused").state == State.CANCELED


def test_a_failing_job_raises_nothing_and_says_why_in_its_row() -> None:
    jobs.fail.enqueue("acme", "no such feed")
    (job,) = run_jobs()
    assert job.state == State.FAILED
    assert "no such feed" in job.error


def test_a_coroutine_that_is_canceled_raises_nothing_either() -> None:
    async_jobs.cancel_itself.enqueue("acme")
    good = jobs.add.enqueue(1, 2, tenant="beta")
    (bad, _) = run_jobs()
    assert (bad.state, bad.error_class) == (State.FAILED, "asyncio.exceptions.CancelledError")
    assert fresh(good).state == State.FINISHED


def test_a_retry_runs_when_its_time_has_come_or_when_that_is_asked_for() -> None:
    jobs.flaky.enqueue("acme")
    (job,) = run_jobs()
    assert (job.state, job.failures) == (State.SCHEDULED, 1)
    assert run_jobs() == []
    (job,) = run_jobs(scheduled=True)
    assert (job.state, job.failures) == (State.FAILED, 3)


def test_a_scheduled_job_that_is_due_runs() -> None:
    row = tenant_queue()
    waiting_job(row, state=State.SCHEDULED, run_after=timezone.now() + timedelta(hours=1))
    due = waiting_job(row, state=State.SCHEDULED, run_after=timezone.now() - timedelta(seconds=1))
    assert [job.pk for job in run_jobs()] == [due.pk]


def test_a_job_that_a_job_enqueues_runs_too() -> None:
    jobs.enqueues_the_next.enqueue("acme", 3)
    assert [job.args for job in run_jobs()] == [["acme", 3], ["acme", 2], ["acme", 1], ["acme", 0]]


def test_jobs_that_do_not_end_are_told() -> None:
    jobs.enqueues_the_next.enqueue("acme", 1000)
    with pytest.raises(JobsDoNotEnd, match="has run 20 jobs, and more wait, the next one of tests"):
        run_jobs(most=20)
    ended = TenantJob.objects.ended()
    assert len(ended) == 20, "it says how many it has run, and ran another one"
    assert [job.attempt for job in TenantJob.objects.not_ended()] == [0]
    assert counters_match()


def test_as_many_jobs_as_may_run_do(settings: Any) -> None:
    row = tenant_queue("paused", max_job=0)
    waiting_job(row)
    jobs.enqueues_the_next.enqueue("acme", 3)
    assert len(run_jobs(most=4)) == 4


def test_a_busy_tenant_rests(history: History) -> None:
    jobs.ask_partner.enqueue("acme", history.path)
    (job,) = run_jobs()
    assert job.state == State.WAITING
    assert TenantQueue.objects.get().rest_reason == "HTTP 429"


def test_reservations_and_jobs_of_plain_rq_are_left_alone() -> None:
    row = tenant_queue(max_job=5)
    waiting_job(row, kind=Kind.RESERVATION), waiting_job(row, rq_job_id="theirs")
    assert run_jobs() == []


# --- what was enqueued ---------------------------------------------------------------------------------------------


def test_jobs_are_found_by_task_and_tenant() -> None:
    mine, theirs = jobs.add.enqueue(1, 2, tenant="acme"), jobs.add.enqueue(1, 2, tenant=7)
    other = jobs.fail.enqueue("acme")
    assert enqueued() == [mine, theirs, other]
    assert enqueued(task=jobs.add) == [mine, theirs] == enqueued(task="tests.jobs.add")
    assert enqueued(tenant="acme") == [mine, other]
    assert enqueued(task=jobs.add, tenant=7) == [theirs]


def test_an_objects_jobs_are_found_by_its_method() -> None:
    mine, other = (Report.objects.create(tenant="acme") for _ in range(2))
    job, theirs = mine.execute.enqueue(), other.execute.enqueue()
    assert enqueued(task=mine.execute) == [job] == [assert_enqueued(mine.execute)]
    assert assert_enqueued(type(mine).execute, mine) == job
    assert enqueued(task=Report.execute) == [job, theirs]


def test_an_object_is_known_by_its_model_and_by_whatever_key_it_has() -> None:
    same = {"tenant": "acme", "pk": 1}
    objects = [
        Report.objects.create(**same),
        Export.objects.create(tenant="acme"),
        Named.objects.create(tenant="acme", name="1"),
    ]
    line = Line.objects.create(tenant="acme", number=1)
    stored = [one.execute.enqueue() for one in (*objects, line)]
    assert [enqueued(task=one.execute) for one in (*objects, line)] == [[job] for job in stored]
    assert enqueued(task=DraftReport.objects.get(pk=1).execute) == stored[:1]


def test_what_no_job_can_be_of_is_named() -> None:
    with pytest.raises(TypeError, match=r"built-in function sleep> is neither decorated .* nor a Task"):
        enqueued(task=time.sleep)


def test_calls_of_djangos_tasks_are_found_too() -> None:
    job = TenantJob.objects.get(uuid=tasks.add.enqueue("acme", 1, b=2).id)
    tasks.fail.enqueue("acme")
    assert enqueued(task=tasks.add) == [job] == [assert_enqueued(tasks.add, "acme", 1, 2)]


def test_a_job_is_found_by_its_arguments_however_they_were_passed() -> None:
    first = jobs.add.enqueue(1, 2, tenant="acme")
    second = jobs.add.enqueue(1, b=3, tenant="acme")
    assert assert_enqueued(jobs.add, a=1, b=2, tenant="acme") == first
    assert assert_enqueued(jobs.add, 1, 3, tenant="acme") == second
    assert assert_enqueued(jobs.add) == second


def test_an_argument_may_be_called_task(assert_tenant_job_enqueued: Any) -> None:
    job = jobs.close.enqueue("acme", task=5)
    assert assert_enqueued(jobs.close, tenant="acme", task=5) == job
    assert assert_tenant_job_enqueued(jobs.close, tenant="acme", task=5) == job
    with pytest.raises(AssertionError, match="was not enqueued with"):
        assert_enqueued(jobs.close, tenant="acme", task=6)


def test_a_default_and_what_is_asked_for_need_not_be_json() -> None:
    job = jobs.exports_since.enqueue("acme", path="all.csv")
    assert assert_enqueued(jobs.exports_since, "acme", path="all.csv") == job
    with pytest.raises(AssertionError, match="was not enqueued with"):
        assert_enqueued(jobs.exports_since, "acme", date(2021, 1, 1), path="all.csv")


def test_what_was_enqueued_is_said_when_it_is_something_else() -> None:
    jobs.add.enqueue(1, 2, tenant="acme")
    with pytest.raises(AssertionError, match=r"tests.jobs.add was not enqueued with \[1, 9\] .*, but with: \[1, 2\]"):
        assert_enqueued(jobs.add, 1, 9, tenant="acme")
    with pytest.raises(AssertionError, match="but with: nothing"):
        assert_enqueued(jobs.fail)


def test_the_fixtures_do_the_same(
    run_tenant_jobs: Any, assert_tenant_job_enqueued: Any, enqueued_tenant_jobs: Any
) -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    assert assert_tenant_job_enqueued(jobs.add, 1, 2, tenant="acme") == job
    assert enqueued_tenant_jobs(task=jobs.add, tenant="acme") == [job]
    assert enqueued_tenant_jobs(tenant="beta") == []
    assert run_tenant_jobs() == [job]
