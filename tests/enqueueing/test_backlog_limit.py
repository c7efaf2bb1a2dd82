"""A full backlog takes no more jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots import exceptions, rates
from tenant_slots.db.clock import in_seconds
from tenant_slots.enqueueing.backlog_limit import require_room
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import fresh, many_waiting, tenant_queue
from tests.plans import analyze, explained_sql

pytestmark = pytest.mark.django_db(transaction=True)

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plan")


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


NOW, IN_AN_HOUR = ({"rests_until": in_seconds(seconds)} for seconds in (0, 3600))
ONE_AN_HOUR = rates.fields_of(rates.Rate(1, timedelta(hours=1), 1))


@pytest.mark.parametrize(
    ("values", "room"),
    [({}, 3), (NOW, 3), (IN_AN_HOUR, 1), ({"paused": True}, 1), (ONE_AN_HOUR, 2), ({**ONE_AN_HOUR, **IN_AN_HOUR}, 1)],
    ids=["nothing", "its rest is over", "it rests", "a pause", "one token", "both"],
)
def test_a_slot_is_not_free_to_whom_a_rest_or_the_rate_keeps(values: dict[str, Any], room: int) -> None:
    row = tenant_queue(max_job=2, max_waiting=1)
    TenantQueue.objects.update(**values)
    require_room(fresh(row), room)
    with pytest.raises(exceptions.TenantQueueFull):
        require_room(row, room + 1)


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


@pytest.mark.parametrize(("max_waiting", "more"), [(None, 0), (5, 3 if connection.vendor == "postgresql" else 1)])
def test_checking_the_backlog_is_one_query_and_only_where_there_is_a_limit(max_waiting: int | None, more: int) -> None:
    """PostgreSQL is first asked to store the job where there is none, and then for the tenant queue."""
    tenant_queue("plain", max_job=0)
    tenant_queue("limited", max_job=0, max_waiting=max_waiting)
    counts = []
    for tenant in ("plain", "limited"):
        with CaptureQueriesContext(connection) as queries:
            jobs.flaky.enqueue(tenant)
        counts.append(len(queries))
    assert counts[1] - counts[0] == more


OF_WAITING_JOBS = re.compile("using tenant_slots_(longest_wait|backlog|backlog_by_key) on")

LONG_NAME = "q" * 100
"""With an RQ queue of this name the index of the backlog is a level higher, and so dearer to enter than others."""


def the_look_at(row: TenantQueue) -> str:
    """The query of a check that finds the backlog full."""
    with CaptureQueriesContext(connection) as queries, pytest.raises(exceptions.TenantQueueFull):
        require_room(row, 1)
    (asked,) = queries
    return str(asked["sql"])


@pytest.fixture
def as_if_new(transactional_db: None) -> Iterator[None]:
    """A table whose files, and its indexes', are not as large as tests before have left them, analyzed by us alone."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE tenant_slots_tenantqueue CASCADE")
        cursor.execute("ALTER TABLE tenant_slots_tenantjob SET (autovacuum_enabled = off)")
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE tenant_slots_tenantjob RESET (autovacuum_enabled)")


def burst(row: TenantQueue, rq_queue: str) -> None:
    """A backlog that came after the last ANALYZE, seen by a session that has not kept how high the indexes were."""
    analyze()
    many_waiting(row, 3000, rq_queue=rq_queue)
    connection.close()


@on_postgresql
@pytest.mark.usefixtures("as_if_new")
@pytest.mark.parametrize("rq_queue", ["", LONG_NAME])
@pytest.mark.parametrize("whose", ["acme", "others"])
@pytest.mark.parametrize("ended_before", [0, 1000, 20000])
def test_the_check_reads_an_index_of_the_backlog_not_the_tenants_history(
    ended_before: int, whose: str, rq_queue: str
) -> None:
    row = tenant_queue("acme", max_job=0, max_waiting=1000)
    many_waiting(row if whose == "acme" else tenant_queue(whose), ended_before, state=State.FINISHED)
    burst(row, rq_queue)
    looked = the_look_at(row)
    assert "COUNT" not in looked
    plan = explained_sql(looked)
    assert OF_WAITING_JOBS.search(plan), plan
    assert "Sort" not in plan, plan


@on_postgresql
@pytest.mark.usefixtures("as_if_new")
def test_a_check_that_left_the_index_to_postgresql_would_read_the_history() -> None:
    """The control of the above."""
    row = tenant_queue("acme", max_job=0)
    many_waiting(tenant_queue("others"), 1000, state=State.FINISHED)
    burst(row, LONG_NAME)
    plan = row.jobs.waiting()[1000:1001].explain()
    assert "using tenant_slots_history on" in plan, plan
