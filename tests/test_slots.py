"""The algorithm, function by function."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from tenant_slots import slots, statements
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.factories import admit, counters_match, fresh, many_waiting, owner, tenant_queue, waiting_job

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
    slots.release(stale, state=State.WAITING)
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


def test_rule_4_a_release_hands_its_slot_to_the_next_job() -> None:
    row = tenant_queue(max_job=1)
    first, second = waiting_job(row), waiting_job(row)
    (admitted,) = admit(row)
    assert admitted.pk == first.pk
    released = slots.release(admitted, state=State.FINISHED)
    assert [job.pk for job in released.admitted] == [second.pk]
    assert fresh(row).current_job == 1
    assert counters_match()


def test_rule_5_priority_first_then_enqueue_order() -> None:
    row = tenant_queue(max_job=4)
    late, early, urgent, last = (waiting_job(row, priority=p) for p in (0, 0, 10, -1))
    assert [job.pk for job in admit(row)] == [urgent.pk, late.pk, early.pk, last.pk]


def test_lowering_a_limit_stops_no_job_and_drains() -> None:
    row = tenant_queue(max_job=2)
    for _ in range(3):
        waiting_job(row)
    first, second = admit(row)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    assert slots.release(first, state=State.FINISHED).admitted == []
    assert fresh(row).current_job == 1
    assert len(slots.release(second, state=State.FINISHED).admitted) == 1


@pytest.mark.django_db(transaction=True)
def test_a_hand_over_takes_a_fixed_number_of_queries() -> None:
    """In a transaction of its own, as a worker's is."""
    row = tenant_queue(max_job=1)
    for _ in range(3):
        waiting_job(row)
    (job,) = admit(row)
    with CaptureQueriesContext(connection) as queries:
        slots.release(job, state=State.FINISHED)
    statements = [query["sql"] for query in queries if not query["sql"].startswith(("BEGIN", "COMMIT"))]
    assert len(statements) == 4, statements


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plan")
def test_the_head_of_a_long_backlog_is_found_by_index() -> None:
    row = tenant_queue()
    many_waiting(row, 2000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tenant_slots_tenantjob")
    plan = row.jobs.backlog()[:1].explain()
    assert "tenant_slots_backlog" in plan
    assert "Sort" not in plan


def test_saving_a_row_that_was_read_earlier_keeps_the_counter() -> None:
    row = tenant_queue(max_job=3)
    statements.TAKE.update(pk=row.pk, slots=1)
    row.max_job = 5
    row.save()
    assert (fresh(row).max_job, row.current_job) == (5, 1)


def writes_of_the_row(queries: CaptureQueriesContext) -> list[str]:
    return [query["sql"] for query in queries if query["sql"].startswith('UPDATE "tenant_slots_tenantqueue"')]


def test_rule_1_a_slot_that_is_handed_on_writes_no_counter() -> None:
    row = tenant_queue(max_job=1)
    waiting_job(row), waiting_job(row)
    (first,) = admit(row)
    with CaptureQueriesContext(connection) as queries:
        (second,) = slots.release(first, state=State.FINISHED).admitted
    assert writes_of_the_row(queries) == []
    assert counters_match()
    with CaptureQueriesContext(connection) as queries:
        slots.release(second, state=State.FINISHED)
    assert len(writes_of_the_row(queries)) == 1, "nobody took the slot, so the counter is lowered"
    assert counters_match()


@pytest.mark.parametrize("change", [{"max_job": 1}, {"max_job": 0}, {"paused": True}])
def test_rule_1_a_slot_is_not_handed_on_where_the_row_as_it_is_does_not_allow_it(change: dict[str, Any]) -> None:
    """The values count that the release finds once it has the lock, not those that anybody read before."""
    row = tenant_queue(max_job=2)
    for _ in range(3):
        waiting_job(row)
    first, _ = admit(row)
    TenantQueue.objects.filter(pk=row.pk).update(**change)
    assert slots.release(first, state=State.FINISHED).admitted == []
    assert fresh(row).current_job == 1
    assert counters_match()


def test_rule_1_what_a_release_admits_beyond_its_own_slot_goes_through_the_gate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = tenant_queue(max_job=1)
    for _ in range(4):
        waiting_job(row)
    (first,) = admit(row)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=3)
    admitted = slots.release(first, state=State.FINISHED).admitted
    assert len(admitted) == 3
    assert fresh(row).current_job == 3
    assert counters_match()
    TenantQueue.objects.filter(pk=row.pk).update(max_job=4)
    waiting_job(row), waiting_job(row)
    monkeypatch.setattr(statements.TAKE, "update", lambda **values: 0)
    assert slots.release(admitted[0], state=State.FINISHED).admitted == []
    assert fresh(row).current_job == 2
    assert counters_match()


def test_a_job_that_vanishes_while_a_slot_is_handed_to_it_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced: somebody deletes a row by hand between the look at the head of the backlog and its claim."""
    row = tenant_queue(max_job=1)
    first, second = waiting_job(row), waiting_job(row)
    (running,) = admit(row)
    assert running == first
    claim = statements.CLAIM.update

    def delete_then_claim(**values: Any) -> int:
        TenantJob.objects.filter(pk=second.pk).delete()
        return claim(**values)

    monkeypatch.setattr(statements.CLAIM, "update", delete_then_claim)
    assert slots.release(running, state=State.FINISHED).admitted == []
    assert fresh(row).current_job == 0
    assert counters_match()


def test_a_release_hands_its_slot_on_even_where_the_counter_was_wrong() -> None:
    row = tenant_queue(max_job=1)
    waiting_job(row)
    (job,) = admit(row)
    TenantQueue.objects.filter(pk=row.pk).update(current_job=0)
    waiting_job(row)
    assert len(slots.release(job, state=State.FINISHED).admitted) == 1
    assert fresh(row).current_job == 1


def test_the_statements_for_the_head_of_a_backlog_are_few_however_many_slots_are_free() -> None:
    row = tenant_queue(max_job=0)
    statements._first_waiting.cache_clear()
    for free in range(1, 60):
        TenantQueue.objects.filter(pk=row.pk).update(max_job=free)
        admit(row)
    assert statements._first_waiting.cache_info().currsize == 7, "one for each power of two up to 64"


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
    take = statements.TAKE.update

    def delete_then_take(**values: Any) -> int:
        TenantJob.objects.filter(pk=first.pk).delete()
        return take(**values)

    monkeypatch.setattr(statements.TAKE, "update", delete_then_take)
    assert admit(row) == [second]
    assert fresh(row).current_job == 1
    assert counters_match()
