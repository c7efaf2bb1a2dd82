"""What may be lost of the order, told twice, or cut off."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import pytest
from django.conf import settings
from redis import Redis
from redis.exceptions import RedisError

from tenant_slots import fair_order, slots, transitions
from tenant_slots.conf import app_settings
from tenant_slots.fair_order import NOTHING_CHARGED, NOTHING_RAN, Freed, Turn
from tenant_slots.models import Kind, State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs
from tenant_slots.running.keeper import ReservationRun
from tenant_slots.workers import kept
from tenant_slots.workers.kept import Ending
from tests.factories import (
    age,
    another_process,
    feed_turn,
    fresh,
    in_rq,
    owner,
    running_job,
    tenant_queue,
    waiting_job,
)
from tests.fair_order.orders import (
    LANE,
    LIST,
    OURS,
    QUEUE,
    A,
    B,
    C,
    next_one,
    offer,
    order,
    record,
    redis,
    served,
    worker_of_rq,
)
from tests.order_records import KNOWN
from tests.repair.sweeps import sweep_now


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


def everything_is_asked() -> None:
    """Each part of what Redis keeps is read or written."""
    offer(A)
    turn, _ = fair_order.take("rq:worker:one", [QUEUE], waits=True)
    assert isinstance(turn, Turn)
    fair_order.drop(turn, 1, is_full=True, wakes_in=60)
    fair_order.take("rq:worker:one", [QUEUE], waits=True)
    fair_order.bring_before_plain_jobs(QUEUE, ["plain"])
    fair_order.charge(QUEUE, [(A, 1, 1.0)], ["plain"])


def test_no_part_of_the_order_is_missing_among_those_that_are_forgotten_so() -> None:
    script = files("tenant_slots").joinpath("fair_order.lua").read_text()
    assert set(re.findall(r"\bkey\('(\w+)'", script)) == fair_order.TYPES.keys()
    assert set(re.findall(r"'(tenant_slots:\w+)'", script)) == {fair_order.KNOWN}


@pytest.mark.parametrize("key", [KNOWN, *(f"tenant_slots:{part}:{QUEUE}" for part in fair_order.TYPES)])
def test_what_somebody_else_has_put_in_the_place_of_the_order_is_forgotten(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a job that writes where it should not, or another program in the same database."""
    redis().delete(key)
    redis().set(key, "of somebody else")
    everything_is_asked()
    assert redis().type(key) != b"string"
    assert [one.getMessage() for one in caplog.records if key in one.getMessage()]


@pytest.mark.parametrize("part", ["order", "wake"])
@pytest.mark.parametrize("member", ["", "acme", "1.5", "-1", "01", "0", "\n1", b"\xff", "9" * 5000])
def test_who_stands_in_the_order_and_is_no_tenant_takes_nobodys_turn(part: str, member: str | bytes) -> None:
    offer(A, B)
    turn = fair_order.next_turn(QUEUE, "")  # so that the queue knows of those that come back
    assert turn
    fair_order.drop(turn, 1, is_full=True, wakes_in=0)
    redis().zadd(f"tenant_slots:{part}:{QUEUE}", {member: 0, f"{member!r} too": 0})
    assert set(served(4)) == {A, B}
    assert set(fair_order.heads(QUEUE)) == {A, B}


def test_many_who_are_no_tenants_leave_in_a_few_steps() -> None:
    offer(A)
    strangers = {f"stranger {number}": -1e16 for number in range(25_000)}
    redis().zadd(f"tenant_slots:order:{QUEUE}", strangers)
    turns = [fair_order.next_turn(QUEUE, "") for _ in range(3)]
    assert [turn and turn.tenant_queue_id for turn in turns] == [None, None, A], "ten thousand at a time"


def test_a_queue_whose_name_is_no_text_is_none_that_there_is() -> None:
    offer(A)
    served(2)
    raw = redis().hget(KNOWN, str(A))
    assert raw
    name = b"\xff\xfe"
    redis().hset(KNOWN, str(A), raw + struct.pack("<H", len(name)) + name + raw[2 + len(QUEUE) :])
    assert fair_order.freed(Freed(A, 1.0, QUEUE)) in ([], [QUEUE])


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e300"])
@pytest.mark.parametrize("field", [str(A), f":{QUEUE}"])
def test_a_record_with_what_is_no_time_is_forgotten(field: str, number: str) -> None:
    """As when somebody else has written there: Redis takes no such score, and each question would fail."""
    offer(A, B)
    served(4)
    raw = redis().hget(KNOWN, field)
    assert raw
    before = 2 + len(QUEUE) if field == str(A) else 0  # the name of the queue and its length
    assert len(raw) > before + 8
    redis().hset(KNOWN, field, raw[:before] + struct.pack("<d", float(number)) + raw[before + 8 :])
    assert set(served(8)) == {A, B}
    everything_is_asked()


@pytest.mark.parametrize("key", [LIST, f"rq:workers:{QUEUE}"])
def test_what_is_in_the_place_of_something_of_rqs_is_left_there(key: str) -> None:
    redis().delete(key)
    redis().set(key, "of somebody else")
    with pytest.raises(RedisError, match="WRONGTYPE"):
        everything_is_asked()
    assert redis().type(key) == b"string"


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
