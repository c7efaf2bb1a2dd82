"""The read side: right numbers, one query, and an index for each of them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from tenant_slots import bulk, live, stats
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.factories import TASK, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db

on_postgresql = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="reads PostgreSQL's plans")

OF_WAITING_JOBS = re.compile("Index Only Scan using tenant_slots_(line|longest_wait|oldest_wait) ")
"""Which of them is the cheapest depends on how many jobs there are."""


def seconds_ago(seconds: float) -> Any:
    return timezone.now() - timedelta(seconds=seconds)


def explained(rows: Any) -> str:
    """The plan with sequential scans forbidden, so that a few rows are planned like a million."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
    plan: str = rows.explain()
    return plan


def filled() -> TenantQueue:
    """One of 100 tenants with 40 jobs each, a quarter of them waiting."""
    rows = [tenant_queue(f"tenant {number}") for number in range(100)]
    states = [State.WAITING, State.FINISHED, State.FINISHED, State.FINISHED]
    bulk.insert([TenantJob(tenant_queue=row, task=TASK, state=states[n % 4]) for n in range(40) for row in rows])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return rows[7]


def test_every_state_is_counted_where_it_belongs() -> None:
    row = tenant_queue("acme", max_job=5, current_job=3, paused=True)
    counts = {State.RUNNING: 2, State.QUEUED: 1, State.WAITING: 4, State.SCHEDULED: 3, State.FINISHED: 6}
    for state, count in counts.items():
        for _ in range(count):
            waiting_job(row, state=state)

    [usage] = stats.usage()

    assert (usage.tenant, usage.queue, usage.max_job, usage.current_job, usage.paused) == (
        "acme",
        "imports",
        5,
        3,
        True,
    )
    assert (usage.running, usage.queued, usage.waiting, usage.scheduled) == (2, 1, 4, 3)


def test_a_tenant_queue_without_jobs_shows_zeros_and_no_wait() -> None:
    tenant_queue("idle")
    [usage] = stats.usage()
    assert (usage.running, usage.queued, usage.waiting, usage.scheduled, usage.oldest_wait) == (0, 0, 0, 0, None)


def test_the_longest_line_comes_first_then_the_most_slots_in_use() -> None:
    tenant_queue("idle")
    tenant_queue("working", max_job=9, current_job=7)
    waiting_job(tenant_queue("short line"))
    longest = tenant_queue("long line")
    waiting_job(longest), waiting_job(longest)

    assert [usage.tenant for usage in stats.usage()] == ["long line", "short line", "working", "idle"]


def test_usage_can_be_asked_for_one_tenant_or_one_queue() -> None:
    for tenant in ("acme", "beta"):
        for queue in ("imports", "reports"):
            tenant_queue(tenant, queue=queue)

    assert {usage.queue for usage in stats.usage(tenant="acme")} == {"imports", "reports"}
    assert {usage.tenant for usage in stats.usage(queue="reports")} == {"acme", "beta"}
    assert len(stats.usage(tenant="acme", queue="reports")) == 1
    assert stats.usage(tenant="nobody") == []


def test_usage_is_one_query_however_many_rows(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(20):
        waiting_job(tenant_queue(f"tenant {number}"))
    with django_assert_num_queries(1):
        assert len(stats.usage()) == 20


def test_the_oldest_wait_is_that_of_the_longest_waiting_job_even_behind_others() -> None:
    row = tenant_queue()
    waiting_job(row, enqueued_at=seconds_ago(10), priority=5)
    waiting_job(row, enqueued_at=seconds_ago(300))
    waiting_job(row, enqueued_at=seconds_ago(9000), state=State.FINISHED)
    [usage] = stats.usage()
    assert usage.oldest_wait == pytest.approx(300, abs=5)


def test_a_job_that_was_put_off_has_not_waited_before_its_time() -> None:
    waiting_job(tenant_queue(), enqueued_at=seconds_ago(86400), run_after=seconds_ago(60))
    [usage] = stats.usage()
    assert usage.oldest_wait == pytest.approx(60, abs=5)


def test_a_time_to_run_that_was_past_at_enqueue_does_not_lengthen_the_wait() -> None:
    waiting_job(tenant_queue(), enqueued_at=seconds_ago(30), run_after=seconds_ago(86400))
    [usage] = stats.usage()
    assert usage.oldest_wait == pytest.approx(30, abs=5)


def test_a_wait_is_measured_by_the_clock_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting_job(tenant_queue())
    monkeypatch.setattr(timezone, "now", lambda: seconds_ago(-86400))
    [usage] = stats.usage()
    assert usage.oldest_wait is not None
    assert 0 <= usage.oldest_wait < 30


def test_positions_follow_priority_then_the_order_of_enqueueing() -> None:
    row = tenant_queue()
    first, second = waiting_job(row), waiting_job(row)
    urgent, idle = waiting_job(row, priority=5), waiting_job(row, priority=-5)
    waiting_job(tenant_queue("somebody else"), priority=9)

    in_line = [urgent, first, second, idle]
    assert [stats.position_in_line(job) for job in in_line] == [1, 2, 3, 4]
    assert list(row.jobs.in_line()) == in_line


def test_a_job_that_no_longer_waits_has_no_position_even_if_the_given_object_is_old() -> None:
    job = waiting_job(tenant_queue())
    TenantJob.objects.filter(pk=job.pk).update(state=State.RUNNING)
    assert stats.position_in_line(job) is None


def test_a_position_is_one_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    job = waiting_job(tenant_queue())
    with django_assert_num_queries(1):
        stats.position_in_line(job)


@on_postgresql
def test_waiting_jobs_are_counted_from_an_index_of_the_waiting_ones() -> None:
    filled()
    plan = explained(stats.with_waiting(TenantQueue.objects.all()))
    assert OF_WAITING_JOBS.search(plan), plan


@on_postgresql
def test_the_tiles_read_count_and_longest_wait_of_all_from_indexes() -> None:
    filled()
    plan = explained(live.sums_of_all())
    assert OF_WAITING_JOBS.search(plan), plan
    assert "Index Scan using tenant_slots_oldest_wait" in plan, plan


@on_postgresql
@pytest.mark.parametrize("state", ["running", "queued"])
def test_slots_in_use_are_counted_from_the_index_of_the_holders(state: str) -> None:
    filled()
    plan = explained(TenantQueue.objects.annotate(count=stats.count_of(getattr(stats.jobs_of_row(), state)())))
    assert "using tenant_slots_holding" in plan, plan


@on_postgresql
def test_a_position_is_counted_from_ranges_of_the_index_of_the_line() -> None:
    row = filled()
    plan = explained(stats.placed(row.jobs.waiting().latest("pk")))
    ranges = [line for line in plan.splitlines() if "Index Cond" in line and "priority" in line]
    assert plan.count("using tenant_slots_line") == 2, plan
    assert len(ranges) == 2, plan
