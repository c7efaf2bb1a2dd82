"""Jobs tell how far they are: seldom, from outside their transaction, and never without the last values."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import django_rq
import pytest
from django.db import DatabaseError, OperationalError, connection
from django.test.utils import CaptureQueriesContext

from tenant_slots import report_progress, slots
from tenant_slots.exceptions import InvalidProgress
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running import progress
from tenant_slots.running.progress import Reporter, reporting
from tests import jobs
from tests.factories import another_process, fresh, running_job, tenant_queue, work
from tests.processes import Workers, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")


@pytest.fixture
def job() -> TenantJob:
    return running_job(tenant_queue(), another_process())


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was written before the end."""
    written: list[dict[str, Any]] = []
    original = Reporter._write

    def write(reporter: Reporter, values: dict[str, Any]) -> None:
        original(reporter, values)
        written.append(values)

    monkeypatch.setattr(Reporter, "_write", write)
    return written


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "tenant_slots progress"]


def test_the_first_values_are_seen_while_the_job_runs(job: TenantJob) -> None:
    with reporting(job) as reporter:
        report_progress(40, 100, read=40)
        wait_until(lambda: fresh(job).progress == {"done": 40, "total": 100}, 5)
        assert job.stats == {"read": 40}
        reporter.end()


def test_ten_thousand_reports_are_few_writes_and_the_last_one_is_recorded_with_the_end(
    writes: list[dict[str, Any]],
) -> None:
    job = jobs.reports_progress.enqueue("acme", 10_000)
    work()
    assert (fresh(job).state, job.progress, job.stats) == (
        State.FINISHED,
        {"done": 10_000, "total": 10_000},
        {"read": 10_000},
    )
    assert len(writes) <= 2
    assert threads() == []


def test_there_is_a_pause_between_two_writes(
    job: TenantJob, writes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_WRITES", 60)
    with reporting(job) as reporter:
        report_progress(1)
        wait_until(lambda: writes)
        report_progress(2)
        assert reporter.end()["progress"]["done"] == 2
    assert [values["progress"]["done"] for values in writes] == [1]


def test_new_values_are_written_after_the_pause(
    job: TenantJob, writes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_WRITES", 0.05)
    with reporting(job) as reporter:
        report_progress(1)
        wait_until(lambda: len(writes) == 1)
        report_progress(2)
        wait_until(lambda: fresh(job).progress["done"] == 2)
        reporter.end()


def test_stats_are_merged_by_name(job: TenantJob) -> None:
    with reporting(job) as reporter:
        report_progress(1, read=1, written=1)
        report_progress(2, read=2, refused=None)
        report_progress(3)
        assert reporter.end()["stats"] == {"read": 2, "written": 1, "refused": None}


def test_a_job_that_fails_keeps_its_last_values() -> None:
    job = jobs.reports_progress.enqueue("acme", 7, error="no such feed")
    work()
    assert (fresh(job).state, job.progress["done"], job.stats) == (State.FAILED, 7, {"read": 7})


def test_a_retry_starts_anew_with_its_first_report() -> None:
    job = jobs.reports_and_retries.enqueue("acme")
    work()
    assert (fresh(job).state, job.failures) == (State.FINISHED, 1)
    assert (job.progress, job.stats) == ({"done": 1, "total": 10}, {"read": 1})


def test_plain_rq_jobs_report_too() -> None:
    django_rq.get_queue("imports").enqueue(jobs.reports_progress, "acme", 5)
    work()
    assert TenantJob.objects.get().progress == {"done": 5, "total": 5}


def test_an_async_job_its_tasks_and_its_sync_parts_report_for_it() -> None:
    job = jobs.reports_from_a_coroutine.enqueue("acme")
    work()
    assert (fresh(job).progress, job.stats) == ({"done": 3, "total": 3}, {"read": 1, "written": 1})


@pytest.mark.parametrize(
    "worker_class",
    ["tenant_slots.workers.TenantWorker", "tenant_slots.workers.TenantSimpleWorker", "rq.Worker"],
)
def test_progress_reaches_the_row_on_every_worker_class(workers: Workers, tmp_path: Path, worker_class: str) -> None:
    """Inside the job's open transaction: it is seen before that ends, and the row is not locked by it."""
    if connection.vendor == "sqlite":
        pytest.skip("the job's transaction is the only writer")
    workers.start(1, worker_class=worker_class)
    job = jobs.reports_and_waits.enqueue("acme", str(tmp_path / "door"))
    wait_until(lambda: fresh(job).progress == {"done": 1, "total": 2})
    assert slots.beat(job.pk, job.token)
    (tmp_path / "door").touch()
    wait_until(lambda: fresh(job).state == State.FINISHED)
    assert job.stats == {"written": 1}


@on_postgresql
def test_a_job_that_reports_nothing_costs_no_thread_and_no_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail("a thread was started"))
    monkeypatch.setattr(Reporter, "_write", lambda *_: pytest.fail("progress was written"))
    job = running_job(tenant_queue(), another_process())
    with CaptureQueriesContext(connection) as queries, reporting(job) as reporter:
        assert reporter.end() == {}
    assert len(queries) == 0


def test_outside_a_job_it_does_nothing() -> None:
    report_progress(1, 2, read=3)
    jobs.reports_progress("acme", 3)
    assert threads() == []
    assert not TenantQueue.objects.exists()


def test_a_child_of_the_jobs_process_reports_nothing(job: TenantJob, monkeypatch: pytest.MonkeyPatch) -> None:
    with reporting(job) as reporter:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        report_progress(1)
        assert reporter.end() == {}


def test_without_a_thread_all_of_it_is_recorded_with_the_end(
    job: TenantJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with reporting(job) as reporter:
        report_progress(1)
        report_progress(2)
        assert reporter.end()["progress"]["done"] == 2
    assert caplog.text.count("recorded with its end only") == 1


def test_another_runs_row_is_left_alone(job: TenantJob, writes: list[dict[str, Any]]) -> None:
    TenantJob.objects.update(attempt=2, token=job.token + 1)
    with reporting(job) as reporter:
        report_progress(1)
        wait_until(lambda: writes)
        reporter.end()
    assert fresh(job).progress is None


def test_a_database_that_refuses_does_not_change_the_outcome(
    job: TenantJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_WRITES", 0.01)
    tries: list[object] = []

    def update(*_: Any, **values: Any) -> int:
        tries.append(values)
        raise OperationalError("gone")

    monkeypatch.setattr(type(TenantJob.objects.all()), "update", update)
    with reporting(job) as reporter:
        report_progress(3, 4)
        wait_until(lambda: len(tries) > 1, message="what was refused must be tried again")
        assert reporter.end()["progress"] == {"done": 3, "total": 4}
    assert "could not be written, the job goes on: gone" in caplog.text


def test_an_end_that_the_database_refuses_with_progress_is_recorded_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = slots.release

    def release(job: TenantJob, **values: Any) -> Any:
        if "stats" in values:
            raise DatabaseError("no")
        return original(job, **values)

    monkeypatch.setattr(slots, "release", release)
    job = jobs.reports_progress.enqueue("acme", 3)
    work()
    assert fresh(job).state == State.FINISHED


@pytest.mark.parametrize("total", [None, 0, 2.5, 100])
def test_the_total_may_be_unknown_nothing_or_a_fraction(job: TenantJob, total: float | None) -> None:
    with reporting(job) as reporter:
        report_progress(0.5, total)
        assert reporter.end()["progress"] == {"done": 0.5, "total": total}


@pytest.mark.parametrize(
    ("arguments", "stats", "message"),
    [
        ((-1, 10), {}, "done=-1"),
        ((True, 10), {}, "done=True.*int or a float"),
        (("1", 10), {}, "done='1'"),
        ((None, 10), {}, "done=None"),
        ((float("nan"), 10), {}, "done=nan"),
        ((1, float("inf")), {}, "total=inf"),
        ((1, -1), {}, "total=-1"),
        ((10**16, None), {}, "from 0 to"),
        ((10**5000, None), {}, "done=a int that cannot be shown"),
        ((1, 2), {"rows": [1, 2]}, "rows=.*a number, a text, a boolean or None"),
        ((1, 2), {"rows": {"a": 1}}, "rows="),
        ((1, 2), {"rows": object()}, "rows="),
        ((1, 2), {"rows": 10**5000}, "rows=a int that cannot be shown"),
        ((1, 2), {"rows": -(10**16)}, "rows=-1"),
        ((1, 2), {"rows": float("nan")}, "rows=nan"),
        ((1, 2), {"rows": "a\0b"}, "NUL"),
        ((1, 2), {"rows": "\ud800"}, "surrogate"),
        ((1, 2), {"ro\0ws": 1}, "NUL"),
    ],
)
def test_wrong_values_are_refused_by_name(
    job: TenantJob, arguments: tuple[Any, Any], stats: dict[str, Any], message: str
) -> None:
    with reporting(job) as reporter:
        with pytest.raises(InvalidProgress, match=message):
            report_progress(*arguments, **stats)
        assert reporter.end() == {}


@pytest.mark.parametrize("stats", [{f"n{i}": i for i in range(10_000)}, {"text": "x" * 9000}])
def test_too_much_is_refused_and_what_was_there_stays(job: TenantJob, stats: dict[str, Any]) -> None:
    with reporting(job) as reporter:
        report_progress(1, read=1)
        with pytest.raises(InvalidProgress, match="8192 are kept"):
            report_progress(2, **stats)
        assert reporter.end() == {"progress": {"done": 1, "total": None}, "stats": {"read": 1}}
