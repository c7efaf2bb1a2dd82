"""Who is first, and what a turn costs: time and not jobs, with neither credit nor debt."""

from __future__ import annotations

from collections import Counter

import pytest

from tenant_slots import fair_order
from tenant_slots.fair_order import NOTHING_CHARGED, NOTHING_RAN, Freed, Turn
from tests.fair_order.orders import (
    FEEDER,
    LANE,
    QUEUE,
    A,
    B,
    C,
    away,
    next_one,
    offer,
    order,
    record,
    seem_to_run_for_longer,
    served,
)
from tests.order_records import records


def test_who_came_first_is_first_and_all_take_turns() -> None:
    offer(B), offer(C), offer(A)
    assert order() == [B, C, A]
    assert served(9) == [B, C, A] * 3


def test_many_that_are_offered_together_keep_their_order() -> None:
    tenants = list(range(2500, 0, -1))
    offer(*tenants)
    assert order() == tenants


def test_nobody_is_next_where_nobody_was_offered() -> None:
    assert fair_order.next_turn(QUEUE, FEEDER) is None


def test_the_queues_of_rq_have_orders_of_their_own() -> None:
    offer(A), offer(B, queue=LANE)
    assert (order(), order(LANE)) == ([A], [B])


def test_the_only_one_may_have_as_many_jobs_as_there_is_room_for() -> None:
    offer(A)
    assert next_one() == Turn(QUEUE, A, jobs=100, offers=1, stays_first=True, feeder=FEEDER)
    offer(B)
    wanted = Turn(QUEUE, B, jobs=1, offers=1, stays_first=True, feeder=FEEDER)
    assert next_one() == wanted, "somebody else wants some of them"


def test_worker_time_is_divided_and_not_the_number_of_jobs() -> None:
    offer(A, B)
    seconds = {A: 10.0, B: 1.0}
    had = Counter(served(110, seconds))
    assert abs(had[A] * seconds[A] - had[B] * seconds[B]) <= 20
    assert had[B] > 8 * had[A]


@pytest.mark.parametrize("share", [2, 3, 1000])
def test_time_is_divided_by_share(share: int) -> None:
    offer(A, share=share), offer(B, share=1)
    had = Counter(served(10 * (share + 1)))
    assert abs(had[B] - 10) <= 1


def test_a_share_that_is_not_at_hand_leaves_the_one_that_is_known() -> None:
    offer(A, share=3), offer(A, B)
    assert record(A).share == 3


def test_a_share_that_is_not_known_counts_as_1_until_it_is_told() -> None:
    offer(A), offer(B, share=1)
    had = Counter(served(20))
    assert had[A] == had[B]
    offer(A, share=9)
    had = Counter(served(200))
    assert had[A] > 8 * had[B]


def test_a_tenant_has_one_share_in_all_queues() -> None:
    """It is told of all that a server knows; who offers the tenant in another one may have read it long ago."""
    fair_order.changed(QUEUE, [(A, 9)])
    offer(A, share=1, queue=LANE)
    assert (record(A).share, record(A, LANE).share) == (9, 9)
    fair_order.tell_share(QUEUE, [(A, 5)])
    offer(A, share=9), offer(A, share=1, queue=LANE), fair_order.changed(LANE, [(A, 9)])
    assert (record(A).share, record(A, LANE).share) == (5, 5)


def test_a_turn_is_charged_at_once_so_that_the_next_one_is_somebody_elses() -> None:
    """Before any of these jobs has ended."""
    offer(A, B)
    assert [next_one().tenant_queue_id for _ in range(6)] == [A, B] * 3
    assert record(A).ahead == 3.0, "a second for each, as nobody knows how long they take"


def test_the_charge_is_the_mean_of_what_its_jobs_took_the_latest_ones_weighing_more() -> None:
    offer(A, B)
    served(2, {A: 10.0, B: 2.0})
    assert (record(A).mean, record(B).mean) == (10.0, 2.0)
    served(1, {B: 7.0})
    assert record(B).mean == pytest.approx(2.0 + 0.2 * 5.0)
    before = record(B).ahead
    while next_one().tenant_queue_id != B:
        pass
    assert record(B).ahead - before == pytest.approx(3.0)


def test_a_tenant_whose_jobs_nobody_knows_is_charged_what_those_of_the_queue_take() -> None:
    offer(A)
    served(1, {A: 30.0})
    fair_order.drop(next_one(), is_full=False)
    offer(B)
    assert next_one().jobs == 100
    assert record(B).ahead == pytest.approx(30.0 * 100), "for as many jobs as it could have as the only one"


def test_the_end_of_a_job_sets_the_charge_right() -> None:
    offer(A, B)
    next_one()
    fair_order.freed(Freed(A, 0.25, QUEUE))
    assert record(A).ahead == 0.0
    assert record(A).done == pytest.approx(0.25, abs=0.001)


def test_what_a_worker_spends_on_a_tenant_after_its_job_is_charged_too() -> None:
    """As where receivers of the project hear of the end."""
    offer(1, 2)
    assert served(2) == [1, 2]
    fair_order.cost(QUEUE, 1, 2.0)
    assert served(3) == [2, 2, 1]


def test_nothing_is_kept_of_a_tenant_that_was_forgotten_meanwhile() -> None:
    offer(1)
    served(1)
    fair_order.forget(QUEUE, 1)
    fair_order.cost(QUEUE, 1, 2.0)
    assert not records(1)
    assert not order()


def test_what_never_ran_costs_nothing() -> None:
    offer(A, B)
    before = record(A)
    next_one()
    fair_order.freed(Freed(A, NOTHING_RAN, QUEUE))
    assert record(A)._replace(offers=0, frees=0) == before._replace(offers=0, frees=0)


def test_a_slot_that_was_no_jobs_changes_no_charge() -> None:
    offer(A, B)
    next_one()
    before = record(A)
    fair_order.freed(Freed(A, NOTHING_CHARGED, QUEUE))
    assert record(A)._replace(offers=0, frees=0) == before._replace(offers=0, frees=0)


def test_what_runs_for_long_is_charged_while_it_runs() -> None:
    offer(A, B)
    assert [next_one().tenant_queue_id for _ in range(2)] == [A, B]
    seem_to_run_for_longer(A, 3600)
    fair_order.charge(QUEUE, [(A, 1, 3600.0)])
    fair_order.freed(Freed(B, 1.0, QUEUE))
    assert [next_one().tenant_queue_id for _ in range(50)] == [B] * 50
    fair_order.freed(Freed(A, 3600.0, QUEUE))
    assert record(A).ahead == pytest.approx(0.0, abs=1.0), "all of it has gone over to what is done"
    assert record(A).done == pytest.approx(3600.0, abs=1.0)


def test_what_runs_counts_as_the_mean_at_least() -> None:
    offer(A, B)
    served(2, {A: 10.0, B: 10.0})
    fair_order.charge(QUEUE, [(A, 2, 0.5)])
    assert record(A).ahead == 20.0


def test_a_newcomer_has_no_credit_for_the_time_before_it_came() -> None:
    offer(A, B)
    served(1000)
    offer(C)
    had = served(30)
    assert C in had[:3], "it is next once those have had their turn that stand at the same time"
    assert Counter(had) == {A: 10, B: 10, C: 10}


def test_who_left_for_a_while_comes_back_without_credit_or_debt() -> None:
    offer(A, B, C)
    served(300)
    fair_order.drop(next_one(), is_full=False)
    assert order() == [B, C]
    served(300)
    away(A, seconds=300)
    offer(A)
    had = served(30)
    assert abs(Counter(had)[A] - 10) <= 1


def test_who_comes_back_pays_for_what_it_has_running() -> None:
    offer(A, B)
    turn = next_one()
    fair_order.drop(turn, 1, is_full=True)
    offer(A)
    assert record(A).ahead == 1.0
    assert order() == [B, A]
