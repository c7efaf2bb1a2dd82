"""A row with a number that SQL from outside has put at the end of its range: it holds up nobody, and ends no worker."""

from __future__ import annotations

import json

import pytest
from django.db import connection

from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs
from tests import jobs
from tests.factories import counters_match, dead_process, fresh, running_job, tenant_queue
from tests.history import History
from tests.processes import Workers, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite's numbers have no end"),
]

HIGHEST = 2**31 - 1

CLASSES = [
    "tenant_slots.workers.TenantPreforkWorker",
    "tenant_slots.workers.TenantWorker",
    "tenant_slots.workers.TenantSimpleWorker",
    "rq.Worker",
]


@pytest.mark.parametrize("worker_class", CLASSES)
def test_a_job_that_cannot_be_admitted_holds_up_no_other_tenant(
    worker_class: str, history: History, workers: Workers
) -> None:
    tenant_queue("poisoned", max_job=2)
    tenant_queue("well", max_job=2)
    spoilt = jobs.record.enqueue("poisoned", "spoilt", history.path)
    TenantJob.objects.filter(pk=spoilt.pk).update(attempt=HIGHEST, state=State.WAITING)
    (worker,) = workers.start(worker_class=worker_class)
    for nth in range(3):
        jobs.record.enqueue("well", f"well-{nth}", history.path)
    wait_until(lambda: history.started() == ["well-0", "well-1", "well-2"], timeout=15)
    assert worker.poll() is None


@pytest.mark.parametrize("worker_class", CLASSES[:3])
def test_and_fails_alone_so_that_the_others_of_its_tenant_go_on(
    worker_class: str, history: History, workers: Workers
) -> None:
    row = tenant_queue("poisoned", max_job=1)
    spoilt = jobs.record.enqueue("poisoned", "spoilt", history.path)
    TenantJob.objects.filter(pk=spoilt.pk).update(attempt=HIGHEST, state=State.WAITING)
    TenantQueue.objects.filter(pk=row.pk).update(current_job=0)
    (worker,) = workers.start(worker_class=worker_class)
    others = [jobs.record.enqueue("poisoned", f"{nth}", history.path) for nth in range(3)]
    wait_until(lambda: all(fresh(job).state == State.FINISHED for job in others), timeout=30)
    assert fresh(spoilt).state == State.FAILED
    assert "enqueue it again" in spoilt.error
    assert history.started() == ["0", "1", "2"]
    assert worker.poll() is None
    wait_until(counters_match)

    assert counters_match()


NO_RETRY = {"retry": {"max": 3, "intervals": [-1e300]}}


@pytest.mark.parametrize("worker_class", CLASSES[:3])
def test_options_that_no_timer_no_redis_and_no_calendar_takes_fail_their_job_alone_and_end_no_worker(
    worker_class: str, history: History, workers: Workers
) -> None:
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps({"SWEEP_INTERVAL": 1})  # what cannot be pushed fails in a sweep
    tenant_queue("well", max_job=1)
    (worker,) = workers.start(worker_class=worker_class)
    far = 10**30
    no_options = {"timeout": far}, {"timeout": 2**31}, {"timeout": 0}, {"failure_ttl": far}, NO_RETRY
    for number, options in enumerate(no_options):
        row = tenant_queue(f"poisoned {number}", max_job=0)
        spoilt = jobs.fail.enqueue(row.tenant)
        TenantJob.objects.filter(pk=spoilt.pk).update(options=options)
        row.set_limit(1)
        wait_until(lambda job=spoilt: fresh(job).state == State.FAILED, timeout=15)
        assert spoilt.attempt == 1
        assert "options of job" in spoilt.error
        jobs.record.enqueue("well", f"{number}", history.path)
        wait_until(lambda name=str(number): name in history.started(), timeout=15)
    assert worker.poll() is None
    wait_until(counters_match)


COUNTS = [*(("failures", name) for name in CLASSES), *(("crashes", name) for name in CLASSES[:2])]


@pytest.mark.parametrize(("column", "worker_class"), COUNTS)
def test_a_count_that_goes_no_further_ends_no_worker(
    column: str, worker_class: str, history: History, workers: Workers
) -> None:
    row = tenant_queue("poisoned", max_job=1)
    ends_badly = jobs.fail if column == "failures" else jobs.kill_self
    job = ends_badly.enqueue("poisoned", history.path)  # type: ignore[operator]
    TenantJob.objects.filter(pk=job.pk).update(**{column: HIGHEST})
    (worker,) = workers.start(worker_class=worker_class)
    wait_until(lambda: fresh(job).state == State.FAILED, timeout=25)
    jobs.record.enqueue("poisoned", "next", history.path)
    wait_until(lambda: "next" in history.started(), timeout=15)
    assert worker.poll() is None
    wait_until(lambda: fresh(row).current_job == 0)
    assert counters_match()


def test_nor_does_one_of_interruptions_keep_a_slot() -> None:
    job = running_job(tenant_queue(), dead_process())
    TenantJob.objects.filter(pk=job.pk).update(interruptions=HIGHEST)
    assert lost_runs.end_interrupted_run(fresh(job), "died")
    assert (fresh(job).state, job.interruptions) == (State.FAILED, HIGHEST)
