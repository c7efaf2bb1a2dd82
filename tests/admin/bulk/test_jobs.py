"""Bulk changes of jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from tenant_slots import signals
from tenant_slots.models import BulkChunk, State, TenantJob, TenantQueue
from tests import jobs
from tests.admin.bulk_changes import (
    came_of,
    carried_out,
    many_jobs,
    many_queues,
    report_of,
    started,
)
from tests.admin.site import JOBS, signed_in
from tests.factories import another_process, counters_match, fresh, running_job, tenant_queue

pytestmark = pytest.mark.django_db(transaction=True)


def test_many_jobs_are_canceled_whatever_they_do(boss: Client) -> None:
    row, other = tenant_queue(max_job=2), tenant_queue("other", max_job=0)
    running = running_job(row, another_process())
    (queued,) = many_jobs(row, 1)
    waiting = many_jobs(row, 3) + many_jobs(other, 6)
    scheduled = many_jobs(other, 1, state=State.SCHEDULED, run_after=timezone.now() + timedelta(hours=1))
    ended = many_jobs(other, 2, state=State.FINISHED)
    from tenant_slots import slots

    slots.admit(row.pk, "imports")
    change = started(boss, JOBS, "cancel", [running, queued, *waiting, *scheduled, *ended], reason="wrong feed")

    carried_out(change)

    assert report_of(boss, change) == [
        "It is done.",
        "14 of 14",
        "11 jobs were canceled.",
        "1 running job is being stopped.",
        "2 jobs had already ended.",
    ]
    assert {fresh(job).state for job in [queued, *waiting, *scheduled]} == {State.CANCELED}
    assert all(job.ended_at is not None for job in waiting)
    assert fresh(running).cancel_requested_at is not None
    assert {fresh(job).state for job in ended} == {State.FINISHED}
    assert counters_match()


def test_every_canceled_job_has_an_entry_with_user_and_reason(boss: Client) -> None:
    jobs = many_jobs(tenant_queue(max_job=0), 6)
    change = carried_out(started(boss, JOBS, "cancel", jobs, reason="wrong feed"))
    for job in jobs:
        entry = LogEntry.objects.get(object_id=str(job.pk))
        assert entry.get_change_message() == "Changed state: waiting → canceled (wrong feed)."
        assert (entry.user.username, entry.object_repr) == (change.by, str(job))


def test_the_end_of_every_canceled_job_is_told(boss: Client) -> None:
    jobs = many_jobs(tenant_queue(max_job=0), 6)
    told: list[tuple[int, str, str]] = []

    def hear(job: TenantJob, **_: Any) -> None:
        if job.task != "tenant_slots.admin.bulk.run.run_bulk_change":
            told.append((job.pk, job.state, job.tenant_queue.tenant))

    signals.job_ended.connect(hear)
    try:
        carried_out(started(boss, JOBS, "cancel", jobs))
    finally:
        signals.job_ended.disconnect(hear)
    assert told == [(job.pk, State.CANCELED, "acme") for job in jobs]


def test_without_the_permission_to_stop_running_jobs_are_left_alone() -> None:
    client = signed_in("view_tenantjob", "change_tenantjob")
    row = tenant_queue(max_job=1)
    running, waiting = running_job(row, another_process()), many_jobs(row, 5)
    change = carried_out(started(client, JOBS, "cancel", [running, *waiting]))
    assert came_of(change) == {"done": 5, "not stopped": 1}
    assert fresh(running).cancel_requested_at is None


def test_many_failed_jobs_are_retried_duplicates_of_others_too(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    failed = many_jobs(row, 4, state=State.FAILED, failures=3)
    unique = many_jobs(row, 1, state=State.FAILED, unique_key="a")[0]
    many_jobs(row, 1, unique_key="a")
    of_rq = many_jobs(row, 1, state=State.FAILED, rq_job_id="x")[0]
    change = carried_out(started(boss, JOBS, "retry", [*failed, unique, of_rq]))
    assert came_of(change) == {"done": 5, "other state": 1}
    assert {(fresh(job).state, job.failures, job.ended_at) for job in failed} == {(State.WAITING, 0, None)}
    assert (fresh(unique).state, unique.unique_key) == (State.WAITING, "")
    assert fresh(of_rq).state == State.FAILED


def test_jobs_that_run_after_canceled_ones_are_canceled_with_them(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    awaited = many_jobs(row, 5)
    others = tenant_queue("other", max_job=0)
    dependent = jobs.echo.using(after=[awaited[3]]).enqueue("other", 1)
    assert came_of(carried_out(started(boss, JOBS, "cancel", awaited))) == {"done": 5}
    assert fresh(dependent).state == State.CANCELED
    assert "a job of another tenant, which it was to run after, was canceled" in dependent.error
    assert fresh(others).current_job == 0


def test_a_chain_that_is_retried_keeps_its_order(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    first = jobs.echo.enqueue("acme", 1)
    second = jobs.echo.using(after=[first]).enqueue("acme", 2)
    assert first.cancel()
    more = many_jobs(row, 4, state=State.FAILED)
    assert came_of(carried_out(started(boss, JOBS, "retry", [first, second, *more]))) == {"done": 6}
    assert [fresh(job).state for job in (first, second)] == [State.WAITING, State.SCHEDULED]


def test_a_chain_across_tenants_that_is_retried_keeps_its_order(boss: Client) -> None:
    """Whatever the order of their tenant queues, and in however many transactions and chunks."""
    names = ["last", "middle", "first"]
    for name in names:
        tenant_queue(name, max_job=0)
    first = jobs.echo.enqueue("first", 1)
    second = jobs.echo.using(after=[first]).enqueue("middle", 2)
    third = jobs.echo.using(after=[first, second]).enqueue("last", 3)
    apart = jobs.echo.using(after=[third]).enqueue("first", 4)
    assert first.cancel()
    more = many_jobs(TenantQueue.objects.get(tenant="middle"), 4, state=State.FAILED)
    assert came_of(carried_out(started(boss, JOBS, "retry", [apart, third, second, first, *more]))) == {"done": 8}
    assert [fresh(job).state for job in (first, second, third, apart)] == [State.WAITING] + [State.SCHEDULED] * 3


def test_retried_jobs_have_their_turn(boss: Client) -> None:
    row = tenant_queue(max_job=10)
    failed = many_jobs(row, 5, state=State.FAILED)
    carried_out(started(boss, JOBS, "retry", failed))
    assert {fresh(job).state for job in failed} <= {State.QUEUED, State.FINISHED}


def test_many_priorities_are_changed(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    jobs, ended = many_jobs(row, 5), many_jobs(row, 1, state=State.FINISHED)
    change = carried_out(started(boss, JOBS, "set_priority", [*jobs, *ended], priority="7", reason="vip"))
    assert {fresh(job).priority for job in jobs} == {7}
    assert came_of(change) == {"done": 5, "other state": 1}
    assert LogEntry.objects.get(object_id=str(jobs[0].pk)).get_change_message() == "Changed priority: 0 → 7 (vip)."


def test_running_jobs_are_stopped_one_by_one(boss: Client) -> None:
    row = tenant_queue(max_job=5)
    running = [running_job(row, another_process()) for _ in range(5)]
    change = carried_out(started(boss, JOBS, "stop", running))
    assert came_of(change) == {"done": 5}
    assert all(fresh(job).cancel_requested_at for job in running)


def test_jobs_of_many_tenants_are_changed_in_a_transaction_of_each(boss: Client) -> None:
    rows = many_queues(3, max_job=0)
    jobs = [job for _ in range(3) for row in rows for job in many_jobs(row, 1)]
    change = started(boss, JOBS, "cancel", jobs)
    parts = [part for chunk in BulkChunk.objects.order_by("pk") for part in chunk.left]
    assert [part["of"] for part in parts] == sorted(part["of"] for part in parts)
    carried_out(change)
    assert came_of(change) == {"done": 9}
