"""Who may start no job at all leaves the order, and is not looked at again before that changes."""

from __future__ import annotations

import pytest

from tenant_slots import fair_order, slots
from tenant_slots.fair_order import NOTHING_CHARGED, Freed
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import (
    in_rq,
    pretend_idle,
    tenant_queue,
)
from tests.fair_order.orders import LANE, LIST, QUEUE, A, B, ended, next_one, offer, order, redis, shut
from tests.repair.sweeps import sweep_now


def test_who_enqueues_for_a_tenant_that_is_shut_gives_it_no_turn() -> None:
    """Each of them would cost the others the time in which the database is asked."""
    shut(A)
    offer(A)
    assert order() == []


def test_control_where_another_job_might_start_an_enqueue_gives_a_turn() -> None:
    """All that wait are at the cap of a concurrency key, which the new one need not have."""
    offer(A)
    fair_order.drop(next_one(), is_full=True)
    offer(A)
    assert order() == [A]


def test_a_tenant_that_is_shut_keeps_no_turn_by_what_is_enqueued_while_the_database_is_asked() -> None:
    offer(B), next_one(), offer(A)
    had = []
    for _ in range(20):
        turn = next_one()
        had.append(turn.tenant_queue_id)
        if turn.tenant_queue_id == A:
            offer(A)
            fair_order.drop(turn, is_full=True, is_shut=True)
    assert had.count(A) == 1


@pytest.mark.parametrize("lets", ["release", "change", "time"])
def test_what_lets_it_start_a_job_again_gives_it_a_turn(lets: str) -> None:
    offer(A)
    fair_order.drop(next_one(), is_full=True, is_shut=True, wakes_in=0.0 if lets == "time" else None)
    if lets == "release":
        fair_order.freed(Freed(A, 1.0, QUEUE, is_over=True))
    elif lets == "change":
        fair_order.changed(QUEUE, [(A, 1)])
    assert next_one().tenant_queue_id == A


def test_a_slot_that_is_freed_while_the_database_is_asked_is_not_forgotten() -> None:
    offer(A)
    turn = next_one()
    fair_order.freed(Freed(A, NOTHING_CHARGED, QUEUE))
    fair_order.drop(turn, is_full=True, is_shut=True)
    assert order() == [A]


def test_a_slot_that_is_freed_in_another_queue_is_not_forgotten_either() -> None:
    offer(A)
    turn = next_one()
    fair_order.freed(Freed(A, NOTHING_CHARGED, LANE))
    assert fair_order.drop(turn, is_full=True, is_shut=True)
    assert order() == [A]


def test_nor_is_one_that_was_freed_in_another_queue_before_something_is_enqueued() -> None:
    offer(A)
    turn = next_one()
    fair_order.freed(Freed(A, NOTHING_CHARGED, LANE))
    offer(A)
    fair_order.drop(turn, is_full=True, is_shut=True)
    assert order() == [A]


def test_nor_is_one_of_a_tenant_that_had_nothing_left_when_it_was_freed() -> None:
    """One worker is late to say that all slots were taken: others have run all that was there meanwhile."""
    offer(A)
    late, quick = next_one(), next_one()
    fair_order.drop(quick, 1, is_full=False)
    fair_order.freed(Freed(A, 0.1, QUEUE, is_over=True))
    fair_order.freed(Freed(A, 0.1, QUEUE, is_over=True))
    offer(A)
    fair_order.drop(late, is_full=True, is_shut=True)
    assert order() == [A]


def test_what_is_enqueued_while_its_last_job_ends_has_a_turn() -> None:
    """Nothing waited when the worker asked the database. That the tenant is not shut any more nobody knew by then."""
    offer(A)
    fair_order.drop(next_one(), 1, is_full=True, is_shut=True)
    turn = fair_order.again(ended(A))
    assert turn is not None
    offer(A)
    fair_order.drop(turn, is_full=False)
    assert order() == [A]


def test_a_tenant_that_is_shut_in_one_queue_has_its_turn_there_when_a_slot_is_freed_in_another_one() -> None:
    shut(A)
    assert fair_order.freed(Freed(A, 1.0, LANE)) == [LANE, QUEUE]
    assert order() == [A]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_many_enqueues_for_a_paused_tenant_have_the_database_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row, asked, admit = tenant_queue("acme", max_job=5), [], slots.admit
    pretend_idle(1)
    monkeypatch.setattr(slots, "admit", lambda *turn: asked.append(turn) or admit(*turn))
    row.pause()
    for number in range(10):
        jobs.fail.enqueue("acme", str(number))
    assert len(asked) == 1
    row.refresh_from_db()
    row.resume()
    assert in_rq() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_a_sweep_gives_a_turn_to_who_is_shut_no_more_though_nobody_has_said_so() -> None:
    row = tenant_queue("acme")
    row.pause()
    jobs.fail.enqueue("acme", "one")
    TenantQueue.objects.update(paused=False)
    jobs.fail.enqueue("acme", "two")
    assert in_rq() == 0
    sweep_now()
    assert in_rq() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_a_job_of_another_key_does_not_wait_for_those_at_their_cap() -> None:
    row = tenant_queue("acme", max_job=5)
    row.set_max_job_per_key(1)
    for key in ("a", "a", "a"):
        jobs.fail.using(key=key).enqueue("acme")
    redis().delete(LIST)
    jobs.fail.using(key="b").enqueue("acme")
    assert TenantJob.objects.get(key="b").state == State.QUEUED
