"""Callers that have switched autocommit off and commit by themselves, without atomic()."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.db import connection, transaction

from tenant_slots import hold_slot, slots, transitions
from tenant_slots.db import commits
from tenant_slots.exceptions import HoldInTransaction
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import counters_match, fresh, in_rq, owner, tenant_queue, waiting_job
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _autocommit_off(transactional_db: None) -> Iterator[None]:
    tenant_queue()
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


def commit() -> None:
    """As Django documents it: what was to follow a commit does so when autocommit is on again."""
    transaction.commit()
    transaction.set_autocommit(True)


def enqueue() -> TenantJob:
    return jobs.record.enqueue("acme", "one", "nowhere")


def test_a_job_is_admitted_after_the_commit() -> None:
    job = enqueue()
    assert (job.state, in_rq()) == (State.WAITING, 0)
    commit()
    assert (fresh(job).state, in_rq()) == (State.QUEUED, 1)


def test_control_outside_of_a_block_django_refuses_what_is_to_follow_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits, "_is_manual", lambda: False)
    with pytest.raises(transaction.TransactionManagementError):
        enqueue()


def test_control_what_does_not_wait_for_the_commit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "on_commit", lambda function, **_: function())
    enqueue()
    assert in_rq() == 1


@pytest.mark.skipif(connection.vendor == "sqlite", reason="the first atomic() of Django then commits")
def test_a_rollback_leaves_no_job_and_admits_none() -> None:
    enqueue()
    transaction.rollback()
    transaction.set_autocommit(True)
    assert not TenantJob.objects.exists()
    assert in_rq() == 0


def assert_admitted_by_sweep(job: TenantJob, before: State) -> None:
    transaction.commit()
    assert fresh(job).state == before
    transaction.commit()
    sweep_now()
    transaction.commit()
    assert fresh(job).state == State.QUEUED


def test_where_autocommit_stays_off_the_sweep_admits() -> None:
    assert_admitted_by_sweep(enqueue(), before=State.WAITING)


def test_many_jobs_and_those_without_duplicates() -> None:
    stored = jobs.import_once.enqueue_many([(("acme",), {}), (("acme", "other.csv"), {}), (("acme",), {})])
    assert stored[0] == stored[2]
    commit()
    assert sorted(job.state for job in TenantJob.objects.all()) == [State.QUEUED, State.WAITING]


def test_a_job_waits_for_one_of_the_same_transaction_and_is_told_of_its_end() -> None:
    first = enqueue()
    second = jobs.echo.using(after=[first]).enqueue("acme", 2)
    assert fresh(second).state == State.SCHEDULED
    commit()
    assert (fresh(first).state, first.awaited, fresh(second).state) == (State.QUEUED, True, State.SCHEDULED)
    transaction.set_autocommit(False)
    assert slots.start(first, owner())
    assert transitions.release(first, state=State.FINISHED)
    assert fresh(second).state == State.SCHEDULED, "nobody is told of what may be rolled back"
    commit()
    assert fresh(second).state == State.QUEUED
    assert counters_match()


def test_a_job_waits_for_one_that_has_ended_before_the_commit() -> None:
    first = waiting_job(TenantQueue.objects.get(), state=State.CANCELED)
    second = jobs.echo.using(after=[first]).enqueue("acme", 2)
    commit()
    assert fresh(second).state == State.CANCELED


def test_where_autocommit_stays_off_the_sweep_tells_who_waits_for_others() -> None:
    first = waiting_job(TenantQueue.objects.get(), state=State.FINISHED)
    assert_admitted_by_sweep(jobs.echo.using(after=[first]).enqueue("acme", 2), before=State.SCHEDULED)


def test_the_newest_call_of_a_transaction_wins() -> None:
    job = jobs.index_shop.enqueue("acme", 1)
    assert jobs.index_shop.enqueue("acme", 2) == job
    commit()
    transaction.set_autocommit(False)
    assert jobs.index_shop.enqueue("acme", 3) == job
    got = jobs.index_shop.enqueue_many([(("acme", 4), {}), (("beta", 5), {}), (("beta", 6), {})])
    assert (got[0], got[1]) == (job, got[2])
    commit()
    assert [(fresh(one).state, one.args[-1]) for one in got[:2]] == [(State.SCHEDULED, 4), (State.SCHEDULED, 6)]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="the first atomic() of Django then commits")
def test_a_rollback_gives_back_the_call_before_and_what_was_to_wait() -> None:
    job = jobs.index_shop.enqueue("acme", 1)
    transaction.commit()
    jobs.index_shop.enqueue("acme", 2)
    jobs.echo.using(after=[job]).enqueue("acme", 2)
    transaction.rollback()
    transaction.set_autocommit(True)
    assert TenantJob.objects.get().args == ["acme", 1]
    assert not TenantJob.objects.filter(awaited=True).exists()


@pytest.mark.parametrize(
    ("state", "change", "after"),
    [
        (State.WAITING, TenantJob.cancel, State.CANCELED),
        (State.FAILED, TenantJob.retry, State.QUEUED),
        (State.SCHEDULED, lambda job: job.set_priority(3), State.SCHEDULED),
    ],
)
def test_what_becomes_of_a_job_can_be_changed(
    state: State, change: Callable[[TenantJob], object], after: State
) -> None:
    job = waiting_job(TenantQueue.objects.get(), state=state)
    transaction.commit()
    change(job)
    commit()
    assert fresh(job).state == after
    assert counters_match()


def test_a_queued_job_is_canceled_and_its_slot_goes_to_the_next() -> None:
    first = enqueue()
    commit()
    transaction.set_autocommit(False)
    second = enqueue()
    assert first.cancel()
    commit()
    assert (fresh(first).state, fresh(second).state) == (State.CANCELED, State.QUEUED)
    assert in_rq() == 1


def test_limits_and_pauses_change_with_the_commit() -> None:
    row = TenantQueue.objects.get()
    waiting_job(row)
    transaction.commit()
    row.pause()
    row.resume()
    row.set_limit(3)
    row.max_waiting = 7
    row.save()
    assert not TenantJob.objects.queued().exists()
    commit()
    assert (fresh(row).max_job, row.max_waiting, row.current_job) == (3, 7, 1)


def test_a_slot_is_held() -> None:
    transaction.commit()
    if connection.vendor == "sqlite":
        with pytest.raises(HoldInTransaction), hold_slot("acme", "imports"):
            pass
        return
    with hold_slot("acme", "imports") as reservation:
        assert fresh(reservation.job).state == State.RUNNING
    transaction.rollback()
    assert fresh(reservation.job).state == State.FINISHED
