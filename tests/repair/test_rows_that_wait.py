"""A row whose change waits, in a trigger of the project, for what somebody holds, keeps no other from being changed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.test import override_settings

from tenant_slots.conf import app_settings
from tenant_slots.db import sessions
from tenant_slots.db.clock import in_seconds
from tenant_slots.db.sessions import private_connection
from tenant_slots.db.transactions import LOCK_TIMEOUT, patience
from tenant_slots.enqueueing import on_busy
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import asking, one_row, pruning, steps, together, unlocked
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.repair.sweeper import Sweeper
from tests.factories import another_process, fresh, running_job, tenant_queue, waiting_job
from tests.processes import wait_until
from tests.refusals import any_change_of, waiting
from tests.repair.sweeps import sweep_now

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="the trigger is PostgreSQL's"),
]

FOR_EVER = 3600.0
"""Seconds; the control."""


def scheduled(tenants: int) -> list[TenantJob]:
    rows = [tenant_queue(f"tenant {number}", max_job=0) for number in range(tenants)]
    return [waiting_job(row, state=State.SCHEDULED, run_after=in_seconds(-60)) for row in rows]


def sweep_for(seconds: float) -> Report | None:
    """One that is given up after so many, in a session of its own."""
    with override_settings(TENANT_SLOTS={"LEASE_TTL": 2.5 * seconds}), private_connection(5):
        return Sweeper("test").sweep_if_due()


@pytest.mark.parametrize(
    ("seconds", "lasts", "promoted"),
    [(one_row.LOCK_TIMEOUT_SECONDS, 40, 5), pytest.param(FOR_EVER, 2, 0, id="control: it waits for ever")],
)
def test_a_due_job_that_waits_keeps_no_other_tenants_from_being_promoted(
    seconds: float, lasts: float, promoted: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unlocked, "LOCK_TIMEOUT_SECONDS", seconds)
    held, *others = scheduled(6)
    with waiting(any_change_of(held)):
        sweep_for(lasts)
        assert sum(fresh(job).state == State.WAITING for job in others) == promoted
        assert fresh(held).state == State.SCHEDULED
    told = f"cannot be promoted: 1, the first one with the primary key {held.pk}" in caplog.text
    assert told is (promoted > 0)
    sweep_now()
    assert fresh(held).state == State.WAITING


def test_what_follows_in_the_sweep_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(steps, "STEPS", (*steps.STEPS, lambda report, contact: done.append("all")))
    held, *_ = scheduled(3)
    with waiting(any_change_of(held)):
        assert sweep_now().failed == []
    assert done == ["all"]


@pytest.mark.parametrize("is_canceled", [True, pytest.param(False, id="control")])
def test_a_sweep_that_is_given_up_leaves_no_row_locked(is_canceled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session is closed in the midst of a statement, with which the server would go on."""
    monkeypatch.setattr(unlocked, "LOCK_TIMEOUT_SECONDS", FOR_EVER)
    if not is_canceled:
        monkeypatch.setattr(sessions, "cancel", lambda connection: None)
    held, *others = scheduled(3)

    def are_free() -> bool:
        free = TenantJob.objects.filter(pk__in=[job.pk for job in others]).select_for_update(skip_locked=True)
        with transaction.atomic():
            return len(free) == len(others)

    with waiting(any_change_of(held)):
        assert sweep_for(2) is None
        if is_canceled:
            wait_until(are_free, timeout=10)
        assert are_free() is is_canceled
        assert others[0].cancel() if is_canceled else True
    wait_until(are_free, timeout=10)


def test_a_time_that_waits_keeps_no_other_from_being_set_right() -> None:
    jobs = [running_job(tenant_queue(f"tenant {number}"), another_process()) for number in range(3)]
    TenantJob.objects.update(beat_at=in_seconds(3600))
    with waiting(any_change_of(jobs[0])):
        steps.set_times_right(Report(), Contact())
    assert list(TenantJob.objects.filter(beat_at__gt=in_seconds(60))) == [jobs[0]]


def test_a_job_that_waits_keeps_no_other_from_leaving_a_queue_that_was_given_up() -> None:
    jobs = [waiting_job(tenant_queue(max_job=0), rq_queue="given up")]
    jobs += [waiting_job(jobs[0].tenant_queue, rq_queue="given up") for _ in range(2)]
    with waiting(any_change_of(jobs[1])):
        steps.offer(Report(), Contact())
    assert [fresh(job).rq_queue for job in jobs] == ["", "given up", ""]


@pytest.mark.parametrize("step", [steps.set_times_right, steps.offer])
def test_where_all_wait_a_sweep_tries_for_a_second_and_leaves_the_rest(
    step: Callable[[Report, Contact], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    ticks = count(step=0.2)

    def change(pks: Sequence[int]) -> int:
        tried.append(len(pks))
        raise locked_out()

    for module in (steps, together):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    for name in ("_set_right", "_move_to_own_queue"):
        monkeypatch.setattr(steps, name, change)
    row = tenant_queue(max_job=0)
    for _ in range(40):
        waiting_job(row, rq_queue="given up", state=State.WAITING)
        waiting_job(row, state=State.FINISHED, ended_at=in_seconds(3600))
    step(Report(), Contact())
    assert 2 < len(tried) < 20


def test_an_old_job_whose_end_waits_keeps_no_other_from_being_pruned() -> None:
    row = tenant_queue()
    old = {"state": State.FINISHED, "ended_at": in_seconds(-app_settings.RETENTION - 60)}
    jobs = [waiting_job(row, **old) for _ in range(3)]
    with waiting(any_change_of(jobs[1], row="OLD"), events="DELETE"):
        pruning.prune(Report(), Contact())
    assert list(TenantJob.objects.all()) == [jobs[1]]


def test_a_job_whose_note_waits_keeps_no_other_from_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_busy, "_on_busy", lambda job: "discard")
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row, asks=True) for _ in range(3)]
    other = waiting_job(tenant_queue("beta", max_job=0), asks=True)
    with waiting(any_change_of(jobs[1])):
        asking.ask(Report(), Contact())
    assert [fresh(job).state for job in jobs] == [State.CANCELED, State.WAITING, State.CANCELED]
    assert fresh(other).state == State.CANCELED


def test_of_those_that_were_not_asked_one_that_waits_keeps_no_other_from_being_asked_by_the_next_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(pk: int, jobs: list[TenantJob], until: float) -> object:
        raise ValueError("nobody is asked")

    monkeypatch.setattr(on_busy, "turn_away", fails)
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row, asks=True) for _ in range(3)]
    with waiting(f"{any_change_of(jobs[1])} AND NEW.asks"):
        asking.ask(Report(), Contact())
    assert [fresh(job).asks for job in jobs] == [True, False, True]


@contextmanager
def waits_of(tried: list[float]) -> Iterator[Callable[[Sequence[int]], int]]:
    def change(rows: Sequence[int]) -> int:
        tried.append(patience.get())
        if 7 in rows:
            raise locked_out()
        return len(rows)

    yield change


def locked_out() -> OperationalError:
    error = OperationalError("canceling statement due to lock timeout")
    error.__cause__ = psycopg.errors.LockNotAvailable()
    assert error.__cause__.sqlstate == LOCK_TIMEOUT
    return error


def test_the_parts_of_what_has_waited_do_not_wait_as_long() -> None:
    """Or it would take seconds to find some that wait among a thousand, and the sweep's time would be over before."""
    connection.ensure_connection()
    tried: list[float] = []
    before = patience.get()
    with waits_of(tried) as change:
        assert together.in_halves(range(256), change, lambda row, error: None, math.inf) == 255
    assert (tried[0], {*tried[1:]}) == (before, {together.SECONDS_FOR_PART})
    assert patience.get() == before


def test_many_tenants_whose_jobs_wait_keep_no_other_from_being_promoted_for_more_than_some_sweeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(together, "random", random.Random(3))
    jobs = scheduled(80)
    held, others = jobs[::4], [job for number, job in enumerate(jobs) if number % 4]
    contact = Contact()
    with waiting(any_change_of(*held)):
        for _ in range(10):
            steps.promote(Report(), contact)
    assert {fresh(job).state for job in others} == {State.WAITING}
    assert {fresh(job).state for job in held} == {State.SCHEDULED}


def test_a_lock_timeout_of_a_transaction_of_the_callers_is_as_it_was_afterwards() -> None:
    tenant_queue()
    jobs = TenantJob.objects.all()

    def shown() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            return str(cursor.fetchone()[0])

    with transaction.atomic(), connection.cursor() as cursor:
        with unlocked.unlocked(jobs):
            assert shown() == "200ms"
        assert shown() == "0"
        cursor.execute("SET LOCAL lock_timeout = '7s'")
        with unlocked.unlocked(jobs):
            assert shown() == "7s"
        assert shown() == "7s"
    with unlocked.unlocked(jobs):
        assert shown() == "200ms"
    assert TenantQueue.objects.count() == 1
