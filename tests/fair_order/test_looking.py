"""Who looks when a tenant may start a job again."""

from __future__ import annotations

import pytest
from django.test import override_settings

from tenant_slots import fair_order
from tenant_slots.fair_order import Freed, Turn
from tests.fair_order.orders import (
    LANE,
    LIST,
    QUEUE,
    A,
    B,
    alone,
    clock,
    nudges,
    offer,
    record,
    redis,
    sleeps,
    worker_of_rq,
)


def has_to_wait(seconds: float) -> None:
    """A tenant's turn has come to nothing, and there is a token then."""
    offer(A)
    fair_order.drop(Turn(QUEUE, A, jobs=1, offers=record(A).offers), is_full=True, wakes_in=seconds)


@alone
def test_who_waits_without_knowing_is_told_to_look() -> None:
    sleeps("one"), sleeps("two")
    has_to_wait(60)
    assert nudges() == 1, "one of them is enough"


@alone
def test_where_nobody_waits_nobody_is_told() -> None:
    fair_order.take("busy", [QUEUE], waits=False)
    has_to_wait(60)
    assert nudges() == 0


@alone
def test_who_knows_already_is_not_told_again_unless_it_would_come_too_late() -> None:
    has_to_wait(60)
    sleeps("one")
    has_to_wait(90)
    assert nudges() == 0
    has_to_wait(30)
    assert nudges() == 1


@alone
def test_who_knows_and_turns_to_something_else_has_another_one_told() -> None:
    sleeps("one"), sleeps("two")
    redis().delete(LIST)
    has_to_wait(60)
    redis().delete(LIST)
    fair_order.leave("one", [QUEUE], looks=True)
    sleeps("one")
    assert nudges() == 0
    fair_order.leave("one", [QUEUE])
    assert nudges() == 1


@alone
@pytest.mark.parametrize(("state", "told"), [("idle", 0), ("busy", 1)])
def test_nobody_is_told_where_a_stock_worker_waits_too(state: str, told: int) -> None:
    """It would pass over what is no job, and begin its wait anew: a heartbeat comes only at the end of one."""
    sleeps("one")
    worker_of_rq("stock", state)
    has_to_wait(60)
    assert nudges() == told


@alone
def test_who_was_passed_over_has_another_one_told() -> None:
    """A worker that takes what stands behind the nudge in the list asks who is next again, with news."""
    sleeps("one")
    has_to_wait(60)
    redis().delete(LIST)
    fair_order.take("busy", [QUEUE], waits=False, is_news=True)
    assert nudges() == 0, "it has nothing to do, and may wait next"
    offer(B)
    turn, _ = fair_order.take("busy", [QUEUE], waits=False, is_news=True)
    assert isinstance(turn, Turn)
    assert nudges() == 1


@alone
def test_a_nudge_ends_no_chain_of_jobs() -> None:
    sleeps("one")
    has_to_wait(60)
    assert nudges() == 1
    offer(B)
    assert fair_order.again(Freed(B, 1.0, QUEUE)) is not None


@alone
def test_one_of_many_that_wait_knows_and_the_others_sleep_on() -> None:
    has_to_wait(60)
    told = [fair_order.take(name, [QUEUE], waits=True)[0] for name in ("one", "two", "three")]
    assert told == [pytest.approx(60, abs=5), None, None]
    fair_order.leave("one", [QUEUE], looks=True)
    assert fair_order.take("one", [QUEUE], waits=True)[0] == pytest.approx(60, abs=5), "it knows nobody but itself"
    assert nudges() == 0


@alone
def test_who_would_look_too_late_or_in_another_queue_only_does_not_count() -> None:
    has_to_wait(90)
    sleeps("one")
    has_to_wait(30)
    redis().delete(LIST)
    assert fair_order.take("two", [QUEUE], waits=True)[0] == pytest.approx(30, abs=5)
    assert fair_order.take("three", [QUEUE, LANE], waits=True)[0] is None
    offer(B, queue=LANE)
    fair_order.drop(Turn(LANE, B, jobs=1, offers=record(B, LANE).offers), is_full=True, wakes_in=60)
    redis().delete(f"rq:queue:{LANE}")
    assert fair_order.take("four", [QUEUE, LANE], waits=True)[0] == pytest.approx(30, abs=5)


@alone
@pytest.mark.parametrize(("state", "knows"), [("idle", True), ("busy", True), (None, False)])
def test_all_know_where_a_stock_worker_is_as_nobody_is_told_beside_one(state: str | None, knows: bool) -> None:
    worker_of_rq("stock", state)
    has_to_wait(60)
    sleeps("one")
    assert isinstance(fair_order.take("two", [QUEUE], waits=True)[0], float) is knows


@alone
def test_a_worker_that_is_gone_watches_nothing_and_another_one_is_told() -> None:
    has_to_wait(3600)
    sleeps("one"), sleeps("two")
    redis().zrem(f"tenant_slots:workers:{QUEUE}", "one")
    assert nudges() == 0
    fair_order.charge(QUEUE, [])
    assert redis().zrange(f"tenant_slots:watch:{QUEUE}", 0, -1) == []
    assert nudges() == 1


@alone
def test_one_that_waits_for_long_counts_as_idle_for_as_long() -> None:
    with override_settings(TENANT_SLOTS={"SWEEP_INTERVAL": 600}):
        sleeps("one")
    left = redis().zscore(f"tenant_slots:idle:{QUEUE}", "one") - clock()
    assert 600 < left <= 610


@alone
def test_whoever_takes_a_turn_that_was_due_has_the_others_fed() -> None:
    """They wait, and do not know that there is something to run by now."""
    sleeps("one"), sleeps("two")
    has_to_wait(0)
    redis().delete(LIST)
    fair_order.leave("one", [QUEUE], looks=True)
    turn, rooms = fair_order.take("one", [QUEUE], waits=True)
    assert isinstance(turn, Turn)
    assert rooms == [QUEUE]


@alone
def test_what_is_due_ends_the_chain_of_one_tenants_jobs_so_that_others_are_fed() -> None:
    offer(B)
    has_to_wait(0)
    assert fair_order.again(Freed(B, 1.0, QUEUE)) is None
