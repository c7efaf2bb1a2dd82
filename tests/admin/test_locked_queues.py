"""A job whose tenant queue another transaction keeps does not wait for a worker, and its page says so."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import connection

from tenant_slots.admin import reasons
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.stats import row_locks
from tests.factories import somebody_sweeps, tenant_queue, waiting_job, worker_on_record
from tests.jobs import add
from tests.races.test_callers_transactions import kept_open

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no locks on rows"),
]

KEEPS = {
    "locks it": lambda row: list(TenantQueue.objects.select_for_update().filter(pk=row.pk)),
    "has changed it": lambda row: TenantQueue.objects.filter(pk=row.pk).update(max_job=2),
}


@pytest.fixture
def job() -> TenantJob:
    somebody_sweeps()
    worker_on_record("worker-1")
    return waiting_job(tenant_queue())


def why(job: TenantJob) -> str:
    return " ".join(reasons.why_waiting(TenantJob.objects.select_related("tenant_queue").get(pk=job.pk)))


@pytest.mark.parametrize("how", KEEPS)
def test_a_transaction_that_keeps_it_for_long_is_named(
    job: TenantJob, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_locks, "LONG", 0)
    with kept_open(partial(KEEPS[how], job.tenant_queue)):
        text = why(job)
        lock = row_locks.lock_of(job.tenant_queue)
        assert lock
        assert f"in PostgreSQL's process {lock.process}: no job starts until it ends." in text
        assert "Nobody can say when it starts." in text
        assert "waits for a free worker" not in text
    assert "waits for a free worker" in why(job)


def test_one_that_keeps_it_for_a_moment_is_not(job: TenantJob) -> None:
    with kept_open(partial(KEEPS["locks it"], job.tenant_queue)):
        assert "waits for a free worker" in why(job)


def test_nor_is_one_that_enqueues_for_the_tenant(job: TenantJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for that, however long it takes."""
    monkeypatch.setattr(row_locks, "LONG", 0)
    with kept_open(partial(add.enqueue, job.tenant_queue.tenant, 1)):
        assert "waits for a free worker" in why(job)


def test_nor_is_one_that_keeps_anothers(job: TenantJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_locks, "LONG", 0)
    with kept_open(partial(KEEPS["locks it"], tenant_queue("other"))):
        assert "waits for a free worker" in why(job)
