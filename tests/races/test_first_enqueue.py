"""A tenant's first job in a transaction of the caller: its tenant queue is made outside of it, for everybody to use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connection, transaction

from tenant_slots import hold_slot, tenants
from tenant_slots.db import transactions
from tenant_slots.db.sessions import outside
from tenant_slots.exceptions import NoFreeSlot, TenantQueueLocked
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import fresh, in_thread, tenant_queue
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.races.test_callers_transactions import kept_open, meanwhile

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


@pytest.fixture
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """For controls: the row is made in the caller's transaction."""
    monkeypatch.setattr(transactions, "can_be_left", lambda alias: False)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Any:
    token = transactions.patience.set(0.2)
    yield
    transactions.patience.reset(token)


def enqueue(tenant: str) -> TenantJob:
    return jobs.add.enqueue(1, 2, tenant=tenant)


def in_opposite_orders() -> list[Exception]:
    """Two transactions that enqueue for the same two new tenants."""
    errors: list[Exception] = []
    both_began = Barrier(2, timeout=20)

    @transaction.atomic
    def one_after_the_other(first: str, second: str) -> None:
        enqueue(first)
        both_began.wait()
        enqueue(second)

    pairs = (("acme", "other"), ("other", "acme"))
    for thread in [meanwhile(partial(one_after_the_other, *pair), errors) for pair in pairs]:
        thread.join(30)
    return errors


def test_two_transactions_with_the_same_new_tenants_in_opposite_orders_both_commit() -> None:
    assert in_opposite_orders() == []
    assert TenantJob.objects.count() == 4
    assert TenantQueue.objects.count() == 2


@pytest.mark.usefixtures("_inside")
def test_control_made_inside_one_of_them_loses() -> None:
    assert [type(error) for error in in_opposite_orders()] == [TenantQueueLocked]


@pytest.mark.usefixtures("_impatient")
def test_a_first_job_that_is_not_committed_yet_holds_up_nobody() -> None:
    with kept_open(partial(enqueue, "acme")):
        job = enqueue("acme")
        assert fresh(job).state == State.QUEUED
        with transaction.atomic():
            enqueue("acme")
    assert TenantJob.objects.count() == 3


@pytest.mark.usefixtures("_impatient", "_inside")
def test_control_made_inside_it_would_hold_up_the_others_who_give_up_in_time() -> None:
    with kept_open(partial(enqueue, "acme")):
        with pytest.raises(TenantQueueLocked, match=r"'acme' on reports .* locked for 0.2 s"):
            enqueue("acme")
        with transaction.atomic(), pytest.raises(TenantQueueLocked):
            enqueue("acme")


def test_a_slot_can_be_held_in_the_transaction_of_the_first_job() -> None:
    with transaction.atomic():
        jobs.kill_self.enqueue("acme", "nowhere")
        with hold_slot("acme", "imports") as reservation:
            assert fresh(reservation.job).state == State.RUNNING


def test_a_slot_is_not_waited_for_where_the_caller_itself_keeps_the_new_row() -> None:
    with transaction.atomic():
        tenant_queue("acme")
        with pytest.raises(NoFreeSlot, match="another transaction"), hold_slot("acme", "imports"):
            pass


def test_a_rollback_takes_the_job_back_and_leaves_the_row() -> None:
    with transaction.atomic():
        enqueue("acme")
        transaction.set_rollback(True)
    assert not TenantJob.objects.exists()
    assert TenantQueue.objects.get().tenant == "acme"


def limit_of_plan(tenant: str, queue: str) -> int:
    return User.objects.filter(username=tenant).count() + 6


def test_the_default_limit_may_depend_on_what_the_caller_has_not_committed_yet(settings: Any) -> None:
    settings.TENANT_SLOTS = {"DEFAULT_MAX_JOB": f"{__name__}.limit_of_plan"}
    with transaction.atomic():
        User.objects.create(username="acme")
        enqueue("acme")
    assert TenantQueue.objects.get().max_job == 7


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_sees_the_past_only_makes_its_own_row(level: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        job = enqueue("acme")
    assert fresh(job).state == State.QUEUED


@pytest.mark.parametrize("tenants", [["acme"], ["acme", "other"]])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_one_that_cannot_see_the_row_of_another_is_told_so_that_it_can_be_tried_again(
    level: str, tenants: list[str]
) -> None:
    def enqueue_all() -> None:
        jobs.add.enqueue_many([((1, 2), {"tenant": tenant}) for tenant in tenants])

    def begin_and_be_late() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
            assert not TenantQueue.objects.exists()
            in_thread(partial(enqueue, "acme"))
            enqueue_all()

    with pytest.raises(OperationalError) as raised:
        begin_and_be_late()
    assert transactions.is_undone(raised.value), "any project that uses the level tries such a transaction again"
    enqueue_all()  # control
    assert TenantJob.objects.count() == 1 + len(tenants)


def test_without_a_further_connection_the_row_is_made_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(function: Callable[[], object]) -> None:
        raise OperationalError("sorry, too many clients already")

    monkeypatch.setattr(tenants, "outside", no_more)
    with transaction.atomic():
        job = enqueue("acme")
    assert fresh(job).state == State.QUEUED


@pytest.mark.django_db(transaction=False)
def test_in_a_projects_test_nothing_is_left_behind() -> None:
    """Django's TestCase is one transaction that is rolled back; control: outside of it the row would stay."""
    with transaction.atomic():
        enqueue("acme")
    seen = outside(lambda: TenantQueue.objects.count())
    assert (seen, TenantQueue.objects.count()) == (0, 1)


def test_a_row_that_another_transaction_makes_is_used_when_that_commits() -> None:
    errors: list[Exception] = []
    with transaction.atomic():
        tenant_queue("acme", queue="reports", max_job=5)
        other = meanwhile(partial(enqueue, "acme"), errors)
        wait_until(somebody_waits_for_a_lock)
    other.join(20)
    assert errors == []
    assert TenantJob.objects.get().tenant_queue.max_job == 5
