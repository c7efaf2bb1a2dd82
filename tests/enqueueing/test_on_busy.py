"""A function says what its jobs do when they find no free slot."""

from __future__ import annotations

import logging
import math
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import django_rq
import psycopg
import pytest
from django.db import OperationalError, connection
from django.utils import timezone
from rq.job import JobStatus

from tenant_slots import Reschedule, exceptions, signals, slots, tenant_job, transitions
from tenant_slots.db.transactions import waiting_at_most
from tenant_slots.enqueueing import on_busy
from tenant_slots.interruptions import EndedAtOnce
from tenant_slots.models import Kind, State, TenantJob, TenantQueue
from tenant_slots.releases import Admission
from tenant_slots.repair import asking, steps, sweeper, turns
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tests import jobs
from tests.factories import (
    admit,
    age,
    counters_match,
    fresh,
    in_rq,
    release_then_admit,
    tenant_queue,
    waiting_job,
    work,
)
from tests.processes import test_database_url as database_url

pytestmark = pytest.mark.django_db(transaction=True)


def seconds_ahead(job: TenantJob) -> float:
    return float((fresh(job).run_after - timezone.now()).total_seconds())


def promote_and_ask() -> None:
    steps.promote(Report(), Contact())
    steps.ask(Report(), Contact())


@pytest.mark.parametrize("task", [jobs.only_now, jobs.later, jobs.decides], ids=["discard", "reschedule", "callable"])
def test_a_free_slot_is_taken_whatever_on_busy_says(task: Any) -> None:
    job = task.enqueue("acme")
    assert fresh(job).state == State.QUEUED
    work()
    assert fresh(job).state == State.FINISHED


def test_discard_cancels_a_job_that_finds_no_slot_and_says_why() -> None:
    ended: list[TenantJob] = []

    def receiver(job: TenantJob, **_: Any) -> None:
        ended.append(job)

    signals.job_ended.connect(receiver)
    try:
        first, second = jobs.only_now.enqueue("acme"), jobs.only_now.enqueue("acme")
    finally:
        signals.job_ended.disconnect(receiver)
    assert fresh(first).state == State.QUEUED
    assert (fresh(second).state, fresh(second).ended_at is None) == (State.CANCELED, False)
    assert second.error == "discarded: acme on imports had no free slot (1 of 1 taken)"
    assert [job.pk for job in ended] == [second.pk]
    assert counters_match()


def test_of_many_discardable_jobs_as_many_stay_as_there_are_slots() -> None:
    tenant_queue(max_job=3)
    jobs.only_now.enqueue_many([(("acme",), {})] * 250)
    states = [job.state for job in TenantJob.objects.order_by("pk")]
    assert states == [State.QUEUED] * 3 + [State.CANCELED] * 247


def test_a_paused_tenant_is_busy() -> None:
    tenant_queue(max_job=3, paused=True)
    job = fresh(jobs.only_now.enqueue("acme"))
    assert (job.state, job.error) == (State.CANCELED, "discarded: acme on imports was paused (0 of 3 taken)")


def test_a_user_at_the_limit_per_key_is_told_so() -> None:
    tenant_queue(max_job=3, max_job_per_key=1)
    for_ann = jobs.only_now.using(key="ann")
    first, second = fresh(for_ann.enqueue("acme")), fresh(for_ann.enqueue("acme"))
    assert (first.state, second.state) == (State.QUEUED, State.CANCELED)
    assert second.error == "discarded: acme on imports had no free slot for concurrency key 'ann' (1 of 3 taken)"


def test_reschedule_leaves_the_backlog_for_its_seconds_give_or_take_the_jitter() -> None:
    tenant_queue(max_job=0)
    ahead = [seconds_ahead(job) for job in jobs.later.enqueue_many([(("acme",), {})] * 50)]
    assert not TenantJob.objects.exclude(state=State.SCHEDULED).exists()
    assert 25 < min(ahead) < 45
    assert 75 < max(ahead) < 95


def test_reschedule_without_jitter_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_busy, "_on_busy", lambda job: Reschedule(60, jitter=0))
    tenant_queue(max_job=0)
    assert 55 < seconds_ahead(jobs.later.enqueue("acme")) < 61


def test_a_rescheduled_job_is_not_in_the_backlog_so_a_release_does_not_start_it() -> None:
    row = tenant_queue(max_job=1)
    running, deferred = jobs.later.enqueue("acme"), jobs.later.enqueue("acme")
    assert release_then_admit(fresh(running), state=State.FINISHED) == []
    assert (fresh(deferred).state, fresh(row).current_job) == (State.SCHEDULED, 0)


@pytest.mark.parametrize(("max_job", "state"), [(1, State.QUEUED), (0, State.SCHEDULED)])
def test_a_rescheduled_job_asks_again_when_its_time_has_come(max_job: int, state: State) -> None:
    row = tenant_queue(max_job=0)
    job = jobs.later.enqueue("acme")
    age(fresh(job), run_after=1)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=max_job)
    report = sweeper.run_now("test")
    assert report.promoted == 1
    assert fresh(job).state == state
    if state == State.SCHEDULED:
        assert seconds_ahead(job) > 20


def test_a_job_that_has_had_a_slot_once_waits() -> None:
    tenant_queue(max_job=1)
    job = jobs.only_now.enqueue("acme")
    other = jobs.record.using(priority=5).enqueue("acme", "other", "")
    release_then_admit(fresh(job), state=State.WAITING)
    assert (fresh(other).state, fresh(job).state) == (State.QUEUED, State.WAITING)
    on_busy.turn_away(job.tenant_queue_id, [job])
    assert fresh(job).state == State.WAITING


@pytest.mark.parametrize(("answer", "state"), [("wait", State.WAITING), ("discard", State.CANCELED)])
def test_a_callable_decides_for_each_job(answer: str, state: State) -> None:
    tenant_queue(max_job=1)
    jobs.decides.enqueue("acme")
    assert fresh(jobs.decides.enqueue("acme", on_busy=answer)).state == state


def test_a_callable_is_given_the_job_and_its_tenant_queue() -> None:
    tenant_queue(max_job=0)
    assert fresh(jobs.decides.enqueue("acme")).state == State.CANCELED  # because the row's limit is 0


def test_a_callable_that_answers_nonsense_leaves_its_job_in_the_backlog(caplog: pytest.LogCaptureFixture) -> None:
    tenant_queue(max_job=1)
    jobs.decides.enqueue("acme")
    with caplog.at_level(logging.ERROR):
        job = jobs.decides.enqueue("acme", on_busy="explode")
    assert fresh(job).state == State.WAITING
    assert "it must return" in caplog.text


def test_a_job_that_gets_a_slot_while_it_decides_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue(max_job=1)
    holding = jobs.only_now.enqueue("acme")
    decide = on_busy._decisions

    def decide_then_release(*arguments: Any) -> Any:
        decided = list(decide(*arguments))
        transitions.release(fresh(holding), state=State.FINISHED)
        return decided

    monkeypatch.setattr(on_busy, "_decisions", decide_then_release)
    assert fresh(jobs.only_now.enqueue("acme")).state == State.QUEUED
    assert fresh(row).current_job == 1


def test_a_job_that_has_had_a_slot_while_it_decides_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_queue(max_job=1)
    holding = jobs.only_now.enqueue("acme")
    decide = on_busy._decisions

    def decide_then_lose_a_slot(*arguments: Any) -> Any:
        decided = list(decide(*arguments))
        (mine,) = release_then_admit(fresh(holding), state=State.FINISHED)
        jobs.record.using(priority=5).enqueue("acme", "other", "")
        slots.release(mine, state=State.WAITING)
        return decided

    monkeypatch.setattr(on_busy, "_decisions", decide_then_lose_a_slot)
    job = fresh(jobs.only_now.enqueue("acme"))
    assert (job.state, job.attempt, job.error) == (State.WAITING, 1, "")


def test_no_job_is_turned_away_from_a_free_slot_when_the_admission_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue(max_job=1)
    original, failures = slots.admit, [OperationalError("the connection was lost")]

    def cut_off(*turn: Any) -> Admission:
        if failures:
            raise failures.pop()
        return original(*turn)

    monkeypatch.setattr(slots, "admit", cut_off)
    first, second = jobs.only_now.enqueue_many([(("acme",), {})] * 2)
    assert (fresh(first).state, in_rq()) == (State.WAITING, 0)
    assert fresh(second).error == "discarded: acme on imports had free slots only for jobs before it (0 of 1 taken)"
    assert transitions.feed("imports") == [first], "its tenant has kept its place in the order"
    assert (fresh(first).state, in_rq()) == (State.QUEUED, 1)
    assert (fresh(row).current_job, counters_match()) == (1, True)


@pytest.mark.usefixtures("no_workers")
def test_no_job_is_turned_away_that_only_waits_for_a_worker() -> None:
    """As many as there are slots; the one after them finds none, although none is in use."""
    tenant_queue(max_job=3)
    many = jobs.only_now.enqueue_many([(("acme",), {})] * 5)
    assert [fresh(job).state for job in many] == [State.QUEUED, *[State.WAITING] * 2, *[State.CANCELED] * 2]
    assert fresh(many[4]).error == "discarded: acme on imports had free slots only for jobs before it (1 of 3 taken)"
    assert fresh(jobs.only_now.enqueue("acme")).state == State.CANCELED
    more_urgent = fresh(jobs.only_now.using(priority=1).enqueue("acme"))
    assert more_urgent.state == State.WAITING
    assert counters_match()


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("of_keys", [{}, {"max_job_per_key": 3}], ids=["no limit per key", "a limit per key"])
def test_what_waits_for_workers_of_another_queue_turns_no_job_away(of_keys: dict[str, int]) -> None:
    """The next one is the first of its queue, though as many as there are slots wait longer in an overflow queue."""
    row = tenant_queue(max_job=2, **of_keys)
    for _ in range(2):
        waiting_job(row, rq_queue="imports_slow")
    many = jobs.only_now.enqueue_many([(("acme",), {})] * 3)
    assert [fresh(job).state for job in many] == [State.QUEUED, State.WAITING, State.CANCELED]


@pytest.mark.parametrize("of_keys", [{}, {"max_job_per_key": 3}], ids=["no limit per key", "a limit per key"])
@pytest.mark.parametrize(("priority", "second"), [(0, State.CANCELED), (1, State.WAITING)])
def test_a_slot_in_an_overflow_queue_is_for_the_reservation_before_a_job(
    of_keys: dict[str, int], priority: int, second: State
) -> None:
    """Which gets it as soon as a worker of that queue looks."""
    row = tenant_queue(max_job=2, **of_keys)
    waiting_job(row, kind=Kind.RESERVATION)
    there = {"tenant_queue": row, "task": "tests.jobs.only_now", "rq_queue": "imports_slow", "priority": priority}
    many = [TenantJob.objects.create(**there) for _ in range(2)]
    on_busy.turn_away(row.pk, many)
    assert [fresh(job).state for job in many] == [State.WAITING, second]


def test_a_process_that_does_not_know_the_function_lets_it_wait() -> None:
    row = tenant_queue(max_job=0)
    job = TenantJob.objects.create(tenant_queue=row, task="gone.with.the_deploy")
    on_busy.turn_away(row.pk, [job])
    assert fresh(job).state == State.WAITING


def test_a_plain_rq_job_is_discarded_too() -> None:
    tenant_queue(max_job=0)
    rq_job = django_rq.get_queue("imports").enqueue(jobs.only_now, "acme")
    work()
    assert rq_job.get_status() == JobStatus.FINISHED
    assert rq_job.return_value() is None
    assert TenantJob.objects.get().state == State.CANCELED


def test_a_plain_rq_job_is_rescheduled_and_asks_again() -> None:
    row = tenant_queue(max_job=0)
    rq_job = django_rq.get_queue("imports").enqueue(jobs.later, "acme")
    work()
    job = TenantJob.objects.get()
    assert (rq_job.get_status(), job.state) == (JobStatus.SCHEDULED, State.SCHEDULED)
    at = django_rq.get_queue("imports").scheduled_job_registry.get_scheduled_time(rq_job)
    assert abs((at - job.run_after).total_seconds()) < 3
    age(job, run_after=1)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    sweeper.run_now("test")
    assert (fresh(job).state, in_rq()) == (State.QUEUED, 1)
    work()
    assert fresh(job).state == State.FINISHED


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no locks on rows")
@pytest.mark.parametrize("task", [jobs.only_now, jobs.later], ids=["discard", "reschedule"])
def test_a_job_whose_tenant_queue_somebody_holds_is_asked_by_a_sweep(task: Any) -> None:
    """It would wait for its slot as if it wanted that, and run whenever it gets one."""
    row = tenant_queue(max_job=0)
    with psycopg.connect(database_url()) as holds, waiting_at_most(0.1):
        holds.execute("SELECT 1 FROM tenant_slots_tenantqueue WHERE id = %s FOR NO KEY UPDATE", [row.pk])
        job = task.enqueue("acme")
    assert fresh(job).state == State.WAITING
    steps.ask(Report(), Contact())
    assert fresh(job).state == (State.CANCELED if task is jobs.only_now else State.SCHEDULED)


def test_a_plain_rq_job_whose_tenants_row_is_locked_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_queue(max_job=0)
    leave = on_busy._leave_backlog

    def locked_out(*arguments: Any) -> None:
        monkeypatch.setattr(on_busy, "_leave_backlog", leave)
        raise OperationalError("the tenant's row is locked")

    monkeypatch.setattr(on_busy, "_leave_backlog", locked_out)
    rq_job = django_rq.get_queue("imports").enqueue(jobs.only_now, "acme")
    work()
    assert (rq_job.get_status(), TenantJob.objects.get().state) == (JobStatus.FINISHED, State.CANCELED)


def test_a_plain_rq_job_that_gets_a_slot_while_it_decides_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue(max_job=0)
    decide = on_busy._decisions

    def decide_then_resume(*arguments: Any) -> Any:
        decided = list(decide(*arguments))
        TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
        admit(row)
        return decided

    monkeypatch.setattr(on_busy, "_decisions", decide_then_resume)
    rq_job = django_rq.get_queue("imports").enqueue(jobs.only_now, "acme")
    work()
    assert (rq_job.get_status(), rq_job.return_value()) == (JobStatus.FINISHED, "ran")


def test_a_plain_rq_job_that_waits_in_the_end_does_not_come_back_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_queue(max_job=0)
    rq_job = django_rq.get_queue("imports").enqueue(jobs.later, "acme")
    work()
    age(TenantJob.objects.get(), run_after=1)
    monkeypatch.setattr(on_busy, "_on_busy", lambda job: "wait")
    registry = django_rq.get_queue("imports").scheduled_job_registry
    registry.requeue(rq_job.id)
    work()
    assert TenantJob.objects.get().state == State.WAITING
    assert (registry.get_scheduled_time(rq_job) - timezone.now()).total_seconds() > 50


def test_a_plain_rq_job_that_the_sweep_discards_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_queue(max_job=0)
    rq_job = django_rq.get_queue("imports").enqueue(jobs.later, "acme")
    work()
    job = TenantJob.objects.get()
    age(job, run_after=1)
    monkeypatch.setattr(on_busy, "_on_busy", lambda job: "discard")
    sweeper.run_now("test")
    assert fresh(job).state == State.CANCELED
    assert rq_job.get_status() == JobStatus.CANCELED
    assert len(django_rq.get_queue("imports").scheduled_job_registry) == 0


def test_slow_callables_do_not_keep_a_sweep_from_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that sweeps while it runs a job sends no heartbeat for that job meanwhile."""
    tenant_queue(max_job=1)
    asked: list[int] = []
    clock = SimpleNamespace(monotonic=lambda: len(asked) * 0.9)
    monkeypatch.setattr(on_busy, "time", clock)
    monkeypatch.setattr(asking, "time", clock)
    monkeypatch.setattr(turns, "time", clock)

    def slow(job: TenantJob, row: TenantQueue) -> Reschedule:
        asked.append(job.pk)
        return Reschedule(60)

    due = timezone.now() - timedelta(minutes=1)
    for _ in range(8):
        TenantJob.objects.create(
            tenant_queue=TenantQueue.objects.get(),
            task="tests.jobs.later",
            state=State.SCHEDULED,
            run_after=due,
            asks=True,
        )
    monkeypatch.setattr(on_busy, "_on_busy", lambda job: slow)
    promote_and_ask()
    assert len(asked) == 3
    assert TenantJob.objects.scheduled().count() == 3
    assert TenantJob.objects.waiting().count() == 4


def test_a_job_that_another_sweep_has_just_deferred_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_queue(max_job=0)
    job = jobs.later.enqueue("acme")
    age(fresh(job), run_after=1)
    deferred = []

    def by_another_sweep(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE") and not deferred:
            deferred.append(job)
            age(job, run_after=-60)
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(by_another_sweep):
        steps.promote(Report(), Contact())
    assert deferred
    assert fresh(job).state == State.SCHEDULED


def test_a_rescheduled_plain_job_that_rq_delivers_first_tries_at_once() -> None:
    row = tenant_queue(max_job=0)
    rq_job = django_rq.get_queue("imports").enqueue(jobs.later, "acme")
    work()
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    queue = django_rq.get_queue("imports")
    queue.scheduled_job_registry.requeue(rq_job.id)
    work()
    assert TenantJob.objects.get().state == State.FINISHED


@pytest.mark.parametrize("value", ["throw away", 3, timedelta(seconds=3), []])
def test_a_wrong_on_busy_is_refused_at_import(value: Any) -> None:
    with pytest.raises(exceptions.InvalidOption, match="on_busy"):
        tenant_job("imports", tenant="tenant", on_busy=value)(jobs.record.tenant_task.function)


WRONG: list[dict[str, Any]] = [
    *({"seconds": seconds} for seconds in (0, "60", True, math.nan, math.inf, 1e12)),
    {"seconds": 1, "jitter": 2},
]


@pytest.mark.parametrize("values", WRONG)
def test_a_wrong_reschedule_is_refused_where_it_is_written(values: Any) -> None:
    with pytest.raises(exceptions.InvalidOption, match="Reschedule"):
        Reschedule(**values)


@pytest.mark.parametrize("kind", ["SystemExit", "CancelledError", "GeneratorExit", "ValueError"])
def test_whatever_a_callable_raises_is_logged_and_its_job_waits(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    tenant_queue(max_job=0)
    job = jobs.leaves_while_it_decides.enqueue("acme", kind=kind)
    assert fresh(job).state == State.WAITING
    assert kind in caplog.text
    caplog.clear()
    TenantJob.objects.update(state=State.SCHEDULED, asks=True)
    age(job, run_after=1)
    promote_and_ask()
    assert fresh(job).state == State.WAITING
    assert kind in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, EndedAtOnce])
def test_control_whoever_interrupts_a_callable_is_obeyed(error: type[BaseException]) -> None:
    tenant_queue(max_job=0)
    with pytest.raises(error):
        jobs.leaves_while_it_decides.enqueue("acme", kind=error.__name__)


def test_a_job_whose_time_ends_while_it_asks_what_another_one_does_has_had_it() -> None:
    tenant_queue("full", max_job=0)
    job = jobs.enqueues_for_somebody_slow.enqueue("acme", "full")
    work()
    assert (fresh(job).state, job.error_class) == (State.FAILED, "rq.timeouts.JobTimeoutException")
    assert TenantJob.objects.exclude(pk=job.pk).get().state == State.WAITING


def test_a_module_that_exits_when_it_is_imported_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def exits(job: TenantJob) -> Any:
        raise SystemExit

    tenant_queue(max_job=0)
    monkeypatch.setattr(on_busy, "task_of", exits)
    assert fresh(jobs.only_now.enqueue("acme")).state == State.WAITING
