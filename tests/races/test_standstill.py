"""A process that stands still in a transaction of ours, or whose host is gone, keeps no tenant for long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from django.db import Error, connection, connections, transaction
from django.test import override_settings

from tenant_slots.db import transactions
from tenant_slots.db.sessions import private_connection
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.locks import locked
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.repair.unlocked import unlocked
from tests.factories import tenant_queue, waiting_job

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no server that a client may leave"),
]


@contextmanager
def standing_still_in(enter: Callable[[], AbstractContextManager[object]]) -> Iterator[list[Error]]:
    """Another thread is in the block, and says nothing to the server: no more than a host that is gone."""
    has_begun, is_over = threading.Event(), threading.Event()
    errors: list[Error] = []

    def stand_still() -> None:
        with private_connection(5):
            try:
                with enter():
                    has_begun.set()
                    is_over.wait()
            except Error as error:
                errors.append(error)
        connections.close_all()

    thread = threading.Thread(target=stand_still)
    thread.start()
    assert has_begun.wait(10)
    try:
        yield errors
    finally:
        is_over.set()
        thread.join()


def is_free(row: TenantQueue) -> bool:
    """After two and a half leases."""
    try:
        with transactions.waiting_at_most(2.5), locked(row.pk):
            return True
    except TenantQueueLocked:
        return False


@pytest.mark.parametrize("is_ended", [True, pytest.param(False, id="control: the server waits for it")])
@override_settings(TENANT_SLOTS={"LEASE_TTL": 1})
def test_the_tenant_queue_is_free_after_half_a_lease(is_ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_ended:
        monkeypatch.setattr(transactions, "STANDSTILL_SHARE", 0)
    row = tenant_queue()
    with standing_still_in(lambda: locked(row.pk)) as errors:
        assert is_free(row) is is_ended
    assert len(errors) == is_ended, "it hears of it when it goes on"


@override_settings(TENANT_SLOTS={"LEASE_TTL": 1})
def test_so_are_the_jobs_of_many_tenants_that_a_sweep_changes_together() -> None:
    job = waiting_job(tenant_queue())
    with standing_still_in(lambda: unlocked(TenantJob.objects.all())), transaction.atomic():
        assert TenantJob.objects.select_for_update().get() == job


def test_a_session_of_the_projects_stands_still_for_as_long_as_it_likes_afterwards() -> None:
    row = tenant_queue()

    def shown() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            return str(cursor.fetchone()[0])

    before = shown()
    with locked(row.pk):
        assert shown() == "10s"
    assert shown() == before
    with transaction.atomic(), locked(row.pk):
        assert shown() == before, "the transaction is the caller's"
