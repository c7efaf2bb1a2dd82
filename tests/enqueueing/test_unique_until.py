"""``unique_until="start"``: a job that has started has no duplicates, so that no change made while it runs is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from tenant_slots import slots, tenant_job
from tenant_slots.enqueueing import unique
from tenant_slots.enqueueing.ways import WaysToEnqueue
from tenant_slots.exceptions import InvalidOption
from tenant_slots.models import UNTIL_START, State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs
from tenant_slots.testing import run_jobs
from tests import jobs
from tests.factories import admit, age, end_run, fresh, owner, tenant_queue, work
from tests.processes import Workers
from tests.races.test_double_release import at_once

pytestmark = pytest.mark.django_db(transaction=True)

WORKERS = ["rq.Worker", *(f"tenant_slots.workers.Tenant{kind}" for kind in ("Worker", "PreforkWorker", "SimpleWorker"))]

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")


def started() -> TenantJob:
    """A job that runs."""
    row = TenantQueue.objects.first() or tenant_queue(max_job=1)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=0)
    jobs.import_latest.enqueue("acme")
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    (job,) = admit(row)
    assert slots.start(job, owner())
    return fresh(job)


def test_until_it_starts_a_job_stands_for_later_ones() -> None:
    row = tenant_queue(max_job=0)
    first = jobs.import_latest.enqueue("acme")
    assert jobs.import_latest.enqueue("acme") == first, "while it waits"
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    admit(row)
    assert jobs.import_latest.enqueue("acme") == first, "while it has a slot and no worker"
    assert fresh(first).unique_key.startswith(UNTIL_START)
    assert len(first.unique_key) == 64


def test_once_it_has_started_another_one_is_stored_and_that_one_stands_for_later_ones() -> None:
    first = started()
    assert first.unique_key == ""
    second = jobs.import_latest.enqueue("acme")
    assert second != first
    assert jobs.import_latest.enqueue("acme") == second


def test_however_many_calls_there_are_no_query_names_more_of_their_jobs_than_a_server_takes() -> None:
    """PostgreSQL takes 65,535 parameters where it binds them itself, and the driver does not."""
    tenant_queue(paused=True)
    before = jobs.add.enqueue(1, 2, tenant="beta")
    calls = [(("acme", f"{number}.csv"), {}) for number in range(2 * unique.KEYS_PER_QUERY)]
    numbers: list[int] = []

    def counted(execute: Callable[..., Any], sql: str, given: Any, *rest: Any) -> Any:
        numbers.append(len(given or ()) if sql.startswith("SELECT") else 0)
        return execute(sql, given, *rest)

    with connection.execute_wrapper(counted), transaction.atomic():
        first = jobs.import_latest.using(after=[before]).enqueue_many(calls)
        assert jobs.import_latest.enqueue_many(calls) == first
    assert unique.KEYS_PER_QUERY <= max(numbers) < 1.1 * unique.KEYS_PER_QUERY


def test_the_same_where_a_worker_takes_the_turn_and_starts_the_job_at_once() -> None:
    row = tenant_queue(max_job=0)
    first = jobs.import_latest.enqueue("acme")
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    job = slots.admit_and_start(row.pk, "imports", owner(), lambda chosen: None).started
    assert job is not None
    assert (job, job.unique_key) == (first, "")
    assert jobs.import_latest.enqueue("acme") != first


def test_a_job_that_is_unique_until_its_end_keeps_its_digest_when_it_starts() -> None:
    row = tenant_queue(max_job=0)
    first = jobs.import_once.enqueue("acme")
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    assert slots.admit_and_start(row.pk, "imports", owner(), lambda chosen: None).started == first
    assert jobs.import_once.enqueue("acme") == first


def test_end_is_what_holds_where_nothing_is_said() -> None:
    said = WaysToEnqueue(replace(jobs.import_once.tenant_task, unique_until="end"))
    assert said.enqueue("acme") == jobs.import_once.enqueue("acme")


def test_until_start_and_until_end_are_no_duplicates_of_each_other() -> None:
    said = WaysToEnqueue(replace(jobs.import_once.tenant_task, unique_until="start"))
    assert said.enqueue("acme") != jobs.import_once.enqueue("acme")


@pytest.mark.parametrize("after", ["retry", "crash", "unstarted"])
def test_a_job_that_has_started_once_stands_for_no_others_when_it_waits_again(after: str) -> None:
    first = started()
    if after == "retry":
        end_run(first, state=State.SCHEDULED, later=60.0)
    elif after == "crash":
        assert lost_runs.end_lost_run(first, "it died")
    else:
        assert slots.release(first, state=State.WAITING, unstarted=True)
    second = jobs.import_latest.enqueue("acme")
    assert second != first
    assert jobs.import_latest.enqueue("acme") == second


def test_a_job_that_is_put_back_before_it_has_started_still_stands_for_others() -> None:
    row = tenant_queue(max_job=0)
    first = jobs.import_latest.enqueue("acme")
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    (admitted,) = admit(row)
    assert slots.release(admitted, states=(State.QUEUED,), state=State.WAITING)
    assert jobs.import_latest.enqueue("acme") == first


@pytest.mark.django_db(transaction=False)
def test_both_run_one_after_the_other() -> None:
    """A retry of the one that has started, and the one that was stored meanwhile."""
    first = started()
    second = jobs.import_latest.enqueue("acme")
    assert slots.release(first, state=State.SCHEDULED, later=0.0)
    assert run_jobs(scheduled=True) == [first, second]
    assert {fresh(job).state for job in (first, second)} == {State.FINISHED}


def test_a_job_canceled_before_it_has_started_is_unique_again_when_it_is_retried() -> None:
    tenant_queue(max_job=0)
    first = jobs.import_latest.enqueue("acme")
    first.cancel()
    first.retry()
    assert jobs.import_latest.enqueue("acme") == first


def test_a_retried_job_beside_a_duplicate_that_waits_gives_up_its_digest() -> None:
    tenant_queue(max_job=0)
    first = jobs.import_latest.enqueue("acme")
    first.cancel()
    second = jobs.import_latest.enqueue("acme")
    first.retry()
    assert (fresh(first).unique_key, fresh(first).state) == ("", State.WAITING)
    assert jobs.import_latest.enqueue("acme") == second


def test_a_job_that_failed_after_its_start_is_retried_beside_the_one_that_came_since() -> None:
    first = started()
    end_run(first, state=State.FAILED, error="it raised")
    second = jobs.import_latest.enqueue("acme")
    fresh(first).retry()
    assert jobs.import_latest.enqueue("acme") == second
    work()
    assert {fresh(job).state for job in (first, second)} == {State.FINISHED}


def test_enqueue_many_gives_what_has_not_started() -> None:
    running = started()
    waiting = jobs.import_latest.enqueue("acme", "b.csv")
    got = jobs.import_latest.enqueue_many([(("acme", path), {}) for path in ("feed.csv", "b.csv", "feed.csv")])
    assert got[0] == got[2] != running
    assert got[1] == waiting


def test_a_job_that_has_waited_for_longer_than_the_window_has_no_duplicates() -> None:
    tenant_queue(max_job=0)
    first = jobs.import_latest.enqueue("acme")
    age(first, enqueued_at=601)
    assert jobs.import_latest.enqueue("acme") != first


def test_fifty_threads_that_enqueue_the_same_job_store_one() -> None:
    tenant_queue(max_job=0)
    found = at_once(*[lambda: jobs.import_latest.enqueue("acme").uuid] * 50)
    assert len(set(found)) == TenantJob.objects.count() == 1


@pytest.mark.django_db(transaction=False)
def test_a_job_that_enqueues_itself_runs_again() -> None:
    jobs.import_again.enqueue("acme")
    assert [job.result for job in run_jobs()] == [["running", "waiting"], ["finished", "running"]]


@pytest.mark.parametrize("kind", WORKERS)
def test_the_same_under_a_worker(workers: Workers, kind: str) -> None:
    jobs.import_again.enqueue("acme")
    workers.run("--burst", worker_class=kind)
    results = [job.result for job in TenantJob.objects.order_by("pk")]
    assert results == [["running", "waiting"], ["finished", "running"]]


def test_the_same_in_immediate_mode(settings: Any) -> None:
    settings.TENANT_SLOTS = {"IMMEDIATE": True}
    jobs.import_again.enqueue("acme")
    assert [job.state for job in TenantJob.objects.all()] == [State.FINISHED, State.FINISHED]


def test_inside_a_transaction_a_waiting_job_is_found() -> None:
    tenant_queue(max_job=0)
    first = jobs.import_latest.enqueue("acme")
    with transaction.atomic():
        assert jobs.import_latest.enqueue("acme") == first
        own = jobs.import_latest.enqueue("acme", "own.csv")
        assert jobs.import_latest.enqueue("acme", "own.csv") == own


def test_inside_a_transaction_a_job_that_has_a_slot_counts_as_started() -> None:
    """Its start would have to wait for the commit, and the slot with it."""
    row = tenant_queue(max_job=0)
    first = jobs.import_latest.enqueue("acme")
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    (admitted,) = admit(row)
    with transaction.atomic():
        second = jobs.import_latest.enqueue("acme")
        assert second != first
        assert jobs.import_latest.enqueue("acme") == second
        if connection.vendor == "postgresql":
            at_once(lambda: slots.start(admitted, owner()))
    assert fresh(first).state == (State.RUNNING if connection.vendor == "postgresql" else State.QUEUED)


@pytest.mark.django_db(transaction=False)
def test_in_a_test_case_of_a_project_duplicates_are_found_and_runs_clear_them() -> None:
    first = jobs.import_latest.enqueue("acme")
    assert jobs.import_latest.enqueue("acme") == first
    assert [job.pk for job in run_jobs()] == [first.pk]
    assert jobs.import_latest.enqueue("acme") != first


def good(tenant: str) -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"unique_until": "begin", "unique_for": timedelta(1)},
        {"unique_until": True, "unique_for": timedelta(1)},
        {"unique_until": "start"},
        {"unique_until": "end"},
    ],
)
def test_a_wrong_value_and_one_without_unique_for_are_refused_at_import(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="unique_until"):
        tenant_job("imports", tenant="tenant", **options)(good)
