"""Plain RQ jobs in the same queue, and those that were admitted, starve nobody and are not starved."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django_rq
import pytest

from tenant_slots import fair_order, transitions
from tenant_slots.fair_order import NOTHING_CHARGED, Freed, Turn
from tenant_slots.models import TenantJob
from tests import jobs
from tests.factories import (
    fresh,
    tenant_queue,
    waiting_job,
)
from tests.fair_order.orders import (
    FEEDER,
    LANE,
    LIST,
    OTHER_LANE,
    OURS,
    QUEUE,
    A,
    B,
    C,
    alone,
    asks,
    next_one,
    nudges,
    offer,
    pushed,
    record,
    redis,
    sleeps,
    worker_of_rq,
)
from tests.order_records import age_given, given
from tests.repair.sweeps import sweep_now


def test_the_worker_takes_plain_jobs_and_tenants_by_turns() -> None:
    redis().rpush(LIST, *[f"plain {number}" for number in range(9)])
    offer(A, B)
    taken = [fair_order.take("one", [QUEUE], waits=False)[0] for _ in range(6)]
    assert [turn if isinstance(turn, str) else "tenant" for turn in taken] == ["tenant", QUEUE] * 3


def test_a_job_that_was_admitted_goes_before_the_next_tenant() -> None:
    redis().rpush(LIST, OURS.format(1))
    offer(A)
    assert fair_order.take("one", [QUEUE], waits=False)[0] == QUEUE


def test_the_worker_looks_at_its_queues_in_their_order() -> None:
    offer(A, queue=LANE), offer(B, queue=OTHER_LANE)
    for queue, tenant in ((OTHER_LANE, B), (LANE, A)):
        turn = fair_order.take("one", [QUEUE, OTHER_LANE, LANE], waits=False)[0]
        assert isinstance(turn, Turn)
        assert (turn.rq_queue, turn.tenant_queue_id, turn.jobs) == (queue, tenant, 1)
        fair_order.drop(turn, is_full=False)
    assert fair_order.take("one", [QUEUE, OTHER_LANE, LANE], waits=True)[0] is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["p1", "p2", "p3"], ["p1", 1, "p2", 2, "p3", 3]),
        (["p1"], ["p1", 1, 2, 3]),
        ([], [1, 2, 3]),
        ([0], [0, 1, 2, 3]),
        ([0, "p1", "p2"], [0, "p1", 1, "p2", 2, 3]),
    ],
)
def test_pushed_jobs_and_plain_ones_stand_by_turns_each_kind_in_its_order(before: list[Any], after: list[Any]) -> None:
    def names(these: list[Any]) -> list[str]:
        return [OURS.format(one) if isinstance(one, int) else one for one in these]

    for name in names(before):
        redis().rpush(LIST, name)
    for name in names([1, 2, 3]):
        redis().rpush(LIST, name)
        fair_order.bring_before_plain_jobs(QUEUE, [name])
    assert [name.decode() for name in redis().lrange(LIST, 0, -1)] == names(after)


def test_neither_kind_starves_behind_a_long_list_of_the_other() -> None:
    redis().rpush(LIST, *[f"plain {number}" for number in range(1000)])
    own = [OURS.format(number) for number in range(60)]
    redis().rpush(LIST, *own)
    fair_order.bring_before_plain_jobs(QUEUE, own)
    listed = [name.decode() for name in redis().lrange(LIST, 0, -1)]
    assert listed[:120:2] == [f"plain {number}" for number in range(60)]
    assert listed[1:120:2] == own
    assert len(listed) == 1060


def test_those_that_are_brought_together_stand_as_if_each_had_been_brought() -> None:
    own = [OURS.format(number) for number in range(3)]
    redis().rpush(LIST, "p1", "p2", "p3", *own)
    fair_order.bring_before_plain_jobs(QUEUE, own)
    assert [name.decode() for name in redis().lrange(LIST, 0, -1)] == ["p1", own[0], "p2", own[1], "p3", own[2]]


def test_a_list_has_any_length() -> None:
    """A call inside the script may not have more than some thousand arguments."""
    many = range(10_000)
    fair_order.charge(QUEUE, [(tenant, 1, 5.0) for tenant in many])
    fair_order.bring_before_plain_jobs(QUEUE, [str(number) for number in many])
    assert redis().scard(f"tenant_slots:busy:{QUEUE}") == len(many)
    assert record(many[-1]).jobs == 1


def test_one_that_a_worker_has_taken_leaves_its_place_to_the_next() -> None:
    redis().rpush(LIST, "p1", "p2", OURS.format(2))
    fair_order.bring_before_plain_jobs(QUEUE, [OURS.format(1), OURS.format(2)])
    assert [name.decode() for name in redis().lrange(LIST, 0, -1)] == ["p1", OURS.format(2), "p2"]


def test_a_job_that_a_worker_has_taken_meanwhile_is_not_put_back_into_the_list() -> None:
    redis().rpush(LIST, "p1", "p2")
    fair_order.bring_before_plain_jobs(QUEUE, [OURS.format(1)])
    assert redis().lrange(LIST, 0, -1) == [b"p1", b"p2"]


@pytest.mark.django_db(transaction=True)
def test_jobs_that_are_admitted_together_stand_in_their_order() -> None:
    """Rule 5, in RQ's list too."""
    tenant_queue(max_job=9)
    many = jobs.record.enqueue_many([(("acme", str(number), ""), {}) for number in range(7)])
    assert django_rq.get_queue(QUEUE).job_ids == [fresh(job).rq_id for job in many]


def given_one() -> Turn:
    """Where there is room for one."""
    offer(A, B)
    turn = asks("first")
    assert turn is not None
    return turn


PUSHED: dict[str, Callable[[Turn], object]] = {
    "pushed": pushed,
    "nothing to run": lambda turn: fair_order.drop(turn, is_full=False),
    "full": lambda turn: fair_order.drop(turn, is_full=True),
    "undone": fair_order.undo,
    "next question": lambda turn: (asks("first"), fair_order.undo(turn)),
}


@alone
def test_a_turn_has_its_place_in_the_window_before_its_jobs_are_pushed() -> None:
    given_one()
    assert asks("second") is None
    assert not fair_order.offer(QUEUE, [(C, 0)])
    assert fair_order.freed(Freed(A, NOTHING_CHARGED, QUEUE)) == []


@alone
@pytest.mark.parametrize("way", PUSHED)
def test_and_gives_it_back_at_once_when_that_is_done_or_nothing_has_come_of_it(way: str) -> None:
    turn = given_one()
    PUSHED[way](turn)
    assert given(QUEUE) == []
    assert asks("second") is not None


@alone
@pytest.mark.parametrize("way", PUSHED)
def test_that_of_another_feeder_is_not_given_back(way: str) -> None:
    worker_of_rq("idle", "idle")
    turn = given_one()
    assert asks("second") is not None
    PUSHED[way](turn)
    assert given(QUEUE) == [1]
    assert asks("third") is not None
    assert asks("fourth") is None


@alone
def test_of_many_jobs_those_keep_their_places_that_are_to_be_pushed() -> None:
    for name in "abcd":
        worker_of_rq(name, "idle")
    offer(A)
    turn = asks("first")
    assert turn is not None
    assert (turn.jobs, asks("second")) == (5, None)
    fair_order.undo(turn, 3)
    assert given(QUEUE) == [3]
    turn = asks("second")
    assert turn is not None
    assert turn.jobs == 2
    fair_order.drop(turn, 1, is_full=True)
    assert sorted(given(QUEUE)) == [1, 3]


@alone
def test_a_turn_that_is_lost_with_its_feeder_is_over_after_a_second() -> None:
    given_one()
    age_given(QUEUE, 0.5)
    assert asks("second") is None
    age_given(QUEUE, 0.5)
    assert asks("second") is not None
    assert given(QUEUE) == [1], "and nothing is left of it"


@alone
def test_a_clock_of_redis_that_is_set_back_keeps_no_place_for_longer() -> None:
    given_one()
    age_given(QUEUE, -3600)
    assert asks("second") is not None


@alone
def test_a_turn_whose_answer_was_lost_keeps_no_place_from_who_asks_for_it_again() -> None:
    given_one()
    assert asks("first") is not None


@alone
def test_what_comes_of_a_turn_that_is_over_takes_nobody_elses_place() -> None:
    turn = given_one()
    age_given(QUEUE, 1)
    assert asks("second") is not None
    fair_order.drop(turn, is_full=True)
    pushed(turn)
    assert asks("third") is None


@alone
def test_a_flush_takes_the_places_along() -> None:
    turn = given_one()
    redis().flushdb()
    fair_order.undo(turn)
    offer(A)
    assert asks("second") is not None


@alone
def test_places_are_those_of_one_queue() -> None:
    given_one()
    offer(A, queue=LANE)
    assert fair_order.next_turn(LANE, FEEDER) is not None


@alone
def test_a_worker_of_ours_takes_its_turn_whatever_others_have_been_given() -> None:
    given_one()
    turn, _ = fair_order.take("one", [QUEUE], waits=False)
    assert isinstance(turn, Turn)
    assert given(QUEUE) == [1]


@alone
@pytest.mark.parametrize(("others", "told"), [((), 1), (("idle",), 0)])
def test_who_waits_is_told_when_a_turn_came_to_nothing_as_its_feeder_may_ask_nobody(
    others: tuple[str, ...], told: int
) -> None:
    """Others have found no room because of it. RQ's own workers are never told."""
    sleeps("one")
    for state in others:
        worker_of_rq("stock", state)
    fair_order.undo(given_one())
    assert nudges() == told


@alone
def test_plain_jobs_that_are_admitted_have_a_place_in_the_window_too() -> None:
    """Their ids do not tell: all that the limit allows were admitted at once."""
    offer(A)
    turn = next_one()
    redis().lpush(LIST, "nightly")
    fair_order.bring_before_plain_jobs(QUEUE, ["nightly"], turn.feeder)
    assert fair_order.next_turn(QUEUE, FEEDER) is None
    redis().delete(LIST)
    assert next_one().tenant_queue_id == A, "a worker has taken it"


@alone
def test_plain_jobs_that_rq_has_put_back_have_none_from_the_next_sweep_on() -> None:
    offer(A)
    names = [f"nightly {number}" for number in range(20)]
    fair_order.bring_before_plain_jobs(QUEUE, names)
    redis().rpush(LIST, *names)
    assert fair_order.next_turn(QUEUE, FEEDER) is None
    fair_order.charge(QUEUE, [], [])
    assert next_one().tenant_queue_id == A


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_a_sweep_tells_which_plain_jobs_are_admitted() -> None:
    row = tenant_queue("acme", max_job=2)
    queue = django_rq.get_queue(QUEUE)
    plain = queue.enqueue_in(timedelta(hours=1), jobs.record, "acme", "one", "/dev/null")
    admitted = waiting_job(row, rq_job_id=plain.id)
    assert transitions.offer(row.pk, QUEUE) == [admitted]
    redis().sadd(f"tenant_slots:brought:{QUEUE}", "another")
    sweep_now()
    assert set(redis().smembers(f"tenant_slots:brought:{QUEUE}")) == {plain.id.encode()}


@alone
def test_plain_jobs_that_are_put_first_hide_no_admitted_one() -> None:
    offer(A)
    turn = next_one()
    redis().rpush(LIST, OURS.format(1))
    pushed(turn)
    redis().lpush(LIST, *(f"urgent {number}" for number in range(40)))
    assert fair_order.next_turn(QUEUE, FEEDER) is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_a_higher_limit_admits_no_more_plain_jobs_than_the_window_takes() -> None:
    row = tenant_queue("acme", max_job=0)
    queue = django_rq.get_queue(QUEUE)
    for number in range(5):
        plain = queue.enqueue_in(timedelta(hours=1), jobs.record, "acme", str(number), "/dev/null")
        waiting_job(row, rq_job_id=plain.id)
    row.set_limit(100)
    assert TenantJob.objects.queued().count() == 1
