"""A reservation whose tenant queue is locked: its time-out covers every wait, and who waits for itself is told so."""

from __future__ import annotations

from functools import partial
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction

from tenant_slots import hold_slot, slots
from tenant_slots.exceptions import NoFreeSlot
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running import keeper as module
from tests import jobs
from tests.factories import fresh, tenant_queue
from tests.processes import threads_of_reservations, wait_until
from tests.races.test_callers_transactions import kept_open, meanwhile

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]

LONG = 600
"""Seconds to wait for a slot. A test that takes as long has found that something was waited for in vain."""


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 0.2)


def lock_for_update() -> None:
    list(TenantQueue.objects.select_for_update())


def hold(timeout: float = 0) -> None:
    with hold_slot("acme", "imports", timeout=timeout):
        assert TenantJob.objects.running().exists()


def nothing_is_left() -> bool:
    return not threads_of_reservations() and not TenantJob.objects.not_ended().exists()


@pytest.mark.usefixtures("_impatient")
def test_the_timeout_ends_the_wait_for_a_row_that_another_transaction_keeps_for_itself() -> None:
    tenant_queue()
    with kept_open(lock_for_update), pytest.raises(NoFreeSlot, match="another transaction"):
        hold()
    wait_until(nothing_is_left)


@pytest.mark.usefixtures("_impatient")
def test_the_timeout_ends_the_wait_for_a_row_that_another_transaction_makes() -> None:
    with kept_open(tenant_queue), pytest.raises(NoFreeSlot, match="another transaction"):
        hold()
    wait_until(nothing_is_left)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("is_new", [False, True], ids=["locked", "made"])
def test_a_row_that_is_free_before_the_timeout_is_waited_for(is_new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other transaction goes on for longer than one statement waits."""
    tries = []
    waiting_at_most = module.waiting_at_most

    def counted(seconds: float) -> Any:
        tries.append(seconds)
        return waiting_at_most(seconds)

    monkeypatch.setattr(module, "waiting_at_most", counted)
    if not is_new:
        tenant_queue()
    errors: list[Exception] = []
    with kept_open(tenant_queue if is_new else lock_for_update):
        other = meanwhile(partial(hold, LONG), errors)
        wait_until(lambda: len(tries) >= 4)
    other.join(20)
    assert errors == []
    assert TenantJob.objects.get().state == State.FINISHED


@pytest.mark.parametrize("timeout", [0, LONG])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_the_transaction_of_the_tenants_first_job_is_told_at_once_that_it_waits_for_itself(
    level: str, timeout: float
) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        job = jobs.record.enqueue("acme", "first", "nowhere")
        with pytest.raises(NoFreeSlot, match="transaction around hold_slot"):
            hold(timeout)
    assert fresh(job).state == State.QUEUED


@pytest.mark.parametrize("lock", [lambda: TenantQueue.objects.get().set_limit(5), lock_for_update])
def test_a_transaction_that_has_changed_the_limit_is_told_at_once(lock: Any) -> None:
    tenant_queue()
    with transaction.atomic():
        lock()
        with pytest.raises(NoFreeSlot, match="transaction around hold_slot"):
            hold(LONG)
        tenant_queue("other")  # the transaction goes on
    wait_until(nothing_is_left)
    assert TenantQueue.objects.count() == 2
    hold()


def test_control_another_tenants_row_may_be_locked() -> None:
    tenant_queue("other"), tenant_queue()
    with transaction.atomic():
        TenantQueue.objects.get(tenant="other").set_limit(5)
        hold()


def test_a_database_that_does_not_answer_holds_up_nobody_for_longer_than_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As while a connection is waited for: of a pool that has none left, or of a server that is frozen."""
    go_on = Event()
    insert = module.Keeper._insert

    def wait_then_insert(keeper: Any) -> TenantJob:
        assert go_on.wait(20)
        return insert(keeper)

    monkeypatch.setattr(module, "SECONDS_FOR_ANSWER", 0.1)
    monkeypatch.setattr(module.Keeper, "_insert", wait_then_insert)
    with pytest.raises(NoFreeSlot, match="does not answer"):
        hold()
    go_on.set()
    wait_until(lambda: not threads_of_reservations())
    assert not TenantJob.objects.exists()


def test_a_locked_reservation_keeps_its_timeout_too(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its heartbeats nor its cancellation wait for the transaction that has its row."""
    settings.TENANT_SLOTS = {"BEAT_INTERVAL": 0.02}
    monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 0.2)
    row = tenant_queue(max_job=0)
    errors: list[Exception] = []
    other = meanwhile(partial(hold, 1), errors)
    wait_until(lambda: row.jobs.waiting().exists())
    with kept_open(lambda: list(TenantJob.objects.select_for_update())):
        other.join(20)
        assert not other.is_alive()
    assert [type(error) for error in errors] == [NoFreeSlot]
    wait_until(nothing_is_left)


def test_a_reservation_that_is_locked_when_it_begins_is_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    start = slots.start

    def locked_out(job: TenantJob, owner: Any) -> bool:
        with kept_open(lambda: list(TenantJob.objects.select_for_update().filter(pk=job.pk))):
            return start(job, owner)

    monkeypatch.setattr(slots, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(slots, "start", locked_out)
    with pytest.raises(NoFreeSlot, match="another transaction"):
        hold()
    wait_until(nothing_is_left)
