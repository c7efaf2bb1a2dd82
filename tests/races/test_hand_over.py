"""Rule 1: a slot changes hands by what the tenant queue's row says once it is locked, not by what it said before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from django.db import connection, transaction

from tenant_slots import locks, slots
from tenant_slots.db.compiled import Asked
from tenant_slots.models import Kind, State, TenantJob, TenantQueue
from tests.factories import counters_match, fresh, owner, running_job, tenant_queue, waiting_job
from tests.processes import somebody_waits_for_a_lock, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        connection.vendor != "postgresql", reason="SQLite has one writer at a time, so this interleaving cannot happen"
    ),
]


def release_while_uncommitted(row: TenantQueue, **change: Any) -> None:
    """One job runs and one waits; the worker comes to the lock while somebody has changed the row in a transaction."""
    job = running_job(row, owner())
    waiting_job(row, priority=-1)
    release = Thread(target=_release, args=(job,))
    with transaction.atomic():
        TenantQueue.objects.filter(pk=row.pk).update(**change)
        release.start()
        wait_until(somebody_waits_for_a_lock)
    release.join(20)


def _release(job: TenantJob) -> None:
    try:
        slots.release_and_start(job, "imports", owner("next"), lambda chosen: None, state=State.FINISHED)
    finally:
        connection.close()


@pytest.mark.parametrize("change", [{"max_job": 0}, {"paused": True}])
def test_no_slot_changes_hands_after_a_change_that_commits_while_the_release_waits(
    change: dict[str, Any],
) -> None:
    row = tenant_queue(max_job=1)
    release_while_uncommitted(row, **change)
    assert row.jobs.waiting().count() == 1
    assert fresh(row).current_job == 0
    assert counters_match()


def test_more_than_its_own_slot_is_filled_after_a_raise_that_commits_while_the_release_waits() -> None:
    row = tenant_queue(max_job=1)
    reservation = waiting_job(row, kind=Kind.RESERVATION, priority=-1)
    release_while_uncommitted(row, max_job=2)
    assert fresh(reservation).state == State.QUEUED
    assert fresh(row).current_job == 2
    assert row.jobs.running().get().worker == "next"
    assert counters_match()


def test_control_by_a_row_that_was_read_before_its_lock_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def read_then_locked(tenant_queue_id: int, *asked: Asked) -> Iterator[tuple[TenantQueue, list[Any]]]:
        before = TenantQueue.objects.get(pk=tenant_queue_id)
        with locks.locked(tenant_queue_id):
            yield before, []

    monkeypatch.setattr(slots, "locked_and_asked", read_then_locked)
    row = tenant_queue(max_job=1)
    release_while_uncommitted(row, max_job=0)
    assert row.jobs.running().count() == 1, "a job was started although the limit was 0"
