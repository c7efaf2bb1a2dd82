"""Immediate mode: who enqueues a job runs it, without a worker and without Redis."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.management import call_command
from django.db import connections, transaction
from django.utils import timezone

from tenant_slots import Throttle, hold_slot, tenant_job
from tenant_slots.enqueueing import overflow
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.signals import job_ended
from tests import async_jobs, jobs
from tests.enqueueing.test_overflow import with_rules
from tests.factories import admit, counters_match, fresh, tenant_queue, waiting_job
from tests.history import History
from tests.test_testing import told

pytestmark = pytest.mark.django_db(transaction=True)

NOWHERE = {name: {"URL": "redis://127.0.0.1:1/0"} for name in ("imports", "reports")}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.get_records("call")]


@pytest.fixture(autouse=True)
def _immediate(settings: Any, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nobody listens at that Redis, and whoever asks for it all the same writes a warning."""
    settings.RQ_QUEUES = NOWHERE
    settings.TENANT_SLOTS = {"IMMEDIATE": True}
    with caplog.at_level(logging.WARNING):
        yield
        assert [message for message in said(caplog) if "edis" in message or "connecting to" in message] == []
    assert counters_match()


def test_a_job_has_ended_when_enqueue_returns() -> None:
    job = fresh(jobs.add.enqueue(1, 2, tenant="acme"))
    assert (job.state, job.result, job.worker, job.attempt) == (State.FINISHED, 3, "immediate", 1)


@pytest.mark.usefixtures("no_workers")
def test_the_control_without_it_a_job_waits_for_a_worker(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.TENANT_SLOTS = {}
    assert fresh(jobs.add.enqueue(1, 2, tenant="acme")).state == State.WAITING
    assert caplog.text
    caplog.clear()


def test_a_function_with_a_throttle_runs_and_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "_ask_again", {})
    throttled = with_rules(jobs.throttled, Throttle(0, timedelta(hours=1), "reports"))
    job = fresh(throttled.enqueue("acme"))
    assert (job.state, job.rq_queue) == (State.FINISHED, "")


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(hours=1)])
def test_what_does_not_run_yet_can_be_canceled(ahead: timedelta) -> None:
    tenant_queue("acme", queue="reports", paused=not ahead)
    job = jobs.add.using(run_after=timezone.now() + ahead if ahead else None).enqueue(1, 2, tenant="acme")
    assert job.cancel()
    assert fresh(job).state == State.CANCELED


def test_a_job_that_cancels_itself_is_canceled() -> None:
    job = fresh(jobs.cancels_itself.enqueue("acme"))
    assert (job.state, job.attempt) == (State.CANCELED, 1)


def test_one_that_was_admitted_before_it_was_switched_on_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis.connection.AbstractConnection.connect", lambda *_: pytest.fail("Redis was asked"))
    (before,) = admit(waiting_job(tenant_queue()).tenant_queue)
    behind = jobs.echo.enqueue("acme", 1)
    assert (fresh(before).state, fresh(behind).state) == (State.FINISHED, State.FINISHED)


def test_inside_a_transaction_it_runs_when_that_commits() -> None:
    with transaction.atomic():
        job = jobs.add.enqueue(1, 2, tenant="acme")
        assert fresh(job).state == State.WAITING
    assert fresh(job).state == State.FINISHED


def test_a_chain_of_several_tenants_runs_when_its_transaction_commits() -> None:
    """The first job has ended by the time when the second one's is to be noted."""
    with transaction.atomic():
        first = jobs.echo.enqueue("acme", "first")
        second = jobs.echo.using(after=[first]).enqueue("beta", "second")
        third = jobs.echo.using(after=[second]).enqueue("gamma", "third")
    assert [fresh(job).state for job in (first, second, third)] == [State.FINISHED] * 3


def test_what_a_failure_ends_in_such_a_chain_is_told_and_the_rest_runs() -> None:
    with told(job_ended) as heard, transaction.atomic():
        first = jobs.fail.enqueue("acme")
        second = jobs.echo.using(after=[first]).enqueue("beta", "second")
        third = jobs.echo.using(after=[second], after_any=True).enqueue("gamma", "third")
    assert [fresh(job).state for job in (first, second, third)] == [State.FAILED, State.CANCELED, State.FINISHED]
    assert heard == [(first, State.FAILED), (second, State.CANCELED), (third, State.FINISHED)]


def test_a_rollback_leaves_nothing(history: History) -> None:
    with transaction.atomic():
        jobs.record.enqueue("acme", "never", history.path)
        transaction.set_rollback(True)
    assert not TenantJob.objects.exists()
    assert history.started() == []


def test_many_run_in_their_order(history: History) -> None:
    jobs.record.enqueue_many([(("acme", name, history.path), {}) for name in ("one", "two", "three")])
    assert history.started() == ["one", "two", "three"]


def test_what_a_job_enqueues_runs_after_it() -> None:
    jobs.enqueues_the_next.enqueue("acme", 2)
    ran = TenantJob.objects.order_by("started_at")
    assert [(job.state, job.args[1]) for job in ran] == [(State.FINISHED, left) for left in (2, 1, 0)]
    assert all(before.ended_at <= after.started_at for before, after in itertools.pairwise(ran)), "limit 1"


def test_an_error_is_in_the_row_and_in_the_log_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    job = fresh(jobs.fail.enqueue("acme", "no such feed"))
    assert job.state == State.FAILED
    assert "no such feed" in job.error
    assert "ValueError: no such feed" in caplog.text


def test_a_job_that_exits_does_not_take_the_caller_along() -> None:
    job = fresh(jobs.exits.enqueue("acme"))
    assert (job.state, job.error.strip().splitlines()[-1]) == (State.FAILED, "SystemExit: 3")
    assert fresh(jobs.add.enqueue(1, 2, tenant="acme")).state == State.FINISHED


def test_jobs_that_find_no_free_slot_when_those_before_them_have_ended_do_what_their_on_busy_says() -> None:
    with transaction.atomic():
        before = jobs.add.enqueue(1, 2, tenant="beta")
        first, second = (jobs.only_now.using(after=[before]).enqueue("acme") for _ in range(2))
    assert [fresh(job).state for job in (before, first, second)] == [State.FINISHED, State.FINISHED, State.CANCELED]


@pytest.mark.parametrize("kind", ["GeneratorExit", "OfTheProject"])
def test_no_error_of_a_job_takes_the_caller_along(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    job = fresh(jobs.leaves.enqueue("acme", kind))
    assert (job.state, job.error.strip().splitlines()[-1].rpartition(".")[2]) == (State.FAILED, kind)
    assert kind in caplog.text


@pytest.mark.parametrize("outcome", [pytest.fail, pytest.skip])
def test_a_test_that_ends_inside_a_job_ends(outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a fake of a partner fails the test that called it, or its time is over."""
    monkeypatch.setitem(jobs.PROBLEMS, "outcome", outcome.Exception)
    with pytest.raises(outcome.Exception):
        jobs.leaves.enqueue("acme", "outcome")
    assert TenantJob.objects.get().state == State.FAILED


def test_control_a_user_who_interrupts_a_job_interrupts_the_caller() -> None:
    with pytest.raises(KeyboardInterrupt):
        jobs.leaves.enqueue("acme", "KeyboardInterrupt")


@pytest.mark.parametrize("allow", ["resume", "set_limit"])
def test_what_may_not_run_waits_until_it_may(allow: str) -> None:
    row = tenant_queue("acme", queue="reports", paused=allow == "resume", max_job=0 if allow == "set_limit" else 1)
    job = jobs.add.enqueue(1, 2, tenant="acme")
    assert fresh(job).state == State.WAITING
    row.resume() if allow == "resume" else row.set_limit(1)
    assert fresh(job).state == State.FINISHED


def test_a_later_job_waits_for_its_time_and_runs_with_the_next_one() -> None:
    later = jobs.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 2, tenant="acme")
    jobs.add.enqueue(1, 2, tenant="acme")
    assert fresh(later).state == State.SCHEDULED
    TenantJob.objects.filter(pk=later.pk).update(run_after=timezone.now() - timedelta(seconds=1))
    jobs.add.enqueue(1, 2, tenant="acme")
    assert fresh(later).state == State.FINISHED


def test_a_sweep_runs_what_has_become_due(caplog: pytest.LogCaptureFixture) -> None:
    later = jobs.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 2, tenant="acme")
    TenantJob.objects.update(run_after=timezone.now() - timedelta(seconds=1))
    call_command("slots_sweep", verbosity=0)
    assert fresh(later).state == State.FINISHED
    caplog.clear()  # it has looked into Redis as well


def test_a_failed_job_runs_again_when_that_is_asked_for() -> None:
    job = fresh(jobs.fail.enqueue("acme"))
    job.retry()
    assert (fresh(job).state, fresh(job).attempt) == (State.FAILED, 2)


def test_other_tenants_backlogs_are_left_alone() -> None:
    other = waiting_job(tenant_queue("other", queue="reports"))
    jobs.add.enqueue(1, 2, tenant="acme")
    assert fresh(other).state == State.WAITING


def test_a_slot_is_held_and_given_back() -> None:
    with hold_slot("acme", "reports", timeout=1):
        job = jobs.add.enqueue(1, 2, tenant="acme")
        assert fresh(job).state == State.WAITING
    assert fresh(job).state == State.FINISHED
    assert TenantQueue.objects.get().current_job == 0


@pytest.mark.parametrize("scope", [nullcontext, ThreadSensitiveContext], ids=["a loop", "a request"])
def test_a_coroutine_that_asks_the_database_runs_for_an_asynchronous_caller(scope: Any) -> None:
    """It is answered by the thread that has enqueued it."""

    async def enqueue() -> TenantJob:
        async with scope():
            job = await async_jobs.count_running.aenqueue("acme")
            await sync_to_async(connections.close_all)()
            return job

    found: list[TenantJob] = []
    caller = Thread(target=lambda: found.append(asyncio.run(enqueue())), daemon=True)
    caller.start()
    caller.join(30)
    assert found, "the coroutine and the thread that runs it wait for each other"
    assert (fresh(found[0]).state, found[0].result) == (State.FINISHED, 1)


@tenant_job("imports", tenant="tenant", on_success=lambda job, result: None)
def is_followed(tenant: str) -> None: ...


@tenant_job("imports", tenant="tenant")
def leave_transaction(tenant: str) -> None:
    transaction.set_autocommit(False)


@pytest.mark.parametrize("ends", [is_followed, leave_transaction])
def test_an_alarm_of_the_caller_goes_on(ends: Any) -> None:
    """As one that ends a test, or a command, after some time."""
    handler = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 600)
    try:
        ends.enqueue("acme")
        assert signal.getsignal(signal.SIGALRM) is ring
        assert 300 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def ring(*_: Any) -> None: ...
