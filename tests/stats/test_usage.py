"""What the commands and a project's own pages count: right numbers, one query."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from tenant_slots import slots, stats
from tenant_slots.models import State, TenantJob
from tenant_slots.stats import positions
from tests.factories import tenant_queue, waiting_job

pytestmark = pytest.mark.django_db


def seconds_ago(seconds: float) -> Any:
    return timezone.now() - timedelta(seconds=seconds)


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


def test_the_largest_backlog_comes_first_then_the_most_slots_in_use() -> None:
    tenant_queue("idle")
    tenant_queue("working", max_job=9, current_job=7)
    waiting_job(tenant_queue("few waiting"))
    largest = tenant_queue("many waiting")
    waiting_job(largest), waiting_job(largest)

    assert [usage.tenant for usage in stats.usage()] == ["many waiting", "few waiting", "working", "idle"]


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


def test_a_deferred_job_has_not_waited_before_its_time() -> None:
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

    in_order = [urgent, first, second, idle]
    assert [stats.position_in_backlog(job) for job in in_order] == [1, 2, 3, 4]
    assert list(row.jobs.backlog()) == in_order


def test_who_overflows_stands_before_nobody_in_another_queue() -> None:
    row = tenant_queue(max_job=9)
    overflowed = [waiting_job(row, rq_queue="imports_slow") for _ in range(3)]
    own = [waiting_job(row), waiting_job(row)]
    assert [stats.position_in_backlog(job) for job in (*overflowed, *own)] == [1, 2, 3, 1, 2]
    assert positions.first_waiting(row, 3) == [(1, own[0]), (1, overflowed[0]), (2, own[1])]
    assert slots.admit(row.pk, "imports", 1).jobs == own[:1]
    assert slots.admit(row.pk, "imports_slow", 1).jobs == overflowed[:1]


def test_a_job_that_no_longer_waits_has_no_position_even_if_the_given_object_is_old() -> None:
    job = waiting_job(tenant_queue())
    TenantJob.objects.filter(pk=job.pk).update(state=State.RUNNING)
    assert stats.position_in_backlog(job) is None


def test_a_position_is_one_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    job = waiting_job(tenant_queue())
    with django_assert_num_queries(1):
        stats.position_in_backlog(job)


@pytest.mark.parametrize("text", ["a\0b", "\udcff"])
def test_nobody_is_found_by_a_text_that_no_database_stores(text: str) -> None:
    """The second one is what Python makes of an argument of a command that is not UTF-8."""
    tenant_queue()
    assert stats.usage(tenant=text) == stats.usage(queue=text) == []
