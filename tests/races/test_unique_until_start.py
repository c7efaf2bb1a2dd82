"""``unique_until="start"``: whoever is given a waiting job has it see what he changes, also before he has committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread

import pytest
from django.db import connection, transaction

from tenant_slots import fair_order, held, slots, transitions
from tenant_slots.enqueueing import unique
from tenant_slots.fair_order import new_feeder, next_turn
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import admit, fresh, owner, tenant_queue, work
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.races.test_callers_transactions import kept_open, meanwhile

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


@pytest.fixture
def waiting() -> TenantJob:
    """A job that waits while its tenant has a free slot, as between two turns."""
    row = tenant_queue(max_job=0)
    job = jobs.import_latest.enqueue("acme")
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    fair_order.tell_share("imports", [(row.pk, 1)])
    assert fresh(job).state == State.WAITING
    return job


class Start:
    """A worker that starts the job, and what its function sees then of what the caller changes."""

    def __init__(self, job: TenantJob) -> None:
        self._row = job.tenant_queue
        self.seen: list[int] = []
        self.errors: list[Exception] = []

    def __call__(self) -> None:
        assert slots.admit_and_start(self._row.pk, "imports", owner(), lambda chosen: None).started
        self.seen.append(TenantQueue.objects.get(tenant="other").share)

    def begin(self) -> Thread:
        return meanwhile(self, self.errors)


@contextmanager
def change_then_enqueue(waiting: TenantJob) -> Iterator[TenantJob]:
    """The caller's transaction, which is open in the block."""
    other = tenant_queue("other", share=1)
    with transaction.atomic():
        TenantQueue.objects.filter(pk=other.pk).update(share=2)
        yield jobs.import_latest.enqueue("acme")


def test_the_job_that_a_caller_was_given_starts_after_his_commit_and_sees_the_change(waiting: TenantJob) -> None:
    start = Start(waiting)
    with change_then_enqueue(waiting) as found:
        assert found == waiting
        worker = start.begin()
        wait_until(somebody_waits_for_a_lock)
    worker.join(20)
    assert (start.errors, start.seen) == ([], [2])


def test_control_without_the_lock_it_starts_before_and_the_change_is_lost(
    waiting: TenantJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique, "_held", lambda found: found)
    start = Start(waiting)
    with change_then_enqueue(waiting) as found:
        assert found == waiting
        start.begin().join(20)
    assert (start.errors, start.seen) == ([], [1])


def test_a_rollback_of_the_caller_lets_the_job_start(waiting: TenantJob) -> None:
    start = Start(waiting)
    with change_then_enqueue(waiting) as found:
        assert found == waiting
        worker = start.begin()
        wait_until(somebody_waits_for_a_lock)
        transaction.set_rollback(True)
    worker.join(20)
    assert (start.errors, start.seen) == ([], [1])


def test_a_start_that_is_not_committed_yet_is_waited_for_and_another_job_is_stored(waiting: TenantJob) -> None:
    row = waiting.tenant_queue
    got: list[TenantJob] = []
    errors: list[Exception] = []

    @transaction.atomic
    def enqueue() -> None:
        got.append(jobs.import_latest.enqueue("acme"))

    with kept_open(partial(slots.admit_and_start, row.pk, "imports", owner(), lambda chosen: None)):
        caller = meanwhile(enqueue, errors)
        wait_until(somebody_waits_for_a_lock)
    caller.join(20)
    assert errors == []
    assert got != [waiting]
    assert (fresh(waiting).state, fresh(got[0]).state) == (State.RUNNING, State.WAITING)


def test_a_job_that_is_given_a_slot_since_the_look_counts_as_started(
    waiting: TenantJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, row = unique._held, waiting.tenant_queue

    def admitted_meanwhile(found: dict[str, TenantJob]) -> dict[str, TenantJob]:
        if fresh(waiting).state == State.WAITING:
            meanwhile(partial(admit, row), []).join(20)
        return held(found)

    monkeypatch.setattr(unique, "_held", admitted_meanwhile)
    with transaction.atomic():
        assert jobs.import_latest.enqueue("acme") != waiting
    assert (fresh(waiting).state, fresh(waiting).unique_key) == (State.QUEUED, "")


def test_two_callers_are_given_the_same_job_and_do_not_wait_for_each_other(waiting: TenantJob) -> None:
    found: list[TenantJob] = []
    with kept_open(lambda: found.append(jobs.import_latest.enqueue("acme"))), transaction.atomic():
        found.append(jobs.import_latest.enqueue("acme"))
    assert found == [waiting, waiting]


def test_an_open_transaction_costs_the_tenant_its_turn_and_the_commit_gives_it_back(
    waiting: TenantJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for moment in ("FIRST_MOMENT", "MOMENT"):
        monkeypatch.setattr(held, moment, 60)  # after which it would come back by itself
    other = jobs.import_once.enqueue("umbrella")
    with kept_open(partial(jobs.import_latest.enqueue, "acme")):
        transitions.offer(waiting.tenant_queue_id, "imports")
        work()
        assert (fresh(waiting).state, fresh(other).state) == (State.WAITING, State.FINISHED)
        assert next_turn("imports", new_feeder()) is None, "it has lost its turn"
    assert fresh(waiting).state == State.QUEUED
    work()
    assert fresh(waiting).state == State.FINISHED


def test_a_caller_who_was_given_a_job_may_lock_its_tenant_queue_while_a_worker_waits_for_the_job(
    waiting: TenantJob,
) -> None:
    """The worker, which holds the tenant queue meanwhile, gives up before the database would see a deadlock."""
    errors: list[Exception] = []
    with transaction.atomic():
        assert jobs.import_latest.enqueue("acme") == waiting
        turn = meanwhile(partial(transitions.offer, waiting.tenant_queue_id, "imports"), errors)
        wait_until(somebody_waits_for_a_lock)
        waiting.tenant_queue.set_limit(2)
    turn.join(20)
    assert errors == []
    assert fresh(waiting.tenant_queue).max_job == 2


def test_a_job_that_is_unique_until_its_end_is_not_kept_from_starting() -> None:
    row = tenant_queue(max_job=0)
    first = jobs.import_once.enqueue("acme")
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    with transaction.atomic():
        assert jobs.import_once.enqueue("acme") == first
        errors: list[Exception] = []
        meanwhile(partial(admit, row), errors).join(20)
        assert errors == []
        assert fresh(first).state == State.QUEUED
