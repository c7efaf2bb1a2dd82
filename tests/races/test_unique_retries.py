"""Unique jobs that are enqueued while failed ones are retried together: nobody waits in a circle, or is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from tenant_slots.db import transactions
from tenant_slots.enqueueing import retry, unique
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import fresh, tenant_queue
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.races.test_callers_transactions import meanwhile

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]

NEVER_THE_VICTIM = "SET LOCAL deadlock_timeout = '60s'"
"""PostgreSQL undoes the transaction that looks first for whom it waits."""


@pytest.fixture
def failed() -> list[TenantJob]:
    """Two failed jobs; that which is older has the higher digest."""
    tenant_queue(max_job=0)
    two = jobs.import_once.enqueue_many([(("acme", path), {}) for path in ("a.csv", "b.csv")])
    if two[0].unique_key < two[1].unique_key:
        keys = [job.unique_key for job in two]
        TenantJob.objects.all().delete()
        two = jobs.import_once.enqueue_many([(("acme", path), {}) for path in ("b.csv", "a.csv")])
        assert [job.unique_key for job in two] == keys[::-1]
    TenantJob.objects.update(state=State.FAILED)
    return [fresh(job) for job in two]


class Caller:
    """Somebody who enqueues the same two jobs meanwhile, and what he gets."""

    def __init__(self, failed: list[TenantJob]) -> None:
        self._calls = [(tuple(job.args), {}) for job in failed]
        self.got: list[TenantJob] = []
        self.errors: list[Exception] = []

    def begin(self) -> None:
        """Returns when he waits for us."""
        self._thread = meanwhile(self._enqueue, self.errors)
        wait_until(somebody_waits_for_a_lock)

    def ends(self) -> list[TenantJob]:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.got

    def _enqueue(self) -> None:
        self.got += jobs.import_once.enqueue_many(self._calls)


def retried_together(failed: list[TenantJob], caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller comes when one of them is revived, and the other is not."""
    revive = unique.revive
    revived: list[int] = []

    def revive_and_wait(*args: Any, **changes: Any) -> int:
        revived.append(revive(*args, **changes))
        if len(revived) == 1:
            caller.begin()
        return revived[-1]

    monkeypatch.setattr(unique, "revive", revive_and_wait)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(NEVER_THE_VICTIM)
        retry.retry_all(TenantQueue.objects.get(), failed)


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[OperationalError]:
    """Those that enqueueing has met."""
    seen: list[OperationalError] = []
    is_undone: Callable[[Any], bool] = transactions.is_undone

    def note(error: Any) -> bool:
        if is_undone(error):
            seen.append(error)
        return is_undone(error)

    monkeypatch.setattr(transactions, "is_undone", note)
    return seen


def test_who_enqueues_failed_jobs_that_are_retried_waits_and_is_given_them(
    failed: list[TenantJob], monkeypatch: pytest.MonkeyPatch, deadlocks: list[OperationalError]
) -> None:
    caller = Caller(failed)
    retried_together(failed, caller, monkeypatch)
    assert caller.ends() == failed
    assert (caller.errors, deadlocks) == ([], [])
    assert TenantJob.objects.waiting().count() == 2


def test_control_retried_in_the_order_of_the_backlog_they_deadlock_and_he_is_given_them_all_the_same(
    failed: list[TenantJob], monkeypatch: pytest.MonkeyPatch, deadlocks: list[OperationalError]
) -> None:
    monkeypatch.setattr(retry, "sorted", lambda some, key: some, raising=False)
    caller = Caller(failed)
    retried_together(failed, caller, monkeypatch)
    assert caller.ends() == failed
    assert caller.errors == []
    assert deadlocks, "and another one where he tries again before who retries has been woken"
    assert TenantJob.objects.waiting().count() == 2


def test_a_deadlock_of_a_callers_transaction_is_the_callers(
    failed: list[TenantJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else he has done in it is undone, too."""
    monkeypatch.setattr(retry, "sorted", lambda some, key: some, raising=False)
    caller = Caller(failed)
    monkeypatch.setattr(caller, "_enqueue", transaction.atomic(caller._enqueue))
    retried_together(failed, caller, monkeypatch)
    assert caller.ends() == []
    assert [type(error) for error in caller.errors] == [OperationalError]
