"""A full backlog takes no more jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots import exceptions
from tenant_slots.models import State, TenantJob
from tests import jobs
from tests.factories import fresh, many_waiting, tenant_queue
from tests.plans import explained

pytestmark = pytest.mark.django_db(transaction=True)


def calls(number: int, tenant: str = "acme") -> list[Any]:
    return [((tenant,), {}) for _ in range(number)]


def test_a_full_backlog_refuses_and_names_the_limit() -> None:
    tenant_queue(max_job=1, max_waiting=2)
    jobs.flaky.enqueue_many(calls(3))
    with pytest.raises(exceptions.TenantQueueFull, match="'acme' may have 2 jobs waiting") as refused:
        jobs.flaky.enqueue("acme")
    assert (refused.value.max_waiting, TenantJob.objects.count()) == (2, 3)


def test_enqueueing_many_stores_all_or_none() -> None:
    tenant_queue("acme", max_job=1, max_waiting=2)
    with pytest.raises(exceptions.TenantQueueFull):
        jobs.flaky.enqueue_many([*calls(10, "other"), *calls(4)])
    assert not TenantJob.objects.exists()


def test_a_job_that_finds_a_free_slot_does_not_wait_so_a_backlog_of_zero_only_refuses_the_others() -> None:
    tenant_queue(max_job=2, max_waiting=0)
    assert fresh(jobs.flaky.enqueue("acme")).state == State.QUEUED
    assert fresh(jobs.flaky.enqueue("acme")).state == State.QUEUED
    with pytest.raises(exceptions.TenantQueueFull):
        jobs.flaky.enqueue("acme")


def test_there_is_room_again_when_a_job_has_left_the_backlog() -> None:
    tenant_queue(max_job=1, max_waiting=1)
    _, waiting = jobs.flaky.enqueue_many(calls(2))
    waiting.cancel()
    assert fresh(jobs.flaky.enqueue("acme")).state == State.WAITING


def test_a_transaction_sees_its_own_jobs() -> None:
    tenant_queue(max_job=0, max_waiting=2)

    @transaction.atomic
    def enqueue_three() -> None:
        for _ in range(3):
            jobs.flaky.enqueue("acme")

    with pytest.raises(exceptions.TenantQueueFull):
        enqueue_three()
    assert not TenantJob.objects.exists()


def test_a_full_backlog_does_not_refuse_a_job_for_later() -> None:
    tenant_queue(max_job=0, max_waiting=0)
    tonight = timezone.now() + timedelta(hours=8)
    assert jobs.flaky.using(run_after=tonight).enqueue("acme").state == State.SCHEDULED


def test_other_tenants_and_tenants_without_a_limit_are_not_refused() -> None:
    tenant_queue("full", max_job=0, max_waiting=0)
    tenant_queue("other", max_job=0)
    jobs.flaky.enqueue_many(calls(5, "other"))
    assert TenantJob.objects.waiting().count() == 5


@pytest.mark.parametrize(("max_waiting", "more"), [(None, 0), (5, 1)])
def test_checking_the_backlog_is_one_query_and_only_where_there_is_a_limit(max_waiting: int | None, more: int) -> None:
    tenant_queue("plain", max_job=0)
    tenant_queue("limited", max_job=0, max_waiting=max_waiting)
    counts = []
    for tenant in ("plain", "limited"):
        with CaptureQueriesContext(connection) as queries:
            jobs.flaky.enqueue(tenant)
        counts.append(len(queries))
    assert counts[1] - counts[0] == more


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plan")
def test_checking_the_backlog_reads_an_index_and_counts_nothing() -> None:
    row = tenant_queue(max_job=0)
    many_waiting(row, 3000)
    many_waiting(tenant_queue("others"), 20000)
    with CaptureQueriesContext(connection) as queries:
        row.jobs.waiting()[1000:1001].exists()
    assert "COUNT" not in queries[0]["sql"]
    asked = row.jobs.waiting()[1000:1001]
    assert "Index Only Scan" in explained(asked.values("tenant_queue"))
    assert "Index Only Scan" not in explained(asked.values("task")), "a plan that reads the jobs looks the same"
