"""``debounce``: of callers at the same moment the newest wins, and a run never misses the call that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from tenant_slots import rates, slots
from tenant_slots.db import clock
from tenant_slots.enqueueing import bulk, debounce, unique
from tenant_slots.exceptions import DuplicateNotVisible
from tenant_slots.models import HOLDING, State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import admit, age, counters_match, fresh, in_thread, owner, tenant_queue, waiting_job
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.races.test_callers_transactions import kept_open, meanwhile

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


@pytest.fixture
def due() -> TenantJob:
    """A job that waits for a slot, of a tenant that has one free."""
    row = tenant_queue(max_job=0)
    job = jobs.index_shop.enqueue("acme", 1)
    TenantJob.objects.filter(pk=job.pk).update(state=State.WAITING)
    age(job, run_after=1)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    return job


def start(job: TenantJob) -> TenantJob | None:
    admission = slots.admit_and_start(job.tenant_queue_id, "imports", owner(), lambda chosen: None)
    return admission.started


class Starts:
    """A worker that takes the tenant's turn, and the arguments of the job that it gets."""

    def __init__(self, job: TenantJob) -> None:
        self._job = job
        self.errors: list[Exception] = []
        self.args: list[Any] = []

    def begin(self) -> Thread:
        return meanwhile(self._start, self.errors)

    def _start(self) -> None:
        started = start(self._job)
        self.args.append(started and started.args)


def test_two_first_calls_at_the_same_moment_have_one_job_with_the_arguments_of_the_second() -> None:
    tenant_queue()
    got: list[TenantJob] = []
    errors: list[Exception] = []
    with kept_open(lambda: got.append(jobs.index_shop.enqueue("acme", 1))):
        second = meanwhile(lambda: got.append(jobs.index_shop.enqueue("acme", 2)), errors)
        wait_until(somebody_waits_for_a_lock)
    second.join(20)
    assert errors == []
    assert got == [TenantJob.objects.get()] * 2
    assert TenantJob.objects.get().args == ["acme", 2]


def test_control_without_the_constraint_they_have_two(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_queue()
    monkeypatch.setattr(bulk, "insert_unless_duplicate", without_digest(bulk.insert_unless_duplicate))
    errors: list[Exception] = []
    with kept_open(partial(jobs.index_shop.enqueue, "acme", 1)):
        meanwhile(partial(jobs.index_shop.enqueue, "acme", 2), errors).join(20)
    assert errors == []
    assert TenantJob.objects.count() == 2


def without_digest(insert: Callable[[TenantJob], bool]) -> Callable[[TenantJob], bool]:
    def insert_without(job: TenantJob) -> bool:
        digest, job.unique_key = job.unique_key, ""
        try:
            return insert(job)
        finally:
            job.unique_key = digest

    return insert_without


def test_a_first_call_that_is_rolled_back_leaves_the_second_one_its_own() -> None:
    tenant_queue()
    got: list[TenantJob] = []
    errors: list[Exception] = []
    with transaction.atomic():
        first = jobs.index_shop.enqueue("acme", 1)
        second = meanwhile(lambda: got.append(jobs.index_shop.enqueue("acme", 2)), errors)
        wait_until(somebody_waits_for_a_lock)
        transaction.set_rollback(True)
    second.join(20)
    assert errors == []
    assert got == [TenantJob.objects.get()] != [first]


def test_of_two_later_calls_the_second_waits_for_the_first_and_wins() -> None:
    job = jobs.index_shop.enqueue("acme", 0)
    errors: list[Exception] = []
    with kept_open(partial(jobs.index_shop.enqueue, "acme", 1)):
        second = meanwhile(partial(jobs.index_shop.enqueue, "acme", 2), errors)
        wait_until(somebody_waits_for_a_lock)
    second.join(20)
    assert errors == []
    assert TenantJob.objects.get() == job
    assert fresh(job).args == ["acme", 2]


def test_a_worker_that_comes_to_the_job_during_a_call_does_not_run_the_call_before(due: TenantJob) -> None:
    worker = Starts(due)
    with transaction.atomic():
        assert jobs.index_shop.enqueue("acme", 2) == due
        thread = worker.begin()
        wait_until(somebody_waits_for_a_lock)
    thread.join(20)
    assert (worker.errors, worker.args) == ([], [None])
    assert (fresh(due).state, due.args) == (State.SCHEDULED, ["acme", 2])
    assert counters_match()


def test_the_next_one_has_the_slot_instead(due: TenantJob) -> None:
    """Which the worker gives it, or the commit of the call, for whoever comes."""
    next_one = waiting_job(due.tenant_queue)
    worker = Starts(due)
    with transaction.atomic():
        jobs.index_shop.enqueue("acme", 2)
        thread = worker.begin()
        wait_until(somebody_waits_for_a_lock)
    thread.join(20)
    assert worker.errors == []
    assert worker.args == ([[1, 2]] if fresh(next_one).state == State.RUNNING else [None])
    assert next_one.state in HOLDING
    assert counters_match()


def test_one_that_gives_out_slots_finds_it_gone_too(due: TenantJob) -> None:
    errors: list[Exception] = []
    with transaction.atomic():
        jobs.index_shop.enqueue("acme", 2)
        thread = meanwhile(partial(admit, due.tenant_queue), errors)
        wait_until(somebody_waits_for_a_lock)
    thread.join(20)
    assert errors == []
    assert fresh(due).state == State.SCHEDULED
    assert counters_match()


def test_the_token_that_it_was_to_start_with_goes_back(due: TenantJob) -> None:
    """At a low rate the call would have to wait for another one."""
    row, rate = due.tenant_queue, rates.Rate(1, timedelta(days=1), burst=3)
    TenantQueue.objects.filter(pk=row.pk).update(**rates.fields_of(rate))
    errors: list[Exception] = []
    with transaction.atomic():
        jobs.index_shop.enqueue("acme", 2)
        thread = meanwhile(partial(admit, row), errors)
        wait_until(somebody_waits_for_a_lock)
    thread.join(20)
    assert errors == []
    assert fresh(due).state == State.SCHEDULED
    bucket = rates.bucket(fresh(row), clock.now())
    assert bucket is not None
    assert bucket.tokens == rate.burst


def test_a_rollback_lets_the_worker_run_the_call_before(due: TenantJob) -> None:
    worker = Starts(due)
    with transaction.atomic():
        jobs.index_shop.enqueue("acme", 2)
        thread = worker.begin()
        wait_until(somebody_waits_for_a_lock)
        transaction.set_rollback(True)
    thread.join(20)
    assert (worker.errors, worker.args) == ([], [["acme", 1]])


def test_a_call_that_comes_during_a_start_waits_for_it_and_makes_another_job(due: TenantJob) -> None:
    got: list[TenantJob] = []
    errors: list[Exception] = []
    with kept_open(partial(start, due)):
        call = meanwhile(lambda: got.append(jobs.index_shop.enqueue("acme", 2)), errors)
        wait_until(somebody_waits_for_a_lock)
    call.join(20)
    assert errors == []
    assert (fresh(due).state, due.args) == (State.RUNNING, ["acme", 1])
    assert [(job.state, job.args) for job in got] == [(State.SCHEDULED, ["acme", 2])]
    assert got != [due]


def test_a_job_that_has_got_its_slot_since_the_look_keeps_its_arguments(
    due: TenantJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert has_slot_when_moved(due, monkeypatch).args == ["acme", 1]


def test_control_a_call_that_asks_for_no_state_changes_them(due: TenantJob, monkeypatch: pytest.MonkeyPatch) -> None:
    careless = debounce.Statement(
        lambda: TenantJob.objects.filter(unique_key=debounce.Parameter("digest", debounce.CharField())),
        debounce.MOVE._changes,
        returning=True,
    )
    monkeypatch.setattr(debounce, "MOVE", careless)
    assert has_slot_when_moved(due, monkeypatch).args == ["acme", 2]


def has_slot_when_moved(due: TenantJob, monkeypatch: pytest.MonkeyPatch) -> TenantJob:
    """The job as its worker finds it, after a call that saw it wait."""
    look = unique.looked_for

    def look_then_admit(digests: Any, **annotated: Any) -> list[Any]:
        found = look(digests, **annotated)
        in_thread(partial(admit, due.tenant_queue))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(unique, "looked_for", look_then_admit)
        jobs.index_shop.enqueue("acme", 2)
    job: TenantJob = fresh(due)
    return job


def test_a_job_that_starts_between_the_look_and_the_call_leaves_a_job_of_its_own_to_the_call(
    due: TenantJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = unique.looked_for

    def look_then_start(digests: Any, **annotated: Any) -> list[Any]:
        found = look(digests, **annotated)
        in_thread(partial(start, due))
        return found

    monkeypatch.setattr(unique, "looked_for", look_then_start)
    job = jobs.index_shop.enqueue("acme", 2)
    assert job != due
    assert (fresh(due).args, job.args) == (["acme", 1], ["acme", 2])


def test_a_transaction_that_cannot_see_the_job_is_refused_a_second_one() -> None:
    tenant_queue()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert not TenantJob.objects.exists()
        first = in_thread(partial(jobs.index_shop.enqueue, "acme", 1))
        with (
            pytest.raises((DuplicateNotVisible, OperationalError)),
            transaction.atomic(),
        ):
            jobs.index_shop.enqueue("acme", 2)
    assert TenantJob.objects.get() == first
