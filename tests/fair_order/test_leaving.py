"""Who leaves the order of tenants, and where he comes back."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace

import django_rq
import pytest
from django.conf import settings

from tenant_slots import fair_order
from tenant_slots.dispatch import NUDGE
from tenant_slots.fair_order import NOTHING_CHARGED, NOTHING_RAN, Freed, Turn
from tenant_slots.models import State
from tenant_slots.workers import TenantSimpleWorker
from tests import jobs
from tests.factories import (
    fresh,
)
from tests.fair_order.orders import (
    FEEDER,
    LANE,
    LIST,
    OTHER_LANE,
    QUEUE,
    A,
    B,
    C,
    ended,
    full,
    next_one,
    offer,
    order,
    pushed,
    record,
    redis,
)
from tests.order_records import KNOWN, packed


def test_who_has_no_more_leaves_and_the_charge_is_taken_back() -> None:
    offer(A, B)
    fair_order.drop(next_one(), is_full=False)
    assert order() == [B]
    assert record(A).ahead == 0.0


def test_who_was_offered_since_stays() -> None:
    offer(A, B)
    turn = next_one()
    offer(A)
    fair_order.drop(turn, is_full=False)
    assert order() == [A, B], "and at its old place, as it has had nothing"


def test_of_many_jobs_only_those_are_charged_that_were_admitted() -> None:
    offer(A)
    turn = next_one()
    assert turn.jobs == 100
    fair_order.drop(turn, 3, is_full=True)
    assert record(A).ahead == pytest.approx(3.0)


def test_a_turn_that_came_to_nothing_leaves_the_tenant_where_it_was() -> None:
    offer(A, B)
    before = record(A)
    fair_order.undo(next_one())
    assert record(A) == before
    assert order() == [A, B]


def test_who_was_full_comes_back_in_every_queue_where_it_was_and_in_no_other() -> None:
    for queue in (QUEUE, LANE, OTHER_LANE):
        offer(A, queue=queue)
    for queue, is_full in ((QUEUE, True), (LANE, True), (OTHER_LANE, False)):
        turn = fair_order.next_turn(queue, FEEDER)
        assert turn is not None
        fair_order.drop(turn, is_full=is_full)
    assert (order(), order(LANE), order(OTHER_LANE)) == ([], [], [])
    assert fair_order.freed(Freed(A, 1.0, QUEUE)) == [QUEUE, LANE]
    assert (order(), order(LANE), order(OTHER_LANE)) == ([A], [A], [])
    assert record(A, LANE).parked == 0


def test_a_release_offers_its_tenant_in_its_own_queue_where_nothing_is_known_of_it() -> None:
    """Its next job may have come without an offer that was heard."""
    assert fair_order.freed(Freed(A, NOTHING_CHARGED, QUEUE)) == [QUEUE]
    assert (order(), order(LANE)) == ([A], [])


@pytest.mark.parametrize(
    ("is_full", "is_over", "comes_back"),
    [(False, True, False), (False, False, True), (True, True, True), (True, False, True)],
)
@pytest.mark.parametrize("seconds", [1.0, NOTHING_RAN, NOTHING_CHARGED])
def test_a_tenant_with_an_empty_backlog_comes_back_with_its_next_job(
    seconds: float, is_full: bool, is_over: bool, comes_back: bool
) -> None:
    """Unless the job that ended is itself to run again, or more was waiting when it left."""
    offer(A, B)
    fair_order.drop(next_one(), 1, is_full=is_full)
    assert order() == [B]
    fair_order.freed(Freed(A, seconds, QUEUE, is_over))
    assert (A in order()) is comes_back
    offer(A)
    assert A in order()


def test_a_tenant_that_was_offered_since_it_left_keeps_its_place_when_its_job_ends() -> None:
    offer(A)
    fair_order.drop(next_one(), 1, is_full=False)
    offer(A)
    fair_order.freed(Freed(A, 1.0, QUEUE, is_over=True))
    assert order() == [A]


def test_the_only_tenant_is_the_next_one_again_when_its_job_has_ended() -> None:
    offer(A)
    next_one()
    turn = fair_order.again(ended(A))
    assert turn is not None
    assert (turn.tenant_queue_id, turn.jobs, turn.stays_first, turn.is_out) == (A, 1, True, False)
    assert record(A).done == pytest.approx(1.0, abs=0.01)
    assert order() == [A]


def test_a_tenant_that_was_full_keeps_out_of_the_order_when_it_goes_on() -> None:
    offer(A)
    fair_order.drop(next_one(), 1, is_full=True)
    turn = fair_order.again(ended(A))
    assert turn is not None
    assert turn.is_out
    assert order() == []
    fair_order.freed(ended(A))
    assert order() == [A], "and comes back when it has a free slot"


def test_what_an_older_version_has_left_of_a_queue_is_forgotten() -> None:
    redis().hset(KNOWN, f":{QUEUE}", struct.pack("<ddddHBd", 1.0, 1.0, -1.0, 0.0, 1, 0, 0.0))
    offer(A)
    assert next_one().tenant_queue_id == A


@pytest.mark.parametrize("lanes", [1, 2])
def test_what_an_older_version_has_left_of_a_tenant_is_forgotten(lanes: int) -> None:
    older = struct.pack("<H7s", len(QUEUE), QUEUE.encode()) + struct.pack("<dddddfHHIHB", 9.0, *[0] * 10)
    redis().hset(KNOWN, A, older * lanes)
    offer(A)
    assert next_one().tenant_queue_id == A
    assert record(A).done < 1


def test_a_tenant_whose_jobs_in_another_queue_wait_for_its_slot_does_not_go_on_in_this_one() -> None:
    """Or a long backlog there would keep its only slot from them to the end."""
    offer(A, queue=LANE)
    full = fair_order.next_turn(LANE, FEEDER)
    assert full is not None
    fair_order.drop(full, is_full=True)
    offer(A)
    pushed(next_one())
    assert fair_order.again(ended(A)) is None
    assert fair_order.freed(replace(ended(A), seconds=NOTHING_CHARGED)) == [QUEUE, LANE]
    assert order(LANE) == [A]


def test_a_tenant_that_has_had_more_than_another_one_is_not_next_again_and_is_charged() -> None:
    offer(A, B)
    next_one()
    assert fair_order.again(ended(A, 5.0)) is None
    assert record(A).done == pytest.approx(5.0, abs=0.01)
    assert record(A).jobs == 0
    assert next_one().tenant_queue_id == B


def test_a_job_in_rqs_list_goes_before_a_tenant_that_would_be_next_again() -> None:
    offer(A)
    next_one()
    redis().rpush(LIST, "plain")
    assert fair_order.again(ended(A)) is None


def test_a_plain_job_behind_a_nudge_goes_before_it_too() -> None:
    offer(A)
    next_one()
    redis().rpush(LIST, NUDGE, "plain")
    assert fair_order.again(ended(A)) is None


def test_who_goes_on_divides_worker_time_as_everybody_else() -> None:
    """Both are asked for a turn as their worker does it, one of them with jobs that take four times as long."""
    takes = {A: 0.1, B: 0.4}
    offer(A, B)
    turn: Turn | None = next_one()
    had: Counter[int] = Counter()
    for _ in range(200):
        assert turn is not None
        slot = ended(turn.tenant_queue_id, takes[turn.tenant_queue_id])
        had[turn.tenant_queue_id] += 1
        asks = turn.stays_first
        turn = fair_order.again(slot) if asks else None
        if turn is None:
            fair_order.freed(replace(slot, seconds=NOTHING_CHARGED) if asks else slot)
            turn = next_one()
    assert had[A] * 0.1 == pytest.approx(had[B] * 0.4, rel=0.1)


def test_a_worker_tells_of_its_free_slot_when_it_asks_for_its_next_turn() -> None:
    offer(A)
    fair_order.drop(next_one(), 1, is_full=True)
    turn, rooms = fair_order.take("rq:worker:one", [QUEUE], waits=False, slot=ended(A, 2.0))
    assert isinstance(turn, Turn)
    assert (turn.tenant_queue_id, rooms) == (A, [])
    assert record(A).done == pytest.approx(2.0, abs=0.01)


def test_a_worker_is_told_of_the_other_queues_where_its_tenant_was_full() -> None:
    for queue in (QUEUE, LANE):
        offer(A, queue=queue)
        turn = fair_order.next_turn(queue, FEEDER)
        assert turn is not None
        fair_order.drop(turn, turn.jobs, is_full=True)
        pushed(turn)
    _, rooms = fair_order.take("rq:worker:one", [QUEUE], waits=False, slot=ended(A))
    assert rooms == [LANE]
    assert order(LANE) == [A]


def waits(queue: str) -> None:
    assert fair_order.take("rq:worker:idle", [queue], waits=True) == (None, [])


@pytest.mark.usefixtures("no_workers")
def test_a_worker_that_turns_to_another_queue_is_told_of_whoever_waits_for_the_slot_that_it_has_freed() -> None:
    full(A), waits(QUEUE)
    offer(B, queue=LANE)
    turn, rooms = fair_order.take("rq:worker:one", [LANE, QUEUE], waits=True, slot=ended(A))
    assert isinstance(turn, Turn)
    assert (turn.tenant_queue_id, rooms, order()) == (B, [QUEUE], [A])


@pytest.mark.usefixtures("no_workers")
def test_so_is_one_that_turns_to_another_tenant_or_to_a_plain_job() -> None:
    full(A), waits(QUEUE)
    offer(B)
    turn, rooms = fair_order.take("rq:worker:one", [QUEUE], waits=True, slot=ended(A, 9.0))
    assert isinstance(turn, Turn)
    assert (turn.tenant_queue_id, rooms) == (B, [QUEUE])
    fair_order.drop(turn, 1, is_full=True)
    redis().rpush(LIST, "plain")
    assert fair_order.take("rq:worker:one", [QUEUE], waits=True, slot=ended(B)) == (QUEUE, [QUEUE])


@pytest.mark.usefixtures("no_workers")
def test_control_where_nobody_waits_it_is_told_of_no_room() -> None:
    full(A)
    offer(B, queue=LANE)
    assert fair_order.take("rq:worker:one", [LANE, QUEUE], waits=True, slot=ended(A))[1] == []
    offer(B)
    assert fair_order.take("rq:worker:one", [QUEUE], waits=True, slot=ended(A))[1] == []


def test_a_queue_that_the_project_has_no_more_is_left_alone() -> None:
    offer(A, queue=LANE)
    gone = packed("gone", record(A, LANE)._replace(parked=1))
    redis().hset(KNOWN, A, redis().hget(KNOWN, A) + gone)
    assert "gone" not in fair_order.freed(ended(A))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("length", [85, 86, 100], ids=["255 bytes", "258 bytes", "the longest"])
def test_a_name_of_a_queue_may_be_as_long_as_its_column_lets_it(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In characters, of which each may take several bytes."""
    name = "進" * length
    monkeypatch.setitem(settings.RQ_QUEUES, name, settings.RQ_QUEUES[QUEUE])
    expected = [jobs.add.using(queue=name).enqueue(1, 2, tenant=tenant) for tenant in ("acme", "umbrella", "acme")]
    offer(*(job.tenant_queue_id for job in expected), queue=name)
    queue = django_rq.get_queue(name)
    TenantSimpleWorker([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")
    assert {fresh(job).state for job in expected} == {State.FINISHED}
    assert {record(job.tenant_queue_id, name).jobs for job in expected} == {0}


def test_who_stands_in_the_order_can_be_asked() -> None:
    offer(A, C)
    assert list(fair_order.known(QUEUE, [A, B, C])) == [A, C]
    assert list(fair_order.known(QUEUE, [])) == []
