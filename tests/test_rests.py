"""While a tenant queue rests the gate lets none of its jobs go, and says when to come back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots import fair_order, hold_slot, signals, slots, transitions
from tenant_slots.exceptions import NoFreeSlot, StaleVersion
from tenant_slots.models import Change, State, TenantQueue
from tenant_slots.repair import findings
from tests import jobs
from tests.factories import counters_match, fresh, owner, tenant_queue, waiting_job
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)


def rest(row: TenantQueue, seconds: float = 600, reason: str = "HTTP 429") -> None:
    until = timezone.now() + timedelta(seconds=seconds)
    TenantQueue.objects.filter(pk=row.pk).update(rests_until=until, rest_reason=reason)
    row.refresh_from_db()


def turn(row: TenantQueue) -> Any:
    return slots.admit_and_start(row.pk, row.queue, owner(), lambda job: None)


@pytest.mark.parametrize(("seconds", "starts"), [(600, False), (-1, True), (3 * 24 * 3600, True)])
def test_nothing_starts_during_a_rest(seconds: float, starts: bool) -> None:
    row = tenant_queue()
    job = waiting_job(row)
    rest(row, seconds)
    admission = turn(row)
    assert (admission.started is not None, admission.is_full) == (starts, not starts)
    assert fresh(job).state == (State.RUNNING if starts else State.WAITING)
    if starts:
        assert (fresh(row).rests_until, row.rest_reason, admission.wakes_in) == (None, "", None)
    else:
        assert 590 < admission.wakes_in <= 600
    assert counters_match()


def test_who_is_full_waits_for_a_release_and_not_for_the_end_of_the_rest() -> None:
    row = tenant_queue()
    waiting_job(row), waiting_job(row)
    assert turn(row).started is not None
    rest(row)
    assert (turn(row).is_full, turn(row).wakes_in) == (True, None)


def test_a_rest_that_ends_between_the_two_looks_at_the_clock_is_woken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody would come back before a sweep."""
    row = tenant_queue()
    waiting_job(row)
    rest(row)
    looks = iter([1.0, 0.0])
    monkeypatch.setattr("tenant_slots.rests.seconds_left", lambda row: next(looks))
    assert turn(row).wakes_in == 0.0


def test_a_tenant_queue_that_does_not_rest_asks_no_clock() -> None:
    row = tenant_queue(max_job=2)
    waiting_job(row), waiting_job(row)
    rest(row, -1)
    for asks in (True, False):
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert turn(row).started is not None
        assert any("rests_until" in query["sql"] and query["sql"].startswith("UPDATE") for query in queries) is asks
        clock = ("SELECT EXTRACT(EPOCH FROM CLOCK_TIMESTAMP())", "SELECT ROUND((JULIANDAY('NOW')")
        assert any(query["sql"].startswith(clock) for query in queries) is asks


@pytest.mark.usefixtures("no_workers")
def test_the_order_wakes_the_tenant_when_the_rest_is_over() -> None:
    row = tenant_queue()
    waiting_job(row)
    rest(row, 0.2)
    transitions.offer(row.pk, row.queue)
    found = fair_order.take("worker", [row.queue], waits=True)[0]
    assert isinstance(found, float), "it is to come back, not to have a turn"
    while isinstance(found, float):
        assert found <= 0.2
        found = fair_order.take("worker", [row.queue], waits=True)[0]
    assert isinstance(found, fair_order.Turn)
    assert found.tenant_queue_id == row.pk


def test_a_sweep_leaves_out_who_rests_and_offers_it_afterwards() -> None:
    row = tenant_queue()
    job = waiting_job(row)
    rest(row)
    assert findings.with_something_to_run() == {}
    sweep_now()
    assert fresh(job).state == State.WAITING
    rest(row, -1)
    assert findings.with_something_to_run() == {"imports": [(row.pk, 1)]}
    sweep_now()
    assert fresh(job).state == State.QUEUED


def test_a_reservation_gets_no_slot_during_a_rest() -> None:
    row = tenant_queue()
    rest(row)
    with pytest.raises(NoFreeSlot), hold_slot("acme", "imports"):
        raise AssertionError("no slot was to be had")
    row.end_rest()
    with hold_slot("acme", "imports"):
        assert fresh(row).current_job == 1


def test_a_job_that_does_not_want_to_wait_takes_a_rest_for_busy() -> None:
    row = tenant_queue(queue="imports")
    rest(row)
    job = jobs.only_now.enqueue("acme")
    assert (fresh(job).state, job.error) == (
        State.CANCELED,
        "discarded: acme on imports rested: HTTP 429 (0 of 1 taken)",
    )


def test_a_rest_is_ended_by_hand_once_and_told() -> None:
    row, told = tenant_queue(), []
    job = waiting_job(row)
    rest(row)

    def receive(*, change: Change, **_: Any) -> None:
        told.append(change)

    signals.limit_changed.connect(receive)
    try:
        with pytest.raises(StaleVersion):
            row.end_rest(version=7)
        changes = row.end_rest(by="anna", reason="they are back", version=0)
        assert row.end_rest() == []
    finally:
        signals.limit_changed.disconnect(receive)
    assert changes == told == [Change("resting", True, False, "anna", "they are back", None)]
    assert (row.rests_until, fresh(row).rests_until, row.rest_reason) == (None, None, "")
    assert fresh(job).state == State.QUEUED


def test_resume_ends_the_pause_and_not_the_rest() -> None:
    row = tenant_queue(paused=True)
    rest(row)
    row.resume()
    assert fresh(row).rests_until is not None


def test_a_row_in_memory_that_is_saved_neither_ends_nor_brings_back_a_rest() -> None:
    row = tenant_queue()
    before = TenantQueue.objects.get()
    rest(row)
    during = TenantQueue.objects.get()
    before.save()
    assert fresh(row).rests_until is not None
    row.end_rest()
    during.save()
    assert fresh(row).rests_until is None
