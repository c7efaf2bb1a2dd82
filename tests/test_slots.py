"""The algorithm, function by function."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from tenant_slots import fair_order, moves, slots, statements, transitions
from tenant_slots.fair_order import Turn
from tenant_slots.models import Kind, State, TenantJob, TenantQueue
from tenant_slots.owners import Owner
from tenant_slots.releases import Admission, Release
from tests.factories import (
    admit,
    counters_match,
    feed_turn,
    fresh,
    in_thread,
    many_waiting,
    owner,
    release_then_admit,
    running_job,
    tenant_queue,
    waiting_job,
)
from tests.plans import analyze, empty_files, explained, explained_sql
from tests.processes import wait_until
from tests.refusals import any_change_of, refused

pytestmark = pytest.mark.django_db


def test_rule_1_the_gate_lets_in_as_many_as_are_free() -> None:
    row = tenant_queue(max_job=2)
    assert [statements.TAKE.update(pk=row.pk, slots=1) for _ in range(3)] == [1, 1, 0]
    assert fresh(row).current_job == 2


def test_rule_1_the_gate_of_a_paused_tenant_is_shut() -> None:
    row = tenant_queue(max_job=2, paused=True)
    assert not statements.TAKE.update(pk=row.pk, slots=1)


def test_rule_1_a_limit_of_zero_lets_nothing_start() -> None:
    row = tenant_queue(max_job=0)
    waiting_job(row)
    assert admit(row) == []


def test_rule_1_several_slots_are_taken_together_or_not_at_all() -> None:
    row = tenant_queue(max_job=2)
    assert not statements.TAKE.update(pk=row.pk, slots=3)
    assert fresh(row).current_job == 0


def test_rule_2_the_counter_moves_with_the_jobs() -> None:
    row = tenant_queue(max_job=2)
    for _ in range(3):
        waiting_job(row)
    admitted = admit(row)
    assert [job.state for job in admitted] == [State.QUEUED, State.QUEUED]
    assert fresh(row).current_job == 2
    assert counters_match()


def test_rule_3_a_second_release_changes_nothing() -> None:
    row = tenant_queue(max_job=1)
    waiting_job(row)
    (job,) = admit(row)
    assert slots.release(job, state=State.FINISHED)
    assert not slots.release(job, state=State.FINISHED)
    assert fresh(row).current_job == 0


def test_rule_3_an_earlier_attempt_releases_nothing() -> None:
    row = tenant_queue(max_job=1)
    waiting_job(row)
    (stale,) = admit(row)
    assert release_then_admit(stale, state=State.WAITING) == [stale]
    current = TenantJob.objects.get(pk=stale.pk)
    assert current.state == State.QUEUED
    assert not slots.release(stale, state=State.FINISHED)
    assert fresh(row).current_job == 1
    assert fresh(current).state == State.QUEUED


def test_rule_3_a_job_starts_once() -> None:
    row = tenant_queue()
    waiting_job(row)
    (job,) = admit(row)
    assert slots.start(job, owner("one"))
    assert not slots.start(job, owner("two"))
    assert fresh(job).worker == "one"


def test_rule_3_the_counter_never_goes_below_zero() -> None:
    row = tenant_queue()
    assert not statements.GIVE_BACK.update(pk=row.pk, slots=1)
    with pytest.raises(IntegrityError), transaction.atomic():
        TenantQueue.objects.filter(pk=row.pk).update(current_job=-1)


def test_rule_4_a_release_frees_the_slot_and_the_tenants_next_turn_takes_it() -> None:
    row = tenant_queue(max_job=1)
    first, second = waiting_job(row), waiting_job(row)
    (admitted,) = admit(row)
    assert admitted.pk == first.pk
    released = slots.release(admitted, state=State.FINISHED)
    assert (released.state, released.admission) == (State.FINISHED, None)
    assert (fresh(second).state, fresh(row).current_job) == (State.WAITING, 0), "whose turn it is, is not said here"
    assert [job.pk for job in admit(row)] == [second.pk]
    assert fresh(row).current_job == 1
    assert counters_match()


def test_rule_5_priority_first_then_enqueue_order() -> None:
    row = tenant_queue(max_job=4)
    early, late, urgent, last = (waiting_job(row, priority=p) for p in (0, 0, 10, -1))
    assert [job.pk for job in admit(row)] == [urgent.pk, early.pk, late.pk, last.pk]


def test_rule_5_holds_in_each_rq_queue_and_no_turn_takes_a_job_of_another_one() -> None:
    row = tenant_queue(max_job=4)
    bulk, own, urgent_bulk = (waiting_job(row, rq_queue=name, priority=p) for name, p in LANES)
    assert [job.pk for job in slots.admit(row.pk, "imports", 4).jobs] == [own.pk]
    assert [job.pk for job in slots.admit(row.pk, "imports_bulk", 4).jobs] == [urgent_bulk.pk, bulk.pk]
    assert counters_match()


LANES = (("imports_bulk", 0), ("", 0), ("imports_bulk", 5))


@pytest.mark.parametrize(("most", "admitted"), [(1, 1), (2, 2), (3, 3), (4, 3)])
def test_a_turn_admits_as_many_jobs_as_workers_want_and_no_more_than_slots_are_free(most: int, admitted: int) -> None:
    row = tenant_queue(max_job=3)
    waiting = [waiting_job(row) for _ in range(5)]
    admission = slots.admit(row.pk, row.queue, most)
    assert [job.pk for job in admission.jobs] == [job.pk for job in waiting[:admitted]]
    assert admission.is_full == (admitted == 3)
    assert admission.has_more == (admitted < 3)
    assert fresh(row).current_job == admitted
    assert counters_match()


def test_a_turn_says_that_the_backlog_is_empty_now() -> None:
    row = tenant_queue(max_job=3)
    waiting_job(row)
    admission = slots.admit(row.pk, row.queue, 1)
    assert (len(admission.jobs), admission.is_full, admission.has_more) == (1, False, False)
    assert slots.admit(row.pk, row.queue, 1) == Admission()


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("limit", [1, 3])
def test_a_tenant_whose_last_waiting_jobs_have_the_last_slots_is_not_full(limit: int, more: int) -> None:
    """It would have another turn after each release, which comes to nothing: what it is to run next is yet to come."""
    row = tenant_queue(max_job=limit)
    for _ in range(limit + more):
        waiting_job(row)
    admission = slots.admit(row.pk, row.queue, limit)
    assert (len(admission.jobs), admission.is_full, admission.has_more) == (limit, bool(more), False)


@pytest.mark.parametrize("more", [0, 1])
def test_nor_does_it_wait_for_a_token(more: int) -> None:
    row = tenant_queue(max_job=5)
    row.set_rate(1, per=timedelta(hours=1))
    for _ in range(1 + more):
        waiting_job(row)
    admission = slots.admit(row.pk, row.queue, 1)
    assert (len(admission.jobs), admission.is_full, admission.wakes_in is None) == (1, bool(more), not more)


@pytest.mark.parametrize("cap", [None, 1])
def test_whether_more_waits_behind_a_reservation_is_not_known(cap: int | None) -> None:
    row = tenant_queue(max_job=3, max_job_per_key=cap)
    waiting_job(row, kind=Kind.RESERVATION), waiting_job(row), waiting_job(row)
    admission = slots.admit(row.pk, row.queue, 1)
    assert (len(admission.jobs), admission.is_full, admission.has_more) == (2, False, True)


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("cap", [None, 1])
def test_the_tenant_keeps_its_place_for_the_jobs_behind_that(cap: int | None) -> None:
    row = tenant_queue(max_job=4, max_job_per_key=cap)
    waiting = [waiting_job(row, kind=kind) for kind in (*[Kind.RESERVATION] * 3, Kind.JOB)]
    fair_order.offer(row.queue, [(row.pk, row.share)])
    assert turn_of_a_worker(row) == waiting[:2]
    assert turn_of_a_worker(row) == waiting[2:]


def turn_of_a_worker(row: TenantQueue) -> list[TenantJob]:
    turn, _ = fair_order.take("rq:worker:one of ours", [row.queue], waits=False)
    assert isinstance(turn, Turn)
    return feed_turn(turn)


@pytest.mark.parametrize("change", [{"paused": True}, {"max_job": 0}])
def test_a_tenant_that_may_have_nothing_is_full(change: dict[str, Any]) -> None:
    row = tenant_queue(**change)
    waiting_job(row)
    assert slots.admit(row.pk, row.queue, 1) == Admission(is_full=True, is_shut=True)


def test_a_tenant_whose_waiting_jobs_are_passed_over_is_full_for_them() -> None:
    """A slot is free, but for none of these keys: what changes that is a release, as for one that has no free slot."""
    row = tenant_queue(max_job=3, max_job_per_key=1)
    waiting_job(row, key="ann"), waiting_job(row, key="ann")
    assert len(admit(row)) == 1
    assert slots.admit(row.pk, row.queue, 1) == Admission(is_full=True)


def test_reservations_before_the_jobs_of_a_turn_get_theirs_too_and_count_as_no_job() -> None:
    """No worker has to be free for them."""
    row = tenant_queue(max_job=3)
    first = waiting_job(row, kind=Kind.RESERVATION)
    second = waiting_job(row)
    waiting_job(row, kind=Kind.RESERVATION)
    admission = slots.admit(row.pk, row.queue, 1)
    assert [job.pk for job in admission.jobs][:2] == [first.pk, second.pk]
    assert counters_match()


def test_lowering_a_limit_stops_no_job_and_drains() -> None:
    row = tenant_queue(max_job=2)
    for _ in range(3):
        waiting_job(row)
    first, second = admit(row)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    assert release_then_admit(first, state=State.FINISHED) == []
    assert fresh(row).current_job == 1
    assert len(release_then_admit(second, state=State.FINISHED)) == 1


@pytest.mark.django_db(transaction=True)
def test_a_hand_over_takes_a_fixed_number_of_queries() -> None:
    """In a transaction of its own, as a worker's is."""
    row = tenant_queue(max_job=1)
    for _ in range(3):
        waiting_job(row)
    (job,) = admit(row)
    next_one = running_next(job)
    with CaptureQueriesContext(connection) as queries:
        assert next_one().admission.started
    statements = [query["sql"] for query in queries if not re.fullmatch("BEGIN( IMMEDIATE)?|COMMIT", query["sql"])]
    assert len(statements) == (2 if connection.vendor == "postgresql" else 4), statements


@pytest.mark.django_db(transaction=True)
def test_so_do_a_release_and_an_admission_apart() -> None:
    row = tenant_queue(max_job=1)
    for _ in range(3):
        waiting_job(row)
    (job,) = admit(row)
    released = 1 if connection.vendor == "postgresql" else 3
    for action, number in ((lambda: slots.release(job, state=State.FINISHED), released), (lambda: admit(row), 4)):
        with CaptureQueriesContext(connection) as queries:
            action()
        statements = [query["sql"] for query in queries if not re.fullmatch("BEGIN( IMMEDIATE)?|COMMIT", query["sql"])]
        assert len(statements) == number, statements


def running_next(job: TenantJob, **values: Any) -> Callable[[], Release]:
    """What a worker does whose job has ended and whose tenant is next again."""
    outcome: dict[str, Any] = {"state": State.FINISHED} | values
    return lambda: slots.release_and_start(job, "imports", owner("next"), lambda chosen: None, **outcome)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plan")
def test_the_head_of_a_long_backlog_is_found_by_index_in_each_rq_queue() -> None:
    """However many jobs of the same tenant wait before it for another RQ queue's workers."""
    empty_files()
    row = tenant_queue()
    waiting_job(row, rq_queue="imports_slow", priority=1)
    copy_a_hundred_thousand_times()
    heads = {name: waiting_job(row, rq_queue=name) for name in ("", "imports_bulk", "zebra")}
    for name in heads:
        many_waiting(row, 200, rq_queue=name)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tenant_slots_tenantjob")
    for name, head in heads.items():
        with Sent() as sent:
            first, _ = statements.first_waiting(2).rows(pk=row.pk, rq_queue=name)
        assert first.pk == head.pk
        plan = sent.plan()
        assert "Index Scan using tenant_slots_backlog" in plan
        assert "Sort" not in plan
        assert "Rows Removed" not in plan
        assert pages_read(plan) < 20, plan
    (job,) = slots.admit(row.pk, "imports").jobs
    with Sent() as sent:
        assert slots.start(job, owner())
    TenantJob.objects.filter(pk=job.pk).update(state=State.QUEUED)
    plan = sent.plan()
    assert "Index Only Scan using tenant_slots_backlog" in plan, plan
    assert not re.search("Seq Scan on tenant_slots_tenantjob|Join", plan), plan
    assert pages_read(plan) < 20, plan


def copy_a_hundred_thousand_times() -> None:
    """Of the only job that there is."""
    with connection.cursor() as cursor:
        names = [field.column for field in TenantJob._meta.concrete_fields if not field.generated]
        names = [name for name in names if name not in ("id", "uuid")]
        columns = ", ".join(f'"{name}"' for name in names)
        cursor.execute(
            f"INSERT INTO tenant_slots_tenantjob (uuid, {columns}) "  # noqa: S608 - our own columns
            f"SELECT gen_random_uuid(), {columns} FROM tenant_slots_tenantjob, generate_series(1, 100000)"
        )


def pages_read(plan: str) -> int:
    found = [int(number) for number in re.findall(r"shared (?:hit|read)=(\d+)", plan.split("Planning")[0])]
    return max(found)


class Sent:
    """The statement that is really sent, with its parameters."""

    def __enter__(self) -> Sent:
        self._wrapper = connection.execute_wrapper(self._see)
        self._wrapper.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._wrapper.__exit__(*error)

    def _see(self, execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        self.sql, self.parameters = sql, parameters
        return execute(sql, parameters, many, context)

    def plan(self) -> str:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS) {self.sql}", self.parameters)
            return "\n".join(line for (line,) in cursor.fetchall())


def test_saving_a_row_that_was_read_earlier_keeps_the_counter() -> None:
    row = tenant_queue(max_job=3)
    statements.TAKE.update(pk=row.pk, slots=1)
    row.max_job = 5
    row.save()
    assert (fresh(row).max_job, row.current_job) == (5, 1)


def writes_of_the_row(queries: CaptureQueriesContext) -> list[str]:
    sent = [part for query in queries for part in query["sql"].split("; ")]
    return [part for part in sent if part.startswith('UPDATE "tenant_slots_tenantqueue"')]


def test_rule_1_a_slot_that_changes_hands_writes_no_counter() -> None:
    row = tenant_queue(max_job=1)
    first, second = running_job(row, owner()), waiting_job(row)
    with CaptureQueriesContext(connection) as queries:
        released = running_next(first)()
    assert writes_of_the_row(queries) == []
    assert (fresh(first).state, fresh(second).state) == (State.FINISHED, State.RUNNING)
    assert released.admission
    assert released.admission.started == second
    assert counters_match()
    with CaptureQueriesContext(connection) as queries:
        slots.release(released.admission.started, state=State.FINISHED)
    assert len(writes_of_the_row(queries)) == 1, "nobody took the slot, so the counter is lowered"
    assert counters_match()


def test_control_a_release_and_an_admission_apart_write_the_counter_twice() -> None:
    row = tenant_queue(max_job=1)
    first, _ = running_job(row, owner()), waiting_job(row)
    with CaptureQueriesContext(connection) as queries:
        assert len(release_then_admit(first, state=State.FINISHED)) == 1
    assert len(writes_of_the_row(queries)) == 2
    assert counters_match()


@pytest.mark.parametrize("change", [{"max_job": 1}, {"max_job": 0}, {"paused": True}])
def test_rule_1_a_slot_does_not_change_hands_where_the_row_as_it_is_does_not_allow_it(change: dict[str, Any]) -> None:
    """The values count that the release finds once it has the lock, not those that anybody read before."""
    row = tenant_queue(max_job=2)
    first, _, waiting = running_job(row, owner()), running_job(row, owner()), waiting_job(row)
    TenantQueue.objects.filter(pk=row.pk).update(**change)
    released = running_next(first)()
    assert (released.state, released.admission) == (State.FINISHED, Admission(is_full=True, is_shut=True))
    assert (fresh(waiting).state, fresh(row).current_job) == (State.WAITING, 1)
    assert counters_match()


def test_rule_1_what_is_admitted_beyond_the_slot_that_changes_hands_goes_through_the_gate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reservation before the job gets a second slot, whose taking is a write of its own."""
    row = tenant_queue(max_job=1)
    first = running_job(row, owner())
    reservation, job, later = waiting_job(row, kind=Kind.RESERVATION), waiting_job(row), waiting_job(row)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=2)
    admission = running_next(first)().admission
    assert admission
    assert admission.started == job
    assert admission.jobs == [reservation]
    assert fresh(row).current_job == 2
    assert counters_match()
    waiting_job(row, kind=Kind.RESERVATION, priority=1)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=3)
    count = moves.count
    monkeypatch.setattr(moves, "count", lambda row, freed, taken: taken <= freed and count(row, freed, taken))
    assert running_next(admission.started)().admission == Admission(is_full=True)
    assert (fresh(later).state, fresh(row).current_job) == (State.WAITING, 1)
    assert counters_match()


def test_a_job_that_vanishes_while_a_slot_is_handed_to_it_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced: somebody deletes a row by hand between the look at the head of the backlog and its claim."""
    row = tenant_queue(max_job=1)
    running, second = running_job(row, owner()), waiting_job(row)
    outcome = {"state": State.FINISHED}

    def delete(chosen: TenantJob) -> None:
        TenantJob.objects.filter(pk=second.pk).delete()

    released = slots.release_and_start(running, "imports", owner(), delete, **outcome)
    assert released.admission
    assert released.admission.started is None
    assert released.admission.wakes_in, "somebody else may have it"
    assert fresh(row).current_job == 0
    assert counters_match()


def test_a_slot_changes_hands_even_where_the_counter_was_wrong() -> None:
    row = tenant_queue(max_job=1)
    job = running_job(row, owner())
    TenantQueue.objects.filter(pk=row.pk).update(current_job=0)
    waiting_job(row)
    admission = running_next(job)().admission
    assert admission
    assert admission.started
    assert fresh(row).current_job == 1
    assert counters_match()


def test_a_slot_that_is_not_ones_own_changes_no_hands() -> None:
    """Rule 3: whoever has lost the run frees nothing, and gets no more than is free without it."""
    row = tenant_queue(max_job=1)
    job, waiting = running_job(row, owner()), waiting_job(row)
    TenantJob.objects.filter(pk=job.pk).update(token=job.token + 1)
    released = running_next(job)()
    assert not released
    assert released.admission == Admission(is_full=True, is_shut=True)
    assert (fresh(job).state, fresh(waiting).state, fresh(row).current_job) == (State.RUNNING, State.WAITING, 1)


def test_a_job_that_is_put_back_may_be_the_one_that_starts_next() -> None:
    row = tenant_queue(max_job=1)
    job, _ = running_job(row, owner()), waiting_job(row)
    admission = running_next(job, state=State.WAITING)().admission
    assert admission
    assert admission.started == job
    assert (fresh(job).state, fresh(job).attempt, fresh(job).worker) == (State.RUNNING, 2, "next")
    assert counters_match()


URGENT = {"key": "ann", "priority": 1}


def admit_and_start(row: TenantQueue, by: Owner | None = None) -> Admission:
    return slots.admit_and_start(row.pk, row.queue, by or owner(), lambda chosen: None)


def test_a_job_is_admitted_and_started_in_one_transaction() -> None:
    row = tenant_queue(max_job=2)
    first, _ = waiting_job(row), waiting_job(row)
    by, told = owner("mine", horse=7), []
    admission = slots.admit_and_start(row.pk, row.queue, by, told.append)
    assert told == [first], "who runs it knows which one before it is marked"
    started = admission.started
    assert started is not None
    assert (started, admission.jobs, admission.has_more) == (first, [], True)
    stored = fresh(first)
    assert (stored.state, stored.attempt, stored.token, stored.worker) == (State.RUNNING, 1, by.token, "mine")
    assert stored.horse == 7
    assert None not in (stored.admitted_at, stored.started_at, stored.beat_at)
    assert (started.token, started.attempt, started.args) == (by.token, 1, [1, 2]), "it is as the database has it"
    assert fresh(row).current_job == 1
    assert counters_match()


@pytest.mark.parametrize("change", [{"paused": True}, {"max_job": 0}, {"current_job": 1}])
def test_none_is_started_where_the_tenant_may_have_none(change: dict[str, Any]) -> None:
    row = tenant_queue(max_job=1, **change) if "max_job" not in change else tenant_queue(**change)
    job = waiting_job(row)
    assert admit_and_start(row) == Admission(is_full=True, is_shut=True)
    assert fresh(job).state == State.WAITING


def test_none_is_started_where_the_backlog_is_empty() -> None:
    row = tenant_queue(max_job=1)
    assert admit_and_start(row) == Admission()
    assert fresh(row).current_job == 0


@pytest.mark.parametrize(("priority", "goes_first"), [(0, True), (-1, False)])
def test_a_slot_that_is_handed_on_in_an_overflow_queue_goes_to_the_reservation_before_the_next_job(
    priority: int, goes_first: bool
) -> None:
    """It has no queue of its own: behind a long backlog there it would get none before its timeout."""
    row = tenant_queue(max_job=1)
    running = running_job(row, owner(), rq_queue="imports_bulk")
    reservation = waiting_job(row, kind=Kind.RESERVATION, priority=priority)
    job = waiting_job(row, rq_queue="imports_bulk")
    released = slots.release_and_start(running, "imports_bulk", owner("next"), lambda job: None, state=State.FINISHED)
    assert released.admission is not None
    assert (released.admission.jobs, released.admission.started) == (([reservation], None) if goes_first else ([], job))
    assert fresh(row).current_job == 1


@pytest.mark.parametrize(("priority", "goes_first"), [(0, True), (-1, False)])
def test_so_does_one_that_is_free_there(priority: int, goes_first: bool) -> None:
    row = tenant_queue(max_job=1)
    reservation = waiting_job(row, kind=Kind.RESERVATION, priority=priority)
    job = waiting_job(row, rq_queue="imports_bulk")
    admission = slots.admit_and_start(row.pk, "imports_bulk", owner(), lambda job: None)
    assert (admission.jobs, admission.started) == (([reservation], None) if goes_first else ([], job))
    assert counters_match()


@pytest.mark.parametrize("gets_one_from", ["a free slot", "hand to hand"])
def test_a_reservation_whose_key_is_at_its_cap_gets_none_there_either(gets_one_from: str) -> None:
    row = tenant_queue(max_job=5, max_job_per_key=1)
    running_job(row, owner(), key="ann")
    reservation = waiting_job(row, kind=Kind.RESERVATION, key="ann")
    if gets_one_from == "a free slot":
        job = waiting_job(row, rq_queue="imports_bulk", key="bob")
        assert slots.admit(row.pk, "imports_bulk", 1).jobs == [job]
    else:
        ends = running_job(row, owner("another"), rq_queue="imports_bulk", key="bob")
        job = waiting_job(row, rq_queue="imports_bulk", key="bob")
        slots.release_and_start(ends, "imports_bulk", owner("next"), lambda job: None, state=State.FINISHED)
        assert fresh(job).state == State.RUNNING
    assert fresh(reservation).state == State.WAITING


@pytest.mark.parametrize("gets_one_from", ["a free slot", "hand to hand"])
def test_one_whose_key_is_below_its_cap_gets_the_next_slot_there(gets_one_from: str) -> None:
    row = tenant_queue(max_job=1, max_job_per_key=1)
    if gets_one_from == "a free slot":
        reservation, job = reservation_before_job(row)
        assert slots.admit(row.pk, "imports_bulk", 1).jobs == [reservation]
    else:
        ends = running_job(row, owner("another"), rq_queue="imports_bulk", key="bob")
        reservation, job = reservation_before_job(row)
        slots.release_and_start(ends, "imports_bulk", owner("next"), lambda job: None, state=State.FINISHED)
    assert (fresh(reservation).state, fresh(job).state) == (State.QUEUED, State.WAITING)
    assert counters_match()


def reservation_before_job(row: TenantQueue) -> tuple[TenantJob, TenantJob]:
    reservation = waiting_job(row, kind=Kind.RESERVATION, key="ann")
    return reservation, waiting_job(row, rq_queue="imports_bulk", key="bob")


def test_jobs_of_the_key_that_it_brings_to_its_cap_are_passed_over_there() -> None:
    row = tenant_queue(max_job=5, max_job_per_key=2)
    reservations = [waiting_job(row, kind=Kind.RESERVATION, key="ann") for _ in range(2)]
    anns = [waiting_job(row, rq_queue="imports_bulk", key="ann") for _ in range(3)]
    bobs, urgent = (waiting_job(row, rq_queue="imports_bulk", **values) for values in ({"key": "bob"}, URGENT))
    assert slots.admit(row.pk, "imports_bulk", 2).jobs == [urgent, reservations[0], bobs]
    assert {fresh(job).state for job in (*anns, reservations[1])} == {State.WAITING}
    assert counters_match()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="asks PostgreSQL for its plan")
def test_the_reservations_of_a_tenant_are_read_from_the_index_that_has_these_alone() -> None:
    row = tenant_queue(max_job=1)
    many_waiting(row, 5000)
    waiting_job(row, kind=Kind.RESERVATION)
    reservations = TenantJob.objects.reservations_to_begin().filter(tenant_queue=row).backlog()
    assert "tenant_slots_reservations" in explained(reservations)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="asks PostgreSQL for its plan")
@pytest.mark.parametrize("who", ["reservation", "plain job"])
def test_who_asks_for_a_slot_itself_reads_the_head_of_the_backlog_alone(who: str) -> None:
    """PostgreSQL expects waiting jobs everywhere in the table, and looks for a few of them in all that has ended."""
    row = tenant_queue(max_job=4)
    many_waiting(row, 3000, state=State.FINISHED)
    many_waiting(row, 300)
    asks = waiting_job(row, **RESERVED) if who == "reservation" else waiting_job(row, **PLAIN | {"rq_queue": ""})
    analyze()
    with CaptureQueriesContext(connection) as asked:
        slots.admit_this(asks)
    of_jobs = [one["sql"] for one in asked if '"tenant_slots_tenantjob"' in one["sql"] and "LIMIT" in one["sql"]]
    assert of_jobs
    assert not [plan for plan in map(explained_sql, of_jobs) if "Seq Scan" in plan]


def test_the_tenants_turn_starts_the_job_and_lets_in_the_reservations_before_it() -> None:
    row = tenant_queue(max_job=3)
    reservation, job = waiting_job(row, kind=Kind.RESERVATION), waiting_job(row)
    admission = admit_and_start(row)
    assert (admission.jobs, admission.started) == ([reservation], job)
    assert fresh(reservation).state == State.QUEUED
    assert counters_match()


def test_a_job_that_vanishes_before_it_is_started_takes_no_slot() -> None:
    row = tenant_queue(max_job=1)
    waiting_job(row)
    admission = slots.admit_and_start(row.pk, row.queue, owner(), lambda chosen: TenantJob.objects.all().delete())
    assert admission.started is None
    assert fresh(row).current_job == 0


def test_a_job_whose_worker_is_here_gets_a_free_slot() -> None:
    row = tenant_queue(max_job=1)
    job, other = waiting_job(row), waiting_job(row)
    assert slots.admit_this(job)
    assert (job.state, job.attempt) == (fresh(job).state, fresh(job).attempt) == (State.QUEUED, 1)
    assert not slots.admit_this(other)
    assert (fresh(other).state, fresh(row).current_job) == (State.WAITING, 1)
    assert counters_match()


@pytest.mark.parametrize("cap", [None, 1])
@pytest.mark.parametrize("rq_queue", ["", "imports_bulk"])
def test_a_reservation_before_it_gets_one_with_it(cap: int | None, rq_queue: str) -> None:
    """An older job in another overflow queue could take what is left for that."""
    row = tenant_queue(max_job=2, max_job_per_key=cap)
    older = waiting_job(row, rq_queue="imports_slow")
    before, job, after = (waiting_job(row, **values) for values in (RESERVED, PLAIN | {"rq_queue": rq_queue}, RESERVED))
    assert slots.admit_this(job) == [before, job], "a slot is free for both"
    assert slots.admit(row.pk, "imports_slow").jobs == []
    assert {fresh(one).state for one in (older, after)} == {State.WAITING}
    assert counters_match()


@pytest.mark.parametrize("cap", [None, 1])
def test_in_an_overflow_queue_it_leaves_the_only_slot_to_a_reservation_before_it(cap: int | None) -> None:
    row = tenant_queue(max_job=1, max_job_per_key=cap)
    before, job = waiting_job(row, **RESERVED), waiting_job(row, **PLAIN)
    assert not slots.admit_this(job)
    assert slots.admit_this(before) == [before]
    assert (fresh(before).state, fresh(job).state) == (State.QUEUED, State.WAITING)
    assert counters_match()


RESERVED: dict[str, Any] = {"kind": Kind.RESERVATION}
PLAIN: dict[str, Any] = {"rq_queue": "imports_bulk", "rq_job_id": "plain"}


@pytest.mark.parametrize("change", [{"paused": True}, {"max_job": 0}])
def test_a_job_whose_worker_is_here_waits_where_none_may_start(change: dict[str, Any]) -> None:
    row = tenant_queue(**change)
    assert not slots.admit_this(waiting_job(row))
    assert fresh(row).current_job == 0


@pytest.mark.parametrize(("free", "gets_one"), [(1, False), (2, False), (3, True)])
def test_it_goes_before_none_that_could_have_the_slot(free: int, gets_one: bool) -> None:
    """Two are ahead of it in its RQ queue; those of another one are ahead of nobody here."""
    row = tenant_queue(max_job=free)
    waiting_job(row, rq_queue="imports_bulk", priority=9), waiting_job(row)
    job = waiting_job(row)
    waiting_job(row, priority=1), waiting_job(row)
    assert bool(slots.admit_this(job)) is gets_one
    assert fresh(row).current_job == gets_one
    assert counters_match()


@pytest.mark.parametrize(("free", "gets_one"), [(1, False), (2, True)])
def test_a_reservation_leaves_one_slot_to_the_jobs_that_wait_for_a_worker(free: int, gets_one: bool) -> None:
    row = tenant_queue(max_job=free)
    for _ in range(5):
        waiting_job(row)
    assert bool(slots.admit_this(waiting_job(row, kind=Kind.RESERVATION))) is gets_one
    assert counters_match()


def test_a_reservation_reads_as_few_of_the_others_as_there_are_slots() -> None:
    """All of them may ask when one is free."""
    row = tenant_queue(max_job=1)
    first, *_, last = [waiting_job(row, **RESERVED) for _ in range(20)]
    with CaptureQueriesContext(connection) as asked:
        assert not slots.admit_this(last)
    limits = [int(number) for one in asked for number in re.findall(r"LIMIT (\d+)", one["sql"])]
    assert limits
    assert max(limits) <= 2
    assert slots.admit_this(first)


@pytest.mark.parametrize("cap", [None, 1])
def test_a_reservation_leaves_one_to_each_reservation_before_it(cap: int | None) -> None:
    """Any of these may look first, and the newest ones look the most often."""
    row = tenant_queue(max_job=3, max_job_per_key=cap)
    first, second = waiting_job(row, **RESERVED), waiting_job(row, **RESERVED)
    for _ in range(2):
        waiting_job(row)
    last = waiting_job(row, **RESERVED)
    assert not slots.admit_this(last), "the third slot is the jobs'"
    assert slots.admit_this(waiting_job(row, **RESERVED, priority=1))
    assert slots.admit_this(second) == [first, second], "two are left, and one of them is the first one's"
    assert counters_match()


@pytest.mark.parametrize("of_row", [{}, {"max_job_per_key": 1}, {"rate_number": 2}], ids=["", "cap", "rate"])
def test_the_reservations_before_one_get_theirs_with_it(of_row: dict[str, Any]) -> None:
    """A slot that is left free for one goes to an older job in an overflow queue, and later reservations pass it."""
    rate = {"rate_per": timedelta(hours=1), "rate_burst": 2} if "rate_number" in of_row else {}
    row = tenant_queue(max_job=2, **of_row, **rate)
    older = waiting_job(row, rq_queue="imports_bulk")
    first, second = waiting_job(row, **RESERVED, key="ann"), waiting_job(row, **RESERVED)
    assert slots.admit_this(second) == [first, second]
    assert slots.admit(row.pk, "imports_bulk").jobs == []
    assert {(one.state, one.attempt) for one in (first, second)} <= {(State.WAITING, 0), (State.QUEUED, 1)}
    assert [fresh(one).state for one in (older, first, second)] == [State.WAITING, State.QUEUED, State.QUEUED]
    assert (second.attempt, fresh(row).current_job) == (1, 2)
    assert counters_match()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no locks on rows")
def test_one_whose_row_somebody_holds_keeps_its_slot_free_and_nobody_waits_for_it() -> None:
    row = tenant_queue(max_job=2)
    first, second = waiting_job(row, **RESERVED), waiting_job(row, **RESERVED)
    with transaction.atomic():
        TenantJob.objects.select_for_update().get(pk=first.pk)
        assert in_thread(lambda: slots.admit_this(second)) == [second]
    assert slots.admit_this(first) == [first]
    assert counters_match()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="triggers are written in PL/pgSQL")
def test_one_that_the_database_refuses_takes_no_slot_from_those_behind_it() -> None:
    row = tenant_queue(max_job=3)
    first, second, third = (waiting_job(row, **RESERVED) for _ in range(3))
    with refused(f"{any_change_of(first)} AND NEW.state = 'queued'"):
        assert slots.admit_this(third) == [third]
        assert slots.admit_this(second) == [second]
    assert slots.admit_this(first) == [first]
    assert counters_match()


@pytest.mark.parametrize(
    ("ahead", "gets_one"),
    [
        ([{"kind": Kind.RESERVATION, "key": "ann"}], False),
        ([{"key": "ann"}], False),
        ([{"key": "bob"}], True),
        ([{"key": "bob"}, {"key": "ann"}], True),  # a worker that is about to be free takes the first one
        ([{"key": "eve"}, {"key": "bob"}], True),
        ([{"key": "eve"}, {"key": "ann"}], False),
    ],
    ids=["a reservation", "a job", "of another key", "behind another key", "behind a full key", "the next one"],
)
def test_so_does_one_with_a_key_to_those_of_its_key(ahead: list[dict[str, Any]], gets_one: bool) -> None:
    row = tenant_queue(max_job=5, max_job_per_key=1)
    running_job(row, owner(), key="eve")
    for values in ahead:
        waiting_job(row, **values)
    assert bool(slots.admit_this(waiting_job(row, **RESERVED, key="ann"))) is gets_one
    assert counters_match()


def test_a_job_whose_key_is_at_its_cap_gets_none_although_slots_are_free() -> None:
    row = tenant_queue(max_job=3, max_job_per_key=1)
    running_job(row, owner(), key="ann")
    assert not slots.admit_this(waiting_job(row, key="ann"))
    assert slots.admit_this(waiting_job(row, key="bob"))
    assert counters_match()


def test_a_job_that_was_admitted_meanwhile_takes_no_second_slot() -> None:
    row = tenant_queue(max_job=2)
    job = waiting_job(row)
    seen_before = TenantJob.objects.get(pk=job.pk)
    assert slots.admit_this(job)
    assert not slots.admit_this(seen_before)
    assert fresh(row).current_job == 1


CHANGES = {
    "paused": lambda row: TenantQueue.objects.filter(pk=row.pk).update(paused=True),
    "lowered": lambda row: TenantQueue.objects.filter(pk=row.pk).update(max_job=0),
    "somebody more urgent has come": lambda row: waiting_job(row, priority=1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_queued_job_does_not_start_once_it_would_not_be_admitted(name: str) -> None:
    row = tenant_queue(max_job=1)
    waiting_job(row)
    (job,) = admit(row)
    CHANGES[name](row)
    assert not slots.start(job, owner())
    assert (fresh(job).state, fresh(job).token, job.token) == (State.QUEUED, 0, 0)
    assert counters_match()


def test_what_was_changed_for_others_keeps_no_queued_job_from_starting() -> None:
    """The control: as many as the new limit allows, an equal priority, and a higher one in another RQ queue."""
    row = tenant_queue(max_job=2)
    waiting_job(row), waiting_job(row, rq_queue="imports_bulk")
    (job,) = admit(row)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    waiting_job(row), waiting_job(row, rq_queue="imports_bulk", priority=1), waiting_job(tenant_queue("b"), priority=1)
    assert slots.start(job, owner())


def test_a_lowered_limit_keeps_back_as_many_queued_jobs_as_are_too_many() -> None:
    row = tenant_queue(max_job=2)
    waiting_job(row), waiting_job(row)
    first, second = admit(row)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    assert not slots.start(first, owner())
    assert slots.release(first, states=(State.QUEUED,), state=State.WAITING)
    assert slots.start(second, owner())
    assert counters_match()


@pytest.mark.parametrize(("paused", "starts"), [(True, False), pytest.param(False, True, id="control")])
def test_a_reservation_that_was_admitted_before_a_pause_does_not_start_after_it(paused: bool, starts: bool) -> None:
    row = tenant_queue(max_job=1)
    reservation = waiting_job(row, kind=Kind.RESERVATION)
    assert slots.admit_this(reservation)
    TenantQueue.objects.filter(pk=row.pk).update(paused=paused)
    assert slots.start(reservation, owner()) == starts


def test_a_more_urgent_job_does_not_keep_an_admitted_reservation_from_starting() -> None:
    """It needs no worker, for which that job may wait for long."""
    row = tenant_queue(max_job=1)
    reservation = waiting_job(row, kind=Kind.RESERVATION)
    assert slots.admit_this(reservation)
    waiting_job(row, priority=5)
    assert slots.start(reservation, owner())


def test_a_job_of_a_passed_over_user_keeps_no_other_from_starting() -> None:
    """It would for good: put back, the other is the next again, as the more urgent one cannot have the slot."""
    row = tenant_queue(max_job=3, max_job_per_key=1)
    running_job(row, owner(), key="ann")
    waiting_job(row, key="ann", priority=5), waiting_job(row, key="bob")
    (job,) = admit(row)
    assert slots.start(job, owner())


def test_the_statements_for_the_head_of_a_backlog_are_few_however_many_are_wanted() -> None:
    row = tenant_queue(max_job=0)
    statements._first_waiting.cache_clear()
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    for most in range(1, 60):
        slots.admit(row.pk, row.queue, most)
    assert statements._first_waiting.cache_info().currsize == 6, "one for each power of two from 2 up to 64"


@pytest.mark.parametrize("free", [1, 2, 3, 5, 8])
def test_exactly_as_many_are_admitted_as_slots_are_free(free: int) -> None:
    row = tenant_queue(max_job=free)
    waiting = [waiting_job(row) for _ in range(9)]
    assert [job.pk for job in admit(row)] == [job.pk for job in waiting[:free]]
    assert counters_match()


def test_a_job_that_vanishes_while_it_is_admitted_takes_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced: somebody deletes a row by hand between the look at the head of the backlog and its claim."""
    row = tenant_queue(max_job=3)
    first, second = waiting_job(row), waiting_job(row)
    count = moves.count

    def delete_then_count(*arguments: Any) -> bool:
        TenantJob.objects.filter(pk=first.pk).delete()
        return count(*arguments)

    monkeypatch.setattr(moves, "count", delete_then_count)
    assert admit(row) == [second]
    assert fresh(row).current_job == 1
    assert counters_match()


@pytest.mark.usefixtures("no_workers")
def test_the_next_one_behind_it_has_its_turn_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has fed RQ's list for a worker that waits there has left with nothing, and no sweep has come yet."""
    row, worker, count = tenant_queue(max_job=1), "rq:worker:one of ours", moves.count
    first, second = waiting_job(row), waiting_job(row)
    fair_order.take(worker, [row.queue], waits=True)

    def delete_then_count(*arguments: Any) -> bool:
        TenantJob.objects.filter(pk=first.pk).delete()
        return count(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(moves, "count", delete_then_count)
        assert transitions.offer(row.pk, row.queue) == []
    assert fresh(second).state == State.WAITING
    wait_until(lambda: isinstance(fair_order.take(worker, [row.queue], waits=False)[0], Turn))
