"""Rule 4: a job that is enqueued while a slot is being released is never left beside the free slot."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import pytest
from django.db import connection

from tenant_slots import fair_order, limits, many_limits, moves, slots, statements, transitions
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.releases import Admission
from tests.factories import (
    admit,
    counters_match,
    fresh,
    in_rq,
    owner,
    redis_forgets,
    running_job,
    tenant_queue,
    waiting_job,
)
from tests.processes import somebody_waits_for_a_lock, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        connection.vendor != "postgresql", reason="SQLite has one writer at a time, so this interleaving cannot happen"
    ),
]


class ReleaseHeldOpen:
    """A release in another thread that has freed its slot and has not committed yet."""

    def __init__(self, job: TenantJob, monkeypatch: pytest.MonkeyPatch) -> None:
        self.freed, self.commit = Event(), Event()
        original = moves.leave_at_once
        me = self

        def free_then_hold(*arguments: Any) -> Any:
            left = original(*arguments)
            if not me.freed.is_set():
                me.freed.set()
                assert me.commit.wait(20)
            return left

        monkeypatch.setattr(moves, "leave_at_once", free_then_hold)
        self.thread = Thread(target=self._release, args=(job,))

    @staticmethod
    def _release(job: TenantJob) -> None:
        try:
            transitions.release(job, state=State.FINISHED)
        finally:
            connection.close()

    def __enter__(self) -> ReleaseHeldOpen:
        self.thread.start()
        assert self.freed.wait(20)
        return self

    def __exit__(self, *_: Any) -> None:
        self.commit.set()
        self.thread.join(20)


def test_admit_waits_for_the_release_and_takes_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue(max_job=1)
    running = running_job(row, owner())
    with ReleaseHeldOpen(running, monkeypatch) as release:
        newcomer = waiting_job(row)
        admission = Thread(target=lambda: (admit(row), connection.close()))
        admission.start()
        wait_until(somebody_waits_for_a_lock)
        release.commit.set()
        admission.join(20)
    assert fresh(newcomer).state == State.QUEUED
    assert counters_match()


def test_control_without_the_lock_the_tenant_seems_to_be_full(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue(max_job=1)
    running = running_job(row, owner())
    monkeypatch.setattr(fair_order, "freed", lambda *arguments: [])
    with ReleaseHeldOpen(running, monkeypatch):
        newcomer = waiting_job(row)
        assert not naive_admit(row)
    assert fresh(newcomer).state == State.WAITING
    assert fresh(row).current_job == 0, "the slot is free, the job waits, and nobody will come"


def test_what_a_release_offers_is_admitted_even_after_an_answer_that_was_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order of tenants does not rely on the lock: the offer comes when the release has committed."""
    row = tenant_queue(max_job=1)
    running = running_job(row, owner())
    with ReleaseHeldOpen(running, monkeypatch):
        newcomer = waiting_job(row)
        with monkeypatch.context() as naive:
            naive.setattr(slots, "admit", lambda *turn: Admission(is_full=not naive_admit(row)))
            assert transitions.offer(row.pk, "imports") == []
        assert list(fair_order.known("imports", [row.pk])) == []
    assert fresh(newcomer).state == State.QUEUED
    assert counters_match()


def naive_admit(row: TenantQueue) -> bool:
    """The conditional UPDATE alone, as the seed design had it."""
    return bool(statements.TAKE.update(pk=row.pk, slots=1))


def test_enqueue_never_waits_for_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The insert's foreign key takes a share lock on the row's key, which the NO KEY lock lets through."""
    row = tenant_queue(max_job=1)
    running = running_job(row, owner())
    with ReleaseHeldOpen(running, monkeypatch), connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '2s'")
        waiting_job(row)
        cursor.execute("SET lock_timeout = 0")
    assert TenantJob.objects.count() == 2


def test_another_tenant_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 7: tenants do not touch."""
    row, other = tenant_queue("acme"), tenant_queue("other")
    running = running_job(row, owner())
    waiting_job(other)
    with ReleaseHeldOpen(running, monkeypatch):
        assert len(admit(other)) == 1


def turn_in_lane(row: TenantQueue) -> fair_order.Turn:
    """Which a worker of ours has taken."""
    fair_order.offer("imports_bulk", [(row.pk, 1)])
    turn, _ = fair_order.take("worker", ["imports_bulk"], waits=False)
    assert isinstance(turn, fair_order.Turn)
    return turn


def test_a_release_counts_for_a_turn_in_another_queue_that_saw_the_slot_taken() -> None:
    """Forced: the slot of the tenant's job in one RQ queue is freed before the turn in the other one says "full"."""
    redis_forgets()
    row = tenant_queue(max_job=1)
    running = running_job(row, owner())
    waiting_job(row, rq_queue="imports_bulk")
    turn = turn_in_lane(row)
    with transitions.in_turn(turn) as came_of:
        seen = slots.admit_and_start(row.pk, "imports_bulk", owner(), lambda job: None)
        assert seen.is_full
        transitions.release(running, state=State.FINISHED)
        came_of(seen)
    assert list(fair_order.known("imports_bulk", [row.pk])) == [row.pk]


def test_what_a_release_frees_meanwhile_is_told_to_an_idle_worker_there() -> None:
    """Forced, as before. To whoever frees the slot the tenant seems to have its turn."""
    redis_forgets()
    row = tenant_queue(max_job=2)
    running = running_job(row, owner())
    _, following = (waiting_job(row, rq_queue="imports_bulk") for _ in range(2))
    assert fair_order.take("idle", ["imports_bulk"], waits=True)[0] is None
    turn = turn_in_lane(row)
    with transitions.in_turn(turn) as came_of:
        seen = slots.admit_and_start(row.pk, "imports_bulk", owner(), lambda job: None)
        assert seen.is_full
        transitions.release(running, state=State.FINISHED)
        assert fresh(following).state == State.WAITING
        came_of(seen)
    assert fresh(following).state == State.QUEUED
    assert counters_match()


def test_a_turn_that_ends_does_not_take_away_the_place_that_a_later_one_has_kept() -> None:
    """Forced: two slots are freed after the first turn saw none, and the second turn takes one of them."""
    redis_forgets()
    row = tenant_queue(max_job=2)
    running = [running_job(row, owner()) for _ in range(2)]
    for _ in range(3):
        waiting_job(row, rq_queue="imports_bulk")
    first = turn_in_lane(row)
    with transitions.in_turn(first) as came_of:
        seen = slots.admit_and_start(row.pk, "imports_bulk", owner(), lambda job: None)
        assert seen.is_full
        for job in running:
            transitions.release(job, state=State.FINISHED)
        second, _ = fair_order.take("another", ["imports_bulk"], waits=False)
        assert isinstance(second, fair_order.Turn)
        with transitions.in_turn(second) as came_of_second:
            came_of_second(slots.admit_and_start(row.pk, "imports_bulk", owner("another"), lambda job: None))
        came_of(seen)
    assert list(fair_order.known("imports_bulk", [row.pk])) == [row.pk]


def test_control_a_turn_that_saw_the_slot_taken_ends_where_nothing_was_released_meanwhile() -> None:
    row = tenant_queue(max_job=1)
    running_job(row, owner())
    waiting_job(row, rq_queue="imports_bulk")
    turn = turn_in_lane(row)
    with transitions.in_turn(turn) as came_of:
        came_of(slots.admit_and_start(row.pk, "imports_bulk", owner(), lambda job: None))
    assert list(fair_order.known("imports_bulk", [row.pk])) == []


def test_who_saw_its_slot_taken_again_and_again_does_not_go_before_a_newcomer() -> None:
    """Its slot is freed, and taken by another worker for the other RQ queue, during each of its turns."""
    redis_forgets()
    full, newcomer = tenant_queue("full", max_job=1), tenant_queue("newcomer", max_job=1)
    running: TenantJob | None = running_job(full, owner())
    for row in (full, newcomer):
        waiting_job(row, rq_queue="imports_bulk")
        fair_order.offer("imports_bulk", [(row.pk, 1)])
    turns: list[int] = []
    while newcomer.pk not in turns and len(turns) < 6:
        turn, _ = fair_order.take("worker", ["imports_bulk"], waits=False)
        assert isinstance(turn, fair_order.Turn)
        turns.append(turn.tenant_queue_id)
        if turn.tenant_queue_id == full.pk:
            with transitions.in_turn(turn) as came_of:
                seen = slots.admit_and_start(full.pk, "imports_bulk", owner(), lambda job: None)
                assert running
                transitions.release(running, state=State.FINISHED)
                waiting_job(full)
                running = slots.admit_and_start(full.pk, "imports", owner("other"), lambda job: None).started
                came_of(seen)
    assert turns == [full.pk, newcomer.pk]


def test_a_turn_that_found_nothing_waiting_is_over_whatever_was_released_meanwhile() -> None:
    row = tenant_queue(max_job=2)
    running = running_job(row, owner())
    turn = turn_in_lane(row)
    with transitions.in_turn(turn) as came_of:
        seen = slots.admit_and_start(row.pk, "imports_bulk", owner(), lambda job: None)
        transitions.release(running, state=State.FINISHED)
        came_of(seen)
    assert list(fair_order.known("imports_bulk", [row.pk])) == []


def enqueue(row: TenantQueue) -> TenantJob:
    """One that is offered as soon as it is committed."""
    job = waiting_job(row)
    transitions.offer(row.pk, row.queue, row.share)
    return job


def shut(queue: str) -> TenantQueue:
    """Paused, as a turn has shown, and without anything to run by now."""
    row = tenant_queue(queue=queue, max_job=5)
    row.pause()
    job = enqueue(row)
    assert list(fair_order.known(queue, [row.pk])) == []
    transitions.cancel_unstarted(job)
    return row


def resume_together(rows: list[TenantQueue]) -> None:
    edited = [many_limits.edited(row, limits.resumed, "staff", "") for row in rows]
    assert all(many_limits.write(one) for one in edited)
    many_limits.wait_for_disk()
    many_limits.follow(edited)


def enqueue_after_the_look(row: TenantQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a change of many tenant queues has asked which of them have work."""
    with_work = many_limits._with_work

    def then_enqueued(pks: list[int]) -> set[int]:
        found = with_work(pks)
        enqueue(row)
        return found

    monkeypatch.setattr(many_limits, "_with_work", then_enqueued)


@pytest.mark.usefixtures("no_workers")
def test_who_is_resumed_with_others_has_a_turn_for_what_is_enqueued_after_the_look_for_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [shut("imports"), shut("reports")]
    enqueue_after_the_look(rows[1], monkeypatch)
    resume_together(rows)
    assert in_rq("reports") == 1


@pytest.mark.usefixtures("no_workers")
def test_so_has_it_for_what_is_enqueued_while_workers_of_another_queue_get_their_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [shut("imports"), shut("reports")]
    waiting_job(rows[0])
    feed = transitions.feed

    def then_enqueued(rq_queue: str) -> list[TenantJob]:
        if rq_queue == "imports":
            enqueue(rows[1])
        return feed(rq_queue)

    monkeypatch.setattr(transitions, "feed", then_enqueued)
    resume_together(rows)
    assert (in_rq("imports"), in_rq("reports")) == (1, 1)


@pytest.mark.usefixtures("no_workers")
def test_control_who_counts_as_shut_when_it_is_asked_who_has_work_waits_for_a_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [shut("imports"), shut("reports")]
    enqueue_after_the_look(rows[1], monkeypatch)
    monkeypatch.setattr(transitions, "tell_shares", lambda queue, shares: None)
    resume_together(rows)
    assert in_rq("reports") == 0
