"""A job keeps when, where and why its runs ended that did not bring it to its end well."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import django_rq
import pytest
from django.utils import timezone
from rq import Retry
from rq.worker import BaseWorker, SimpleWorker

from tenant_slots import TenantBusy, slots, tenant_job
from tenant_slots.db import clock
from tenant_slots.models import State, TenantJob
from tenant_slots.repair import lost_runs
from tenant_slots.tasks import attempts
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tests import jobs
from tests.factories import burst, dead_process, fresh, owner, running_job, tenant_queue, work

pytestmark = pytest.mark.django_db(transaction=True)

RETRY = Retry(max=2)

FINEST = timedelta(milliseconds=1)
"""What SQLite's clock, by which a row's times are, counts in: it cuts off what the worker's clock counts beyond."""


@tenant_job("imports", tenant="tenant", retry=RETRY)
def ends_as(tenant: str, ends: list[str]) -> object:
    """Each run as the next of `ends`: those before it are the runs that are kept."""
    end = ends[len(TenantJob.objects.get().runs or [])]
    if end == "busy":
        raise TenantBusy("429", seconds=3600)
    if end == "again":
        return RETRY
    if end == "error":
        raise ConnectionError("no line")
    return end


def kept(job: TenantJob) -> list[tuple[int, str | None, str]]:
    """Attempt, class and last line of each."""
    runs = attempts.ended_runs(fresh(job))
    return [(run["attempt"], run["error"], run["text"].strip().splitlines()[-1]) for run in runs]


def test_each_run_that_failed_with_its_times_and_its_worker() -> None:
    job = ends_as.enqueue("acme", ["error", "again", "fine"])
    work()
    assert fresh(job).state == State.FINISHED
    assert kept(job) == [
        (1, "builtins.ConnectionError", "ConnectionError: no line"),
        (2, None, "the job asked to run again"),
    ]
    first, second = attempts.ended_runs(job)
    times = [attempts.time_of(run, name) for run in (first, second) for name in ("started", "ended")]
    assert times == sorted(times, key=lambda time: time or datetime.min)
    assert first["worker"] == second["worker"] == job.worker != ""


@pytest.mark.parametrize("worker_class", [TenantSimpleWorker, TenantPreforkWorker, TenantWorker])
def test_its_times_are_the_databases_whatever_the_workers_clock_says(
    worker_class: type[BaseWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timezone, "now", lambda: datetime.now(UTC) + timedelta(hours=1))
    job = ends_as.enqueue("acme", ["error", "fine"])
    burst(worker_class)
    ((run,), now) = attempts.ended_runs(fresh(job)), clock.now()
    started, ended = attempts.time_of(run, "started"), attempts.time_of(run, "ended")
    assert started
    assert ended
    assert job.enqueued_at <= started <= ended <= now


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker, SimpleWorker])
def test_a_run_has_ended_before_its_job_has(worker_class: type[BaseWorker]) -> None:
    """However long it took to record its start."""
    failing = [jobs.fail.enqueue("acme") for _ in range(5)]
    burst(worker_class)
    for job in failing:
        (run,) = attempts.ended_runs(fresh(job))
        ended = attempts.time_of(run, "ended")
        assert ended
        assert ended <= job.ended_at + FINEST


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker])
def test_the_time_at_which_a_run_started_is_its_own_in_every_worker(worker_class: Any) -> None:
    """Also where one process starts it and another one, which measures how long it took, calls the function."""
    job = jobs.fail.enqueue("acme")
    worker = worker_class([django_rq.get_queue("imports")], connection=django_rq.get_connection("imports"))
    worker.work(burst=True, logging_level="ERROR")
    (run,) = attempts.ended_runs(fresh(job))
    started, ended = (attempts.time_of(run, name) for name in ("started", "ended"))
    assert started
    assert ended
    assert job.enqueued_at - timedelta(seconds=1) <= started <= ended < job.ended_at + FINEST


def test_one_that_was_put_back_because_its_tenant_is_busy() -> None:
    job = ends_as.enqueue("acme", ["busy"])
    work()
    assert kept(job) == [(1, None, "the job said that its tenant is busy: 429")]


def test_control_a_job_that_ends_well_at_once_keeps_none() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert (fresh(job).state, job.runs) == (State.FINISHED, None)


def test_one_whose_process_died() -> None:
    job = running_job(tenant_queue(), dead_process("worker-7"))
    assert lost_runs.end_interrupted_run(job, "its process died")
    assert kept(job) == [(1, attempts.RUN_LOST, "its process died")]
    (run,) = attempts.ended_runs(job)
    assert (run["worker"], attempts.time_of(run, "started")) == ("worker-7", job.started_at)


def test_one_that_was_canceled() -> None:
    job = running_job(tenant_queue(), dead_process("worker-7"))
    assert lost_runs.end_lost_run(job, "stopped by command", state=State.CANCELED)
    assert kept(job) == [(1, attempts.CANCELED, "stopped by command")]


def test_control_a_job_that_is_canceled_before_it_runs_keeps_none() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    job.cancel()
    assert (fresh(job).state, job.runs) == (State.CANCELED, None)


def test_control_a_job_whose_slot_is_taken_before_it_runs_keeps_none() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    assert fresh(job).state == State.QUEUED
    assert lost_runs.end_lost_run(job, "stuck", state=State.FAILED)
    assert (fresh(job).state, job.runs) == (State.FAILED, None)


def test_one_that_had_ended_before_its_cancel_could_stop_it() -> None:
    job = running_job(tenant_queue(), owner("worker-7"))
    assert job.cancel()
    assert slots.release(job, state=State.FINISHED).state == State.CANCELED
    assert kept(job) == [(1, attempts.CANCELED, "it had ended before it could be stopped")]
    assert attempts.ended_runs(job)[0]["worker"] == "worker-7"


def test_a_retry_by_hand_keeps_them() -> None:
    job = jobs.fail.enqueue("acme")
    work()
    assert fresh(job).state == State.FAILED
    job.retry()
    work()
    assert [attempt for attempt, *_ in kept(job)] == [1, 2]


def test_they_are_bounded() -> None:
    job = running_job(tenant_queue(), dead_process())
    for attempt in range(attempts.MOST_RUNS + 5):
        job.attempt = attempt
        job.runs = noted(job)
    assert len(job.runs) == attempts.MOST_RUNS
    assert (job.runs[0]["attempt"], job.runs[-1]["attempt"]) == (5, attempts.MOST_RUNS + 4)
    assert (attempts.forgotten_runs(job), job.runs[-1]["number"]) == (5, attempts.MOST_RUNS + 5)
    assert [bool(run["text"]) for run in job.runs].count(True) == attempts.MOST_TEXTS
    assert len(job.runs[-1]["text"]) == attempts.LONGEST_TEXT


def noted(job: TenantJob) -> Any:
    return attempts.noted(job, "builtins.ValueError", "x" * 10_000, "worker", 1.5)["runs"]


def test_what_is_written_fits_the_column() -> None:
    job = running_job(tenant_queue(), dead_process())
    TenantJob.objects.filter(pk=job.pk).update(runs=noted(job))
    assert len(attempts.ended_runs(fresh(job))) == 1
    TenantJob.objects.filter(pk=job.pk).update(runs=[{"attempt": 1}])
    assert attempts.ended_runs(fresh(job)) == [], "the control"
