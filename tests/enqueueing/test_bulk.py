"""Many jobs enqueued in one call."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries

from tenant_slots.exceptions import InvalidLimit, UnknownTenantQueue
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import fresh, in_rq, redis_forgets, tenant_queue, work
from tests.policies import policy

pytestmark = pytest.mark.django_db(transaction=True)


def test_enqueue_many_keeps_the_order_and_serves_every_tenant() -> None:
    calls = [((n, 0), {"tenant": f"t{n % 2}"}) for n in range(6)]
    stored = jobs.add.enqueue_many(calls)
    assert [job.args[0] for job in stored] == list(range(6))
    assert in_rq("reports") == 2
    work()
    assert list(TenantJob.objects.order_by("pk").values_list("result", flat=True)) == list(range(6))


def test_enqueue_many_of_nothing_is_nothing() -> None:
    assert jobs.add.enqueue_many([]) == []


def test_many_jobs_at_once_are_stored_like_single_ones() -> None:
    """On PostgreSQL they go another way, which must leave the same rows."""
    job = jobs.add.using(priority=3, key="user-7").enqueue(0, 1, tenant="acme")
    stored = jobs.add.using(priority=3, key="user-7").enqueue_many([((n, 1), {"tenant": "acme"}) for n in range(150)])
    names = [field.attname for field in TenantJob._meta.concrete_fields]
    own = {"id", "uuid", "args", "enqueued_at", "state", "stage", "attempt", "admitted_at"}
    assert [j.args[0] for j in TenantJob.objects.order_by("pk")[1:]] == list(range(150))
    assert [j.pk for j in stored] == sorted(j.pk for j in stored)
    last = TenantJob.objects.get(pk=stored[-1].pk)
    fresh(job)
    assert {n: getattr(last, n) for n in names if n not in own} == {n: getattr(job, n) for n in names if n not in own}
    assert last.enqueued_at == stored[-1].enqueued_at >= job.enqueued_at
    stored[-1].refresh_from_db()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no policies")
def test_many_jobs_are_stored_also_where_policies_decide_about_rows() -> None:
    """PostgreSQL refuses COPY there."""
    with policy(TenantJob, "true") as role:
        with connection.cursor() as cursor:
            cursor.execute(f"SET ROLE {role}")
        stored = jobs.add.enqueue_many([((n, 1), {"tenant": "acme"}) for n in range(150)])
        assert [job.args[0] for job in TenantJob.objects.order_by("pk")] == list(range(150))
        assert [fresh(stored[n]).pk for n in (0, -1)] == [stored[0].pk, stored[-1].pk]


def limit_of(tenant: str, queue: str) -> Any:
    return "many" if tenant == "odd" else len(tenant)


def of_tenants(*tenants: str) -> list[Any]:
    return [((1, 2), {"tenant": tenant}) for tenant in tenants]


@pytest.mark.parametrize(
    ("backlog", "statements"),
    [
        ({}, 1 if connection.vendor == "postgresql" else 2),
        ({"max_waiting": 5}, 4 if connection.vendor == "postgresql" else 3),
    ],
)
def test_one_enqueue_is_one_statement_unless_the_backlog_is_looked_at(
    backlog: dict[str, int], statements: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """A begin and a commit would be counted. Without PostgreSQL the tenant queue is looked for first."""
    tenant_queue("acme", queue="reports", **backlog)
    redis_forgets()
    with django_assert_num_queries(statements):
        job = jobs.add.enqueue(1, 2, tenant="acme")
    assert fresh(job).state == State.WAITING


def test_one_enqueued_job_has_its_tenant_queue() -> None:
    row = tenant_queue("acme", queue="reports", max_job=7, share=3)
    tenant_queue("acme", queue="imports")
    tenant_queue("other", queue="reports")
    redis_forgets()
    job = jobs.add.enqueue(1, 2, tenant="acme")
    assert (job.tenant_queue, job.tenant_queue.share, job.tenant_queue.max_job) == (row, 3, 7)
    assert (fresh(job).tenant_queue, str(job.tenant_queue)) == (row, "acme on reports")
    assert not job._state.adding


def test_one_enqueue_in_a_callers_transaction_leaves_it_usable_and_is_rolled_back_with_it() -> None:
    tenant_queue("acme", queue="reports")
    with transaction.atomic():
        first = jobs.add.enqueue(1, 2, tenant="acme")
        second = jobs.add.enqueue(1, 2, tenant="acme")
        assert first.pk < second.pk
        transaction.set_rollback(True)
    assert not TenantJob.objects.exists()


def test_the_rows_of_many_tenants_are_found_and_made_together(settings: Any) -> None:
    settings.TENANT_SLOTS = {"DEFAULT_MAX_JOB": "tests.enqueueing.test_bulk.limit_of"}
    known = tenant_queue("known", queue="reports", max_job=9)
    redis_forgets()
    with CaptureQueriesContext(connection) as of_few:
        jobs.add.enqueue_many(of_tenants("known", "b", "bb"))
    with CaptureQueriesContext(connection) as of_many:
        jobs.add.enqueue_many(of_tenants("known", *("c" * number for number in range(1, 60))))
    assert len(of_many) <= len(of_few) + 4, "SQLite takes few parameters in a statement"
    assert fresh(known).max_job == 9
    assert dict(TenantQueue.objects.exclude(tenant="known").values_list("tenant", "max_job")) == {
        tenant: len(tenant) for tenant in ("b", "bb", *("c" * number for number in range(1, 60)))
    }


def test_new_rows_of_many_tenants_outlive_a_rollback_as_one_does() -> None:
    with transaction.atomic():
        jobs.add.enqueue_many(of_tenants("a", "b"))
        transaction.set_rollback(True)
    assert TenantQueue.objects.count() == (0 if connection.vendor == "sqlite" else 2)
    assert not TenantJob.objects.exists()


@pytest.mark.parametrize(
    ("configured", "error", "named"),
    [
        ({"AUTO_CREATE": False}, UnknownTenantQueue, "'new'"),
        ({"DEFAULT_MAX_JOB": "tests.enqueueing.test_bulk.limit_of"}, InvalidLimit, "'odd'"),
    ],
)
def test_many_tenants_of_which_one_may_have_no_row_leave_nothing(
    configured: dict[str, Any], error: type[Exception], named: str, settings: Any
) -> None:
    tenant_queue("acme", queue="reports")
    settings.TENANT_SLOTS = configured
    with pytest.raises(error, match=named):
        jobs.add.enqueue_many(of_tenants("acme", "new", "odd"))
    assert not TenantJob.objects.exists()
    assert TenantQueue.objects.count() == 1
