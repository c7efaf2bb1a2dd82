"""The order of tenants in Redis: who is next, what is charged, how far ahead jobs are admitted, what may be lost."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import django_rq
import pytest
from django.conf import settings
from django.test import override_settings
from redis import Redis
from redis.exceptions import RedisError

from tenant_slots import fair_order, fleet, held, slots, transitions
from tenant_slots.conf import app_settings
from tenant_slots.dispatch import NUDGE
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.fair_order import NOTHING_CHARGED, NOTHING_RAN, Freed, Turn
from tenant_slots.models import Kind, State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs
from tenant_slots.running.keeper import ReservationRun
from tenant_slots.workers import TenantSimpleWorker, kept
from tenant_slots.workers.kept import Ending
from tests import jobs
from tests.factories import (
    age,
    another_process,
    feed_turn,
    fresh,
    in_rq,
    owner,
    pretend_idle,
    running_job,
    tenant_queue,
    waiting_job,
)
from tests.order_records import KNOWN, Record, age_given, age_sweep, given, packed, records, write
from tests.processes import wait_until
from tests.repair.sweeps import sweep_now

QUEUE, LANE, OTHER_LANE = "imports", "imports_bulk", "imports_slow"
A, B, C, D = 1, 2, 3, 4

OURS = "0b8f9a52-6a0e-4dc6-9d0c-3c6f1d1f0a{:02d}-1"
"""An RQ id as tenants' jobs have it."""

LIST = f"rq:queue:{QUEUE}"

FEEDER = "the test"
"""Who asks for a tenant's turn. It has one at a time: the last one is over with the next question."""


def redis() -> Any:
    return django_rq.get_connection(QUEUE)


def record(tenant: int, queue: str = QUEUE) -> Record:
    return records(tenant)[queue]


def order(queue: str = QUEUE) -> list[int]:
    return [int(name) for name in redis().zrange(f"tenant_slots:order:{queue}", 0, -1)]


def offer(*tenants: int, share: int = 0, queue: str = QUEUE) -> None:
    fair_order.offer(queue, [(tenant, share) for tenant in tenants])


def next_one() -> Turn:
    turn = fair_order.next_turn(QUEUE, FEEDER)
    assert turn is not None
    return turn


def pushed(turn: Turn) -> None:
    """Its jobs are in RQ's list, or were there until a worker has taken them."""
    fair_order.bring_before_plain_jobs(turn.rq_queue, [], turn.feeder)


def away(tenant: int, seconds: float) -> None:
    """As if it had left the order so long before: what the others were served since may have taken that long."""
    before = record(tenant)
    write(tenant, QUEUE, before._replace(left_at=before.left_at - seconds))


def served(turns: int, seconds: dict[int, float] | None = None) -> list[int]:
    """Who had the next turns, where every job runs at once for as long as its tenant's do, and all have more to run."""
    found = []
    for _ in range(turns):
        turn = next_one()
        fair_order.freed(Freed(turn.tenant_queue_id, (seconds or {}).get(turn.tenant_queue_id, 1.0), QUEUE))
        found.append(turn.tenant_queue_id)
    return found


# Who is first


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


# Time, not jobs


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


# Neither credit nor debt


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


# Leaving the order and coming back


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


def ended(tenant: int, seconds: float = 1.0) -> Freed:
    return Freed(tenant, seconds, QUEUE)


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


def full(tenant: int) -> None:
    """Its only slot is taken by a worker of ours."""
    offer(tenant)
    turn, _ = fair_order.take("rq:worker:one", [QUEUE], waits=True)
    assert isinstance(turn, Turn)
    fair_order.drop(turn, 1, is_full=True)


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


# The window: how far ahead jobs are admitted


def clock() -> float:
    """That of Redis."""
    seconds, microseconds = redis().time()
    return float(seconds + microseconds / 1_000_000)


def worker_of_rq(name: str, state: str | None, queue: str = QUEUE) -> None:
    redis().sadd(f"rq:workers:{queue}", f"rq:worker:{name}")
    if state:
        redis().hset(f"rq:worker:{name}", mapping={"state": state})


def room() -> int:
    """As many jobs as a tenant may have that nobody competes with."""
    offer(A)
    turn = fair_order.next_turn(QUEUE, FEEDER)
    if turn is None:
        return 0
    fair_order.undo(turn)
    return turn.jobs


alone = pytest.mark.usefixtures("no_workers")


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


# Plain RQ jobs


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


def asks(feeder: str) -> Turn | None:
    return fair_order.next_turn(QUEUE, f"{feeder:8}")


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


# Who looks when a tenant may start a job again


def nudges() -> int:
    return int(redis().lrange(LIST, 0, -1).count(NUDGE.encode()))


def sleeps(name: str) -> None:
    """A worker of ours, at RQ's lists."""
    fair_order.take(name, [QUEUE], waits=True)


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


# What may be lost, run twice, or cut off


def test_a_tenant_takes_less_than_300_bytes() -> None:
    tenants = range(1_000_000, 1_001_000)
    offer(*tenants, share=7)
    for tenant in tenants:
        fair_order.freed(Freed(tenant, 1.23456789, QUEUE))
    names = redis().keys("tenant_slots:*")
    names = [name for name in names if not name.startswith((b"tenant_slots:idle", b"tenant_slots:workers"))]
    used = sum(redis().memory_usage(name, samples=0) for name in names)
    assert len(order()) == 1000
    assert used / 1000 < 300


def everything() -> None:
    redis().delete(KNOWN)


def one_tenant() -> None:
    redis().hdel(KNOWN, A)


def the_queue() -> None:
    redis().hdel(KNOWN, f":{QUEUE}")


@pytest.mark.parametrize("forget", [everything, one_tenant, the_queue])
def test_who_stands_in_the_order_has_its_turns_whatever_else_is_forgotten(forget: Callable[[], None]) -> None:
    """As where a Redis that is a cache has deleted a key, or a new version keeps it in another way."""
    offer(A, B)
    served(200)
    forget()
    offer(C)
    had = Counter(served(30))
    assert (had[A], had[B], had[C]) == (pytest.approx(10, abs=2),) * 3


@pytest.mark.parametrize("in_lane", [True, False])
@pytest.mark.parametrize("forget", [everything, the_queue])
def test_who_stands_behind_all_others_comes_forward_whatever_else_is_forgotten(
    forget: Callable[[], None], in_lane: bool
) -> None:
    """Those who had to give way while no worker listened."""
    offer(A, B)
    fair_order.pass_over(QUEUE, [B], in_lane=in_lane)
    forget()
    assert B in served(3)


def is_known(tenant: int) -> bool:
    return redis().hexists(KNOWN, tenant) or tenant in order() or tenant in order(LANE)


def served_once(tenant: str) -> TenantQueue:
    """A tenant queue that has had jobs in its own queue and in an overflow queue, and was offered since."""
    row = tenant_queue(tenant)
    offer(row.pk), offer(row.pk, queue=LANE)
    fair_order.charge(QUEUE, [(row.pk, 1, 5.0)])
    fair_order.freed(Freed(row.pk, 5.0, QUEUE))
    return row


def deleted_by_sql(row: TenantQueue) -> None:
    TenantQueue.objects.filter(pk=row.pk)._raw_delete(app_settings.DATABASE)


@pytest.mark.django_db(transaction=True)
def test_a_tenant_queue_that_is_deleted_is_forgotten_and_the_others_are_not() -> None:
    gone, other = served_once("gone"), served_once("other")
    pk = gone.pk
    gone.delete()
    assert (is_known(pk), is_known(other.pk)) == (False, True)


@pytest.mark.django_db(transaction=True)
def test_so_is_one_that_sql_has_deleted_when_it_has_its_turn() -> None:
    gone, other = served_once("gone"), served_once("other")
    deleted_by_sql(gone)
    assert transitions.feed(QUEUE) == []
    assert (is_known(gone.pk), is_known(other.pk)) == (False, True)


@pytest.mark.django_db(transaction=True)
def test_a_deletion_stands_although_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    row = served_once("gone")

    def away(*arguments: Any, **options: Any) -> None:
        raise RedisError("away")

    monkeypatch.setattr(fair_order, "_ask", away)
    row.delete()
    assert not TenantQueue.objects.exists()


TWICE: dict[str, Callable[[Turn], object]] = {
    "offer": lambda turn: offer(A, B),
    "drop": lambda turn: fair_order.drop(turn, is_full=True),
    "undo": fair_order.undo,
    "freed": lambda turn: fair_order.freed(Freed(A, 1.0, QUEUE)),
    "never ran": lambda turn: fair_order.freed(Freed(A, NOTHING_RAN, QUEUE)),
    "charge": lambda turn: fair_order.charge(QUEUE, [(A, 2, 5.0)]),
    "bring": lambda turn: fair_order.bring_before_plain_jobs(QUEUE, [OURS.format(1)]),
    "leave": lambda turn: fair_order.leave("one", [QUEUE], is_over=True),
    "forget": lambda turn: fair_order.forget(QUEUE, B),
    "drop for a while": lambda turn: fair_order.drop(turn, is_full=False, wakes_in=60),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_script_that_runs_twice_costs_order_at_most(name: str) -> None:
    """As where the answer was lost, and the client asked again: nobody stands twice, is lost, or in debt for ever."""
    offer(A, B)
    redis().rpush(LIST, "p1", "p2", OURS.format(1))
    turn = next_one()
    TWICE[name](turn)
    there, listed = sorted(order()), redis().lrange(LIST, 0, -1)
    TWICE[name](turn)
    assert sorted(order()) == there
    assert redis().lrange(LIST, 0, -1) == listed
    assert record(A).ahead >= 0
    assert record(A).done < 10
    fair_order.charge(QUEUE, [(A, 0, 0.0)])
    assert record(A).ahead == 0, "the sweep sets the charge right"


Telling = Callable[[Freed], object]

TELLING: dict[str, Telling] = {
    "freed": fair_order.freed,
    "take": lambda slot: fair_order.take("rq:worker:one", [QUEUE], waits=False, slot=slot),
    "again": fair_order.again,
    "cost": lambda slot: fair_order.cost(slot.rq_queue, slot.tenant_queue_id, slot.seconds),
}
EACH_WAY_OF_TELLING = pytest.mark.parametrize("tell", TELLING.values(), ids=TELLING)
LENGTHS = pytest.mark.parametrize("seconds", [0.5, 20.0, 300.0, 3600.0])


@contextmanager
def asked_again() -> Iterator[None]:
    """Each answer of a script is lost once, whereupon the client sends the same once more."""
    execute = Redis.execute_command

    def execute_twice(client: Redis, *arguments: Any, **options: Any) -> Any:
        if arguments[0] == "EVALSHA":
            execute(client, *arguments, **options)  # type: ignore[no-untyped-call]
        return execute(client, *arguments, **options)  # type: ignore[no-untyped-call]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Redis, "execute_command", execute_twice)
        yield


def begun(tenant: int) -> int:
    """Many of its jobs are under way. How many."""
    offer(tenant)
    return next_one().jobs


@LENGTHS
@EACH_WAY_OF_TELLING
def test_what_a_client_says_again_is_charged_once(tell: Telling, seconds: float) -> None:
    begun(A)
    with asked_again():
        tell(Freed(A, seconds, QUEUE))
    assert record(A).done == pytest.approx(seconds, abs=0.01)


@LENGTHS
@EACH_WAY_OF_TELLING
def test_control_two_runs_of_one_length_are_charged_twice(tell: Telling, seconds: float) -> None:
    begun(A)
    tell(Freed(A, seconds, QUEUE)), tell(Freed(A, seconds, QUEUE))
    assert record(A).done == pytest.approx(2 * seconds, abs=0.01)


@pytest.mark.parametrize("first", ["freed", "take", "again"])
@pytest.mark.parametrize("then", ["freed", "take"])
def test_nor_is_it_charged_twice_by_who_has_had_no_answer_and_asks_for_something_else(first: str, then: str) -> None:
    begun(A)
    slot = Freed(A, 3600.0, QUEUE)
    TELLING[first](slot), TELLING[then](slot)
    assert record(A).done == pytest.approx(3600, abs=0.01)


def test_what_ends_meanwhile_does_not_hide_a_longer_run_that_is_told_again() -> None:
    begun(A)
    slot = Freed(A, 3600.0, QUEUE)
    fair_order.freed(slot)
    for seconds in (0.1, 10.0, 100.0) * 10:
        fair_order.freed(Freed(A, seconds, QUEUE))
    had = record(A).done
    fair_order.freed(slot)
    assert record(A).done == had


def test_what_is_told_again_takes_no_job_that_is_under_way() -> None:
    jobs = begun(A)
    slot = Freed(A, 1.0, QUEUE)
    fair_order.freed(slot), fair_order.freed(slot)
    assert record(A).jobs == jobs - 1


def test_a_turn_that_is_asked_for_twice_goes_to_the_next_tenant() -> None:
    """The first answer was lost: that tenant has been charged for nothing, and keeps its place in the order."""
    offer(A, B)
    assert (next_one().tenant_queue_id, next_one().tenant_queue_id) == (A, B)
    assert order() == [A, B]


def test_a_server_that_has_lost_the_script_is_sent_it_again() -> None:
    offer(A)
    redis().script_flush()
    assert next_one().tenant_queue_id == A


@pytest.mark.django_db(transaction=True)
def test_after_a_flush_the_sweep_offers_everybody_who_has_something_to_run() -> None:
    rows = [tenant_queue(f"tenant {number}", max_job=1) for number in range(5)]
    waiting = [waiting_job(row) for row in rows]
    in_overflow_queue = waiting_job(tenant_queue("overflowing"), rq_queue=LANE)
    full, paused = tenant_queue("full"), tenant_queue("paused", paused=True)
    running_job(full, another_process())
    left = [waiting_job(full), waiting_job(paused)]
    redis().flushall()
    worker_of_rq("stock", "busy", LANE)
    assert sweep_now().admitted == 2, "one for each of the two queues, as no worker is known to be idle"
    assert fresh(in_overflow_queue).state == State.QUEUED
    assert sum(fresh(job).state == State.QUEUED for job in waiting) == 1
    assert len(order()) == 4
    assert {fresh(job).state for job in left} == {State.WAITING}
    redis().delete(LIST)
    for _ in waiting[1:]:
        transitions.feed(QUEUE)
        redis().delete(LIST)
    assert {fresh(job).state for job in waiting} == {State.QUEUED}


@pytest.mark.django_db(transaction=True)
def test_what_runs_is_charged_by_the_sweep() -> None:
    row, other = tenant_queue(max_job=2), tenant_queue("other")
    job = running_job(row, another_process())
    running_job(row, another_process())
    age(job, started_at=20 * 3600)
    running_job(other, another_process(), rq_queue=LANE)
    sweep_now()
    assert record(row.pk).ahead == pytest.approx(20 * 3600, abs=60)
    assert record(other.pk, LANE).ahead == 1.0


@pytest.mark.django_db(transaction=True)
def test_no_time_that_is_wrong_has_what_runs_cost_more_than_a_day() -> None:
    row = tenant_queue()
    job = running_job(row, another_process())
    TenantJob.objects.filter(pk=job.pk).update(started_at=datetime(1, 2, 3, tzinfo=UTC))
    sweep_now()
    assert record(row.pk).ahead == 24 * 3600


@pytest.mark.django_db(transaction=True)
def test_what_was_admitted_is_told_although_redis_went_away_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is a hint: that it cannot be told what came of a turn changes nothing about the admission."""
    row = tenant_queue()
    first = waiting_job(row)
    turn = Turn(QUEUE, row.pk, 1, 0)

    def away(*arguments: Any, **values: Any) -> None:
        raise RedisError("Redis went away")

    for name in ("drop", "undo", "bring_before_plain_jobs"):
        monkeypatch.setattr(fair_order, name, away)
    assert feed_turn(turn) == [first]
    assert fresh(first).state == State.QUEUED


@pytest.mark.django_db(transaction=True)
def test_who_has_lost_the_run_settles_no_charge_for_it() -> None:
    """Whoever took its slot away has done that, and its successor may run by now."""
    row = tenant_queue()
    job = running_job(row, owner())
    offer(row.pk)
    next_one()
    TenantJob.objects.filter(pk=job.pk).update(token=job.token + 1)
    before = record(row.pk)
    assert not transitions.release(job, state=State.FINISHED)
    after = record(row.pk)
    assert (after.done, after.ahead, after.mean) == (before.done, before.ahead, before.mean)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("with_more", [False, True])
def test_a_reservation_that_takes_a_tenants_turn_costs_it_no_worker_time(with_more: bool) -> None:
    """It takes a slot, and no worker. Nor is its length what the tenant's jobs are expected to take."""
    row = tenant_queue(max_job=2)
    waiting_job(row, kind=Kind.RESERVATION)
    if with_more:
        waiting_job(row, kind=Kind.RESERVATION)
    reservation, *more = transitions.offer(row.pk, QUEUE)
    assert (len(more), in_rq(), record(row.pk).jobs, record(row.pk).ahead) == (with_more, 0, 0, 0.0)
    run = ReservationRun("web", beats=True)
    assert run.start(reservation)
    run.end({"state": State.FINISHED})
    after = record(row.pk)
    assert (after.jobs, after.ahead, after.done, after.mean) == (0, 0.0, pytest.approx(0.0, abs=1e-3), -1.0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["lost", "canceled", "deleted"])
def test_nor_does_its_end_take_back_what_a_job_of_its_tenant_is_charged(way: str) -> None:
    row = tenant_queue(max_job=2)
    job, reservation = waiting_job(row), waiting_job(row, kind=Kind.RESERVATION)
    assert set(transitions.offer(row.pk, QUEUE)) == {job, reservation}
    assert record(row.pk).jobs == 1
    if way == "lost":
        assert slots.start(fresh(reservation), another_process())
        assert lost_runs.end_interrupted_run(fresh(reservation), "gone")
    elif way == "canceled":
        assert transitions.cancel_unstarted(fresh(reservation))
    else:
        fresh(reservation).delete()
    assert (record(row.pk).jobs, record(row.pk).ahead) == (1, 1.0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("end", [lost_runs.end_lost_run, lost_runs.end_interrupted_run])
def test_a_run_whose_process_died_is_charged_what_it_took(end: Callable[..., bool]) -> None:
    row = tenant_queue()
    job = running_job(row, another_process())
    age(job, started_at=100)
    assert end(job, "died")
    assert record(row.pk).done == pytest.approx(100, abs=5)
    assert record(row.pk).mean == pytest.approx(100, abs=5)


@pytest.mark.django_db(transaction=True)
def test_however_late_that_is_noticed() -> None:
    """By its last heartbeat it cannot have run for longer."""
    row = tenant_queue()
    job = running_job(row, another_process())
    age(job, started_at=1000, beat_at=900)
    assert lost_runs.end_interrupted_run(job, "its host is gone")
    assert record(row.pk).done == pytest.approx(105, abs=1)


@pytest.mark.django_db(transaction=True)
def test_no_time_that_is_wrong_costs_more_than_a_day() -> None:
    row = tenant_queue()
    job = running_job(row, another_process())
    TenantJob.objects.filter(pk=job.pk).update(started_at=fresh(job).started_at.replace(year=2000))
    assert lost_runs.end_lost_run(fresh(job), "died")
    assert record(row.pk).done == pytest.approx(24 * 3600, abs=1)


@pytest.mark.django_db(transaction=True)
def test_a_running_job_that_is_deleted_is_charged_what_it_took() -> None:
    row = tenant_queue()
    job = running_job(row, another_process())
    age(job, started_at=100)
    job.delete()
    assert record(row.pk).done == pytest.approx(100, abs=5)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("seconds", "charged"), [(None, 100.0), (7.0, 7.0), (NOTHING_CHARGED, 0.0), (NOTHING_RAN, 0.0)]
)
def test_an_end_that_was_kept_is_charged_once(seconds: float | None, charged: float) -> None:
    """By who has measured it, unless it was charged before; else by the row."""
    row = tenant_queue()
    job = running_job(row, another_process())
    age(job, started_at=100)
    run = (job.pk, job.token)
    assert list(kept.settle([Ending(run, {"state": State.FINISHED}, seconds=seconds)])) == [run]
    assert record(row.pk).done == pytest.approx(charged, abs=5)


def test_all_queues_of_one_server_are_asked_together() -> None:
    from tenant_slots import queue_directory

    assert sorted(queue_directory.queues_beside(QUEUE)) == sorted(settings.RQ_QUEUES)


# Who may start no job at all


def shut(tenant: int) -> None:
    """Its turn has shown that it is paused, or that all its slots are taken."""
    offer(tenant)
    fair_order.drop(next_one(), is_full=True, is_shut=True)


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


# Plain RQ jobs that were admitted


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


# Time that has not been


def starts(tenant: int) -> None:
    """A worker takes its next job."""
    turn, _ = fair_order.take("rq:worker:one", [QUEUE], waits=False)
    assert isinstance(turn, Turn)
    assert turn.tenant_queue_id == tenant


def seem_to_run_for_longer(tenant: int, seconds: float) -> None:
    before = record(tenant)
    write(tenant, QUEUE, before._replace(begun=before.begun - before.jobs * seconds))


def test_the_clock_of_the_queue_goes_back_where_time_was_assumed_that_no_job_has_taken() -> None:
    """Their ends could not be told for ten minutes. Whoever came then stood behind all that A has had no time for."""
    offer(A), starts(A), starts(A)
    seem_to_run_for_longer(A, 600)
    starts(A)
    for _ in range(3):
        fair_order.freed(Freed(A, 1.0, QUEUE))
    fair_order.charge(QUEUE, [])
    offer(B)
    had = Counter(served(100))
    assert abs(had[A] - had[B]) <= 8


@pytest.mark.parametrize("is_swept_first", [True, False])
def test_who_comes_while_nothing_is_known_of_ends_stands_behind_no_time_that_nobody_has_had(
    *, is_swept_first: bool
) -> None:
    """Neither does who comes after one of these, as the first job of a newcomer is no news of the others."""
    offer(A), starts(A), starts(A)
    fair_order.charge(QUEUE, [(A, 2, 0.0)])
    seem_to_run_for_longer(A, 600)
    age_sweep(QUEUE, 600)
    starts(A)
    offer(B), starts(B)
    fair_order.freed(Freed(B, 1.0, QUEUE))
    if is_swept_first:
        fair_order.charge(QUEUE, [(A, 3, 3.0)])
    for _ in range(3):
        fair_order.freed(Freed(A, 1.0, QUEUE))
    if not is_swept_first:
        fair_order.charge(QUEUE, [])
    offer(C)
    had = Counter(served(300))
    assert abs(had[A] - had[B]) <= 30  # two jobs, believed to run for 15 s
    assert abs(had[B] - had[C]) <= 30


def test_a_queue_that_nobody_sweeps_has_a_clock_too() -> None:
    offer(A), starts(A), starts(A)
    seem_to_run_for_longer(A, 600)
    starts(A)
    offer(B)
    assert record(B).done == pytest.approx(1200, abs=10)


def test_the_clock_of_the_queue_goes_back_with_a_sweep_that_knows_better() -> None:
    offer(A), starts(A), starts(A)
    seem_to_run_for_longer(A, 600)
    starts(A)
    fair_order.charge(QUEUE, [(A, 3, 3.0)])
    offer(B)
    had = Counter(served(100))
    assert abs(had[A] - had[B]) <= 8


def test_the_clock_of_the_queue_does_not_go_back_for_a_tenant_that_is_behind_it() -> None:
    """It is others that have had so much time."""
    offer(A, B)
    next_one(), next_one()
    fair_order.freed(Freed(B, 600.0, QUEUE))
    fair_order.drop(next_one(), is_full=False)
    assert next_one().tenant_queue_id == B
    fair_order.charge(QUEUE, [(A, 1, 0.0), (B, 1, 0.0)])
    offer(C)
    fair_order.freed(Freed(C, 0.0, QUEUE))
    assert record(C).done >= 600


def test_the_clock_of_the_queue_does_not_go_forward_where_a_job_waits_in_the_window() -> None:
    """Beside four jobs that run for an hour: D has waited all the while, and C comes now."""
    offer(A), starts(A)
    fair_order.charge(QUEUE, [(A, 5, 0.0)])
    offer(D)
    fair_order.charge(QUEUE, [(A, 5, 4 * 3600.0 + 5)])
    fair_order.charge(QUEUE, [(A, 5, 4 * 3600.0)])
    offer(C)
    for seconds in (*[3600.0] * 4, NOTHING_RAN):
        fair_order.freed(Freed(A, seconds, QUEUE))
    had = Counter(served(200))
    assert abs(had[C] - had[D]) <= 4


@pytest.mark.parametrize("knows", [True, pytest.param(False, id="control")])
def test_a_job_that_ends_after_the_database_was_asked_what_runs_is_charged_once(*, knows: bool) -> None:
    """A sweep asks first what is known. Else the clock goes on by time that nobody has had, and who comes has none."""
    offer(A), starts(A)
    fair_order.charge(QUEUE, [(A, 1, 600.0)])
    seen = fair_order.under_way(QUEUE)
    fair_order.freed(Freed(A, 600.0, QUEUE))
    fair_order.charge(QUEUE, [(A, 1, 600.0)], seen=seen if knows else None)
    starts(A)
    offer(B)
    assert record(B).done == pytest.approx(600 if knows else 1200, abs=10)


def ends() -> None:
    fair_order.freed(Freed(A, 600.0, QUEUE))


def is_handed_on() -> None:
    assert fair_order.again(Freed(A, 600.0, QUEUE))


def one_starts() -> None:
    starts(A)


def all_end() -> None:
    ends(), ends()


def is_forgotten() -> None:
    redis().delete(KNOWN)


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("happens", "said", "found"),
    [
        (nothing, (2, 1200.0), (2, 1200)),
        (nothing, (1, 900.0), (1, 900)),
        (ends, (2, 1200.0), (1, 600)),
        (ends, (1, 600.0), (1, 600)),
        (all_end, (2, 1200.0), (0, 0)),
        (all_end, (1, 600.0), (0, 0)),
        (all_end, None, (0, 0)),
        (all_end, (2, 1300.0), (0, 0)),
        (is_handed_on, (2, 1200.0), (2, 600)),
        (is_handed_on, (2, 600.0), (2, 600)),
        (one_starts, (2, 1200.0), (3, 1200)),
        (one_starts, (3, 1200.0), (3, 1200)),
        (one_starts, None, (1, 0)),
        (is_forgotten, (2, 1200.0), (0, 0)),
    ],
)
def test_what_happens_while_the_database_is_asked_what_runs_counts_whether_or_not_it_says_so(
    happens: Callable[[], None], said: tuple[int, float] | None, found: tuple[int, float]
) -> None:
    offer(A), starts(A), starts(A)
    fair_order.charge(QUEUE, [(A, 2, 1200.0)])
    seen = fair_order.under_way(QUEUE)
    happens()
    fair_order.charge(QUEUE, [(A, *said)] if said else [], seen=seen)
    now = record(A)
    assert (now.jobs, now.jobs * clock() - now.begun) == (found[0], pytest.approx(found[1], abs=10))


@pytest.mark.parametrize("happens", [ends, is_handed_on, one_starts])
def test_a_count_that_is_wrong_is_set_right_although_something_happens_meanwhile(happens: Callable[[], None]) -> None:
    """Ends that could not be told: these jobs seem to run on for ever."""
    offer(A), starts(A), starts(A)
    before = record(A)
    write(A, QUEUE, before._replace(jobs=50, begun=50 * (clock() - 3600)))
    seen = fair_order.under_way(QUEUE)
    happens()
    fair_order.charge(QUEUE, [(A, 2, 1200.0)], seen=seen)
    now = record(A)
    assert now.jobs in (2, 3)
    assert now.jobs * clock() - now.begun == pytest.approx(1200, abs=10)


def test_what_the_order_has_forgotten_is_charged_although_others_start_meanwhile() -> None:
    seen = fair_order.under_way(QUEUE)
    offer(B), starts(B)
    fair_order.charge(QUEUE, [(A, 1, 600.0)], seen=seen)
    assert (record(A).jobs, record(B).jobs) == (1, 1)


def test_a_cancel_beside_long_jobs_makes_no_credit_of_absence() -> None:
    """Four of A run for an hour, and one in the window is canceled. B has had as much, and D comes back."""
    offer(D), starts(D)
    fair_order.drop(Turn(QUEUE, D, jobs=0, offers=record(D).offers), is_full=False)
    fair_order.freed(Freed(D, 1.0, QUEUE, is_over=True))
    offer(A), starts(A)
    fair_order.charge(QUEUE, [(A, 4, 4 * 3600.0)])
    offer(B), starts(B)
    fair_order.drop(Turn(QUEUE, B, jobs=0, offers=record(B).offers), is_full=False)
    fair_order.freed(Freed(B, 4 * 3600.0, QUEUE, is_over=True))
    away(D, 4 * 3600)
    starts(A)
    fair_order.freed(Freed(A, NOTHING_RAN, QUEUE))
    fair_order.charge(QUEUE, [(A, 4, 4 * 3600.0)])
    offer(B), offer(D)
    for _ in range(4):
        fair_order.freed(Freed(A, 3600.0, QUEUE))
    had = Counter(served(400))
    assert abs(had[D] - had[B]) <= 4


def test_the_clock_of_the_queue_does_not_go_back_for_the_end_of_a_job_that_was_never_counted() -> None:
    """A plain RQ job had no turn. What its tenant has had beside it is what another one runs for."""
    offer(A), starts(A)
    fair_order.charge(QUEUE, [(A, 1, 3600.0)])
    starts(A)
    fair_order.charge(QUEUE, [(A, 1, 3600.0)])
    fair_order.freed(Freed(A, 1.0, QUEUE))
    fair_order.charge(QUEUE, [(A, 1, 3600.0)])
    offer(C)
    assert record(C).done == pytest.approx(3600, abs=10)


def test_a_clock_of_redis_that_was_set_back_earns_nobody_what_it_was_away_for() -> None:
    offer(A), starts(A)
    fair_order.drop(Turn(QUEUE, A, jobs=0, offers=record(A).offers), is_full=False)
    fair_order.freed(Freed(A, 1.0, QUEUE, is_over=True))
    away(A, -3600)
    offer(B)
    for _ in range(300):
        starts(B)
        fair_order.freed(Freed(B, 10.0, QUEUE))
    offer(A)
    had = Counter(served(100, {A: 10.0, B: 10.0}))
    assert abs(had[A] - had[B]) <= 4


@pytest.mark.parametrize("has_work", [True, False])
def test_a_tenant_that_was_changed_with_many_others_has_a_turn_with_its_next_job(*, has_work: bool) -> None:
    """Those that have nothing to run by then are not offered."""
    shut(A)
    transitions.tell_shares(QUEUE, [(A, 1)])
    transitions.offer_again(QUEUE, [(A, 1)] if has_work else [])
    offer(A)
    assert order() == [A]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_a_look_at_keys_that_are_at_their_cap_is_charged_to_their_tenant() -> None:
    """Each enqueue may be for another key, and so leads to one."""
    row = tenant_queue("acme", max_job=5)
    row.set_max_job_per_key(1)
    pretend_idle(1)
    jobs.fail.using(key="a").enqueue("acme")
    redis().delete(LIST)
    before = record(row.pk)
    jobs.fail.using(key="a").enqueue("acme")
    assert record(row.pk).done > before.done


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_a_look_that_finds_nothing_is_charged_to_whoever_was_offered() -> None:
    """It comes in front of all, as one that had nothing to run, each time that it enqueues and cancels."""
    row = tenant_queue("acme", max_job=5)
    pretend_idle(1)
    fair_order.offer(QUEUE, [(row.pk, 1)])
    before = record(row.pk)
    transitions.feed(QUEUE)
    assert record(row.pk).done > before.done


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_nobody_is_charged_for_the_look_that_finds_a_job() -> None:
    row = tenant_queue("acme", max_job=5)
    pretend_idle(1)
    before = fair_order.offer(QUEUE, [(row.pk, 1)]) and record(row.pk)
    waiting_job(row)
    transitions.feed(QUEUE)
    assert in_rq() == 1
    assert record(row.pk).done == before.done


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_who_feeds_does_not_wait_for_those_that_are_held_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comes back while the others are looked at. What is left is for a worker that waits."""
    sleeps("one"), offer(*range(100, 110))
    looks: list[object] = []

    def finds_it_held(*turn: Any) -> Any:
        looks.append(turn)
        assert len(looks) < 500, "it never ends"
        raise TenantQueueLocked(tenant_queue="acme on imports", seconds=0.2)

    monkeypatch.setattr(slots, "admit", finds_it_held)
    monkeypatch.setattr(held, "note", lambda *look: 0.0)
    monkeypatch.setattr(transitions, "SECONDS_IN_VAIN", 0.1)
    assert transitions.feed(QUEUE) == []
    assert looks
    assert nudges() == 1


@alone
def test_of_many_that_may_start_jobs_again_some_come_with_each_turn() -> None:
    """Redis serves nobody else meanwhile. None of them waits for longer than until it is its turn."""
    tenants = range(1, 2001)
    offer(*tenants)
    redis().delete(f"tenant_slots:order:{QUEUE}")
    redis().zadd(f"tenant_slots:wake:{QUEUE}", dict.fromkeys(tenants, clock() - 1))
    offer(A), fair_order.drop(next_one(), is_full=True, wakes_in=0.0)
    came = 0
    for _ in tenants:
        turn = next_one()
        fair_order.drop(turn, 1, is_full=True, is_shut=True)
        still = redis().zcard(f"tenant_slots:wake:{QUEUE}")
        assert len(tenants) - still - came <= 200
        came = len(tenants) - still
    assert came == len(tenants)
    assert redis().zcard(f"tenant_slots:wake:{QUEUE}") == 0
    assert order() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_a_tenant_queue_that_somebody_holds_is_charged_for_the_wait_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many enqueues for it would take all workers else."""
    row = tenant_queue("acme")
    pretend_idle(1)

    def held(*turn: Any) -> Any:
        raise TenantQueueLocked(tenant_queue="acme on imports", seconds=0.2)

    with monkeypatch.context() as patched:
        patched.setattr(slots, "admit", held)
        jobs.fail.enqueue("acme")
        before = record(row.pk)
        jobs.fail.enqueue("acme")
    assert record(row.pk).done > before.done
    wait_until(lambda: transitions.feed(QUEUE), timeout=10)
