"""Real workers and real signals."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import django_rq
import pytest
from django.db import connection, transaction
from rq import Worker
from rq.suspension import resume, suspend
from rq.worker import WorkerStatus

from tenant_slots.models import ENDED, State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import counters_match, fresh
from tests.history import History
from tests.processes import Workers, wait_until


def all_ended() -> bool:
    return TenantJob.objects.exists() and not TenantJob.objects.exclude(state__in=ENDED).exists()


def horse_of(history: History, name: str) -> int:
    wait_until(lambda: name in history.started())
    return next(event.pid for event in reversed(history.events()) if event.name == name)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_killed_horse_gives_its_slot_back_and_its_job_runs_again(
    workers: Workers, history: History, tmp_path: Path
) -> None:
    workers.start(1)
    path = str(tmp_path / "go on")
    stuck = jobs.wait_for_file.enqueue("acme", "stuck", history.path, path)
    jobs.record.enqueue("acme", "next", history.path)
    os.kill(horse_of(history, "stuck"), signal.SIGKILL)
    wait_until(lambda: history.started().count("stuck") == 2)
    Path(path).touch()
    wait_until(all_ended)
    stuck.refresh_from_db()
    assert (stuck.state, stuck.attempt, stuck.crashes) == (State.FINISHED, 2, 1)
    assert history.started() == ["stuck", "stuck", "next"]
    assert TenantQueue.objects.get().current_job == 0


def test_a_job_that_always_dies_fails_in_the_end(workers: Workers, history: History) -> None:
    workers.start(1)
    poison = jobs.kill_self.enqueue("acme", history.path)
    after = jobs.record.enqueue("acme", "after", history.path)
    wait_until(all_ended)
    poison.refresh_from_db()
    after.refresh_from_db()
    assert (poison.state, poison.crashes) == (State.FAILED, 4)
    assert poison.error.count("died") == 4
    assert after.state == State.FINISHED


def test_a_killed_worker_takes_its_horse_with_it(workers: Workers, history: History, tmp_path: Path) -> None:
    (worker,) = workers.start(1)
    jobs.wait_for_file.enqueue("acme", "orphan", history.path, str(tmp_path / "never"))
    horse = horse_of(history, "orphan")
    worker.kill()
    worker.wait()
    wait_until(lambda: gone(horse), timeout=5, message="the horse outlived its worker")


@pytest.mark.parametrize("name", ["TenantWorker", "TenantPreforkWorker", "TenantSimpleWorker"])
def test_a_worker_that_is_told_twice_to_end_interrupts_its_job_which_has_not_failed(
    workers: Workers, history: History, tmp_path: Path, name: str
) -> None:
    (worker,) = workers.start(1, worker_class=f"tenant_slots.workers.{name}")
    job = jobs.wait_for_file.enqueue("acme", "long", history.path, str(tmp_path / "never"))
    wait_until(lambda: history.started() == ["long"])
    redis = django_rq.get_connection("imports")
    (on_record,) = Worker.all(connection=redis)
    worker.send_signal(signal.SIGINT)
    wait_until(lambda: redis.hget(on_record.key, "shutdown_requested_date"))
    time.sleep(1.2)  # RQ takes two within a second for one
    worker.send_signal(signal.SIGINT)
    worker.wait(30)
    job.refresh_from_db()
    assert (job.state, job.interruptions, job.crashes, job.failures) == (State.WAITING, 1, 0, 0)
    assert counters_match()


def test_canceling_a_running_job_stops_it(workers: Workers, history: History, tmp_path: Path) -> None:
    workers.start(1)
    job = jobs.wait_for_file.enqueue("acme", "long", history.path, str(tmp_path / "never"))
    after = jobs.record.enqueue("acme", "after", history.path)
    horse = horse_of(history, "long")
    assert job.cancel()
    wait_until(all_ended)
    job.refresh_from_db()
    after.refresh_from_db()
    assert job.state == State.CANCELED
    assert gone(horse)
    assert after.state == State.FINISHED


@pytest.mark.parametrize(
    "worker_class",
    [
        "",
        "rq.Worker",
        "rq.worker.SpawnWorker",
        "rq.SimpleWorker",
        "tenant_slots.workers.TenantSimpleWorker",
        "tenant_slots.workers.TenantPreforkWorker",
    ],
)
def test_rules_hold_under_any_worker_class(workers: Workers, history: History, worker_class: str) -> None:
    """The gate is in the job; "" is a project without any WORKER_CLASS setting."""
    TenantQueue.objects.create(tenant="b", queue="imports", max_job=2)
    workers.start(3, worker_class=worker_class)
    jobs.record.enqueue_many([(("ab"[n % 2], f"job{n}", history.path, 0.02), {}) for n in range(12)])
    wait_until(all_ended, timeout=180)  # a SpawnWorker imports everything anew for each job
    assert sorted(history.started()) == sorted(f"job{n}" for n in range(12))
    overlap = history.highest_overlap()
    assert overlap["a"] == 1
    assert overlap["b"] <= 2


def test_plain_rq_jobs_wait_their_turn_on_stock_workers(workers: Workers, history: History) -> None:
    """Without any setting of ours: ``rqworker imports --with-scheduler`` and a stock worker class."""
    workers.start(3, "--with-scheduler", worker_class="")
    queue = django_rq.get_queue("imports")
    for n in range(6):
        queue.enqueue(jobs.record, "acme", f"plain{n}", history.path, 0.1)
        jobs.record.enqueue("acme", f"ours{n}", history.path, 0.02)
    wait_until(lambda: TenantJob.objects.filter(state=State.FINISHED).count() == 12, timeout=50)
    assert history.highest_overlap() == {"acme": 1}
    assert len(history.started()) == 12
    assert TenantQueue.objects.get().current_job == 0


def test_jobs_that_are_not_tenants_run_as_ever(workers: Workers) -> None:
    workers.start(1)
    rq_job = django_rq.get_queue("imports").enqueue("operator.add", 1, 2)
    wait_until(lambda: rq_job.return_value(refresh=True) == 3)
    assert not TenantJob.objects.exists()
    assert Worker.all(connection=django_rq.get_connection("imports"))[0].successful_job_count == 1


def test_a_suspended_worker_starts_nothing_until_it_is_resumed(workers: Workers, history: History) -> None:
    connection = django_rq.get_connection("imports")
    suspend(connection)
    workers.start(1)
    wait_until(lambda: [one.get_state() for one in Worker.all(connection=connection)] == [WorkerStatus.SUSPENDED])
    job = jobs.record.enqueue("acme", "patient", history.path)
    job.refresh_from_db()
    assert job.state in (State.WAITING, State.QUEUED), "whether it is admitted ahead is another question"
    resume(connection)
    wait_until(all_ended)
    assert history.started() == ["patient"]


def test_a_worker_may_have_a_name_of_any_length(workers: Workers, history: History) -> None:
    """RQ sets no bound, and a name is made from that of the host, which may be as long as a DNS name."""
    name = "w" * 300
    workers.start(1, "--name", name)
    job = jobs.record.enqueue("acme", "named", history.path)
    wait_until(lambda: fresh(job).state == State.FINISHED, 15, "the worker cannot write its name")
    assert job.worker == name


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no bound to a text")
def test_control_with_a_bound_to_the_names_of_workers_it_runs_no_job(workers: Workers, history: History) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE tenant_slots_tenantjob ALTER COLUMN worker TYPE varchar(255)")
    try:
        job = jobs.record.enqueue("acme", "named", history.path)
        assert fresh(job).state == State.QUEUED, "the worker finds it in RQ's list"
        workers.start(1, "--name", "w" * 300)
        wait_until(lambda: fresh(job).error)
        assert "value too long" in job.error
        assert history.started() == []
    finally:
        workers.stop()
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("ALTER TABLE tenant_slots_tenantjob ALTER COLUMN worker TYPE text")


@pytest.mark.parametrize("worker_class", ["tenant_slots.workers.TenantWorker", "rq.Worker"])
def test_a_job_of_the_next_release_waits_and_keeps_nobody_waiting(
    workers: Workers, history: History, worker_class: str
) -> None:
    row = TenantQueue.objects.create(tenant="acme", queue="imports", max_job=0)
    new = jobs.record.enqueue("acme", "new", history.path)
    TenantJob.objects.update(task="tests.jobs_of_the_next_release.record")
    after = jobs.record.enqueue("acme", "after", history.path)
    row.set_limit(1)
    workers.start(1, worker_class=worker_class)
    wait_until(lambda: fresh(after).state == State.FINISHED)
    assert (fresh(new).state, new.failures, new.crashes) == (State.SCHEDULED, 0, 0)
