"""The window: how far ahead jobs are admitted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenant_slots import fair_order, fleet, slots, transitions
from tenant_slots.models import State
from tests import jobs
from tests.factories import (
    fresh,
    in_rq,
    owner,
    tenant_queue,
)
from tests.fair_order.orders import FEEDER, LANE, LIST, OURS, QUEUE, A, alone, clock, offer, redis, worker_of_rq


def room() -> int:
    """As many jobs as a tenant may have that nobody competes with."""
    offer(A)
    turn = fair_order.next_turn(QUEUE, FEEDER)
    if turn is None:
        return 0
    fair_order.undo(turn)
    return turn.jobs


@alone
def test_one_job_is_ready_for_whoever_comes() -> None:
    assert room() == 1


@alone
def test_a_stock_worker_that_is_idle_has_one_more_and_a_busy_one_only_the_one_ahead() -> None:
    worker_of_rq("busy", "busy")
    assert room() == 1
    worker_of_rq("idle", "idle"), worker_of_rq("idle too", "idle")
    assert room() == 3


@alone
def test_a_stock_worker_whose_record_has_expired_is_none() -> None:
    worker_of_rq("killed", None)
    assert room() == 1


@alone
def test_workers_of_ours_have_nothing_ahead_unless_they_wait_at_the_list() -> None:
    """They ask for their next job when they are ready for it."""
    assert fair_order.take("one", [QUEUE], waits=False)[0] is None
    assert room() == 0
    for name in ("one", "two"):
        redis().delete(f"tenant_slots:order:{QUEUE}")
        fair_order.take(name, [QUEUE], waits=True)[0]
    assert room() == 2
    fair_order.leave("one", [QUEUE])
    assert room() == 1


@alone
def test_beside_a_stock_worker_one_is_ready_however_many_workers_of_ours_there_are() -> None:
    fair_order.take("rq:worker:ours", [QUEUE], waits=False)[0]
    worker_of_rq("ours", "idle"), worker_of_rq("stock", "busy")
    assert room() == 1, "RQ's record of a worker of ours says nothing: it may be about to ask"


def workers_of_ours(number: int) -> None:
    names = [f"rq:worker:{n}" for n in range(number)]
    redis().sadd(f"rq:workers:{QUEUE}", *names)
    redis().zadd(f"tenant_slots:workers:{QUEUE}", dict.fromkeys(names, clock() + 60))


def commands(action: Callable[[], object]) -> int:
    """How many commands Redis runs for something, those of scripts too."""

    def so_far() -> int:
        return sum(of_one["calls"] for of_one in redis().info("commandstats").values())

    before = so_far()
    action()
    return so_far() - before


@alone
def test_a_large_fleet_of_ours_costs_a_turn_no_more_than_a_small_one() -> None:
    workers_of_ours(10)
    few = commands(room)
    workers_of_ours(1000)
    assert commands(room) <= few


@alone
def test_control_each_worker_of_rq_is_asked_for_its_state() -> None:
    workers_of_ours(10)
    before = commands(room)
    worker_of_rq("idle", "idle"), worker_of_rq("busy", "busy")
    assert commands(room) >= before + 2


@alone
def test_stock_workers_are_known_among_thousands_of_ours() -> None:
    for name in "abc":
        worker_of_rq(name, "idle")
    workers_of_ours(2500)
    assert room() == 4


@alone
def test_a_worker_of_ours_that_was_not_heard_of_lately_is_none() -> None:
    for what in ("workers", "idle"):
        redis().zadd(f"tenant_slots:{what}:{QUEUE}", {"gone": 1})
    assert room() == 1


@alone
def test_a_worker_of_ours_that_leaves_is_none_at_once() -> None:
    fair_order.take("one", [QUEUE, LANE], waits=True)[0]
    fair_order.leave("one", [QUEUE, LANE], is_over=True)
    assert redis().zcard(f"tenant_slots:workers:{QUEUE}") == redis().zcard(f"tenant_slots:workers:{LANE}") == 0
    assert room() == 1


@alone
@pytest.mark.parametrize("leaves", [True, False], ids=["as it ends", "as it begins"])
def test_a_worker_of_ours_of_which_only_rq_knows_is_no_stock_worker(leaves: bool) -> None:
    """It tells RQ first that it is there, and last that it is not. Until then nothing is admitted for it."""
    worker_of_rq("ours", "idle")
    redis().hset("rq:worker:ours", fleet.CLASS, "tenant_slots.workers.TenantWorker")
    if leaves:
        fair_order.take("rq:worker:ours", [QUEUE], waits=True)
        fair_order.leave("rq:worker:ours", [QUEUE], is_over=True)
    assert room() == 1
    fair_order.take("rq:worker:another", [QUEUE], waits=False)
    assert room() == 0


@alone
def test_what_is_in_the_list_already_is_counted_and_plain_jobs_are_not() -> None:
    worker_of_rq("one", "idle"), worker_of_rq("two", "idle")
    redis().rpush(LIST, "a plain job", OURS.format(1))
    assert room() == 2
    redis().rpush(LIST, OURS.format(2), OURS.format(3))
    assert room() == 0


@alone
@pytest.mark.django_db(transaction=True)
def test_without_workers_one_job_of_each_queue_is_admitted_and_the_others_keep_their_slots_free() -> None:
    row, other = tenant_queue(max_job=50), tenant_queue("other", max_job=50)
    first, *rest = jobs.record.enqueue_many([(("acme", str(number), ""), {}) for number in range(20)])
    jobs.record.enqueue("other", "later", "")
    assert (fresh(first).state, in_rq()) == (State.QUEUED, 1)
    assert {fresh(job).state for job in rest} == {State.WAITING}
    assert (fresh(row).current_job, fresh(other).current_job) == (1, 0)
    assert slots.start(fresh(first), owner())
    redis().delete(LIST)
    (second,) = transitions.feed(QUEUE)
    assert second.tenant_queue_id == other.pk, "the small one does not wait behind the large one's backlog"
