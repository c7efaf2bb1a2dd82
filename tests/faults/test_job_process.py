"""The process that runs a job ends badly, or does not end."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import django_rq
import pytest
from rq import Callback
from rq.job import JobStatus

from tenant_slots.models import ENDED, State, TenantJob, TenantQueue
from tests.factories import counters_match, fresh
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer, is_gone
from tests.processes import wait_until

IMPATIENT = "tests.faults.workers.ImpatientWorker"
OURS = ["tenant_slots.workers.TenantWorker", "tenant_slots.workers.TenantPreforkWorker"]


@pytest.mark.parametrize("worker_class", [*OURS, pytest.param("rq.Worker", id="control")])
def test_i2_i3_sigkill_of_a_horse_gives_its_slot_back_within_two_seconds(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str
) -> None:
    """Without a sweep, and long before its lease has run out."""
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps({**SHORT, "LEASE_TTL": 60, "SWEEP_INTERVAL": 60})
    is_ours = worker_class in OURS
    workers.start(worker_class=worker_class)
    jobs.quick.enqueue("acme", "before", observer.path)
    lost = jobs.hold.enqueue("acme", "lost", observer.path, str(door))
    horse = observer.process_of("lost")
    killed = time.monotonic()
    os.kill(horse, signal.SIGKILL)
    wait_until(lambda: len(observer.starts("lost")) == 2 or time.monotonic() - killed > 2)
    assert len(observer.starts("lost")) == (2 if is_ours else 1)
    door.touch()
    if is_ours:
        observer.wait_for_all()
    assert (fresh(lost).attempt, lost.crashes) == ((2, 1) if is_ours else (1, 0))


@pytest.mark.parametrize("worker_class", OURS)
@pytest.mark.parametrize("how", ["SIGTERM", "os._exit(0)", "os._exit(1)", "segfault", "abort"])
def test_i1_i3_a_job_whose_process_dies_is_tried_four_times_and_then_fails(
    workers: FaultWorkers, observer: Observer, how: str, worker_class: str
) -> None:
    workers.start(worker_class=worker_class)
    poison = jobs.die.enqueue("acme", "poison", observer.path, how)
    after = jobs.quick.enqueue("acme", "after", observer.path)
    observer.wait_for_all()
    assert observer.started() == ["poison"] * 4 + ["after"]
    assert (fresh(poison).state, poison.crashes) == (State.FAILED, 4)
    assert poison.error.count("died") == 4
    assert fresh(after).state == State.FINISHED
    assert counters_match()


@pytest.mark.parametrize("worker_class", OURS)
@pytest.mark.parametrize("how", ["sys.exit", "out of memory"])
def test_i2_i3_a_job_that_ends_itself_fails_once(
    workers: FaultWorkers, observer: Observer, how: str, worker_class: str
) -> None:
    workers.start(worker_class=worker_class)
    job = jobs.die.enqueue("acme", "ends", observer.path, how)
    after = jobs.quick.enqueue("acme", "after", observer.path)
    observer.wait_for_all()
    assert (fresh(job).state, job.attempt, job.crashes) == (State.FAILED, 1, 0)
    assert {"sys.exit": "SystemExit: 3", "out of memory": "MemoryError"}[how] in job.error
    assert fresh(after).state == State.FINISHED


@pytest.mark.parametrize("worker_class", [*OURS, "tenant_slots.workers.TenantSimpleWorker"])
def test_i1_i4_a_child_that_a_job_has_forked_and_that_comes_to_the_end_of_its_function_ends(
    workers: FaultWorkers, observer: Observer, worker_class: str
) -> None:
    """It would be a second worker of the same name, without heartbeats."""
    workers.start(worker_class=worker_class)
    forked = jobs.fork_and_fall_through.enqueue("acme", "forks", observer.path)
    wait_until(lambda: jobs.children_of(observer.path))
    (child,) = jobs.children_of(observer.path)
    wait_until(lambda: is_gone(child), message="the child of the job lives on")
    jobs.ask_database.enqueue("acme", "after", observer.path)
    observer.wait_for_all()
    assert observer.started() == ["forks", "after"]
    assert fresh(forked).state == State.FINISHED


def test_i2_i3_i4_sigterm_to_the_whole_group_puts_the_job_back_for_another_worker(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """systemd's default; KillMode=mixed spares the horse."""
    (first,) = workers.start()
    job = jobs.hold.enqueue("acme", "interrupted", observer.path, str(door))
    horse = observer.process_of("interrupted")
    first.terminate()
    os.kill(horse, signal.SIGTERM)
    assert first.wait(15) == 0
    assert counters_match()
    workers.start()
    observer.process_of("interrupted", run=2)
    door.touch()
    observer.wait_for_all()
    assert fresh(job).state == State.FINISHED


def test_i2_i3_a_timeout_fails_the_job_and_frees_its_slot(workers: FaultWorkers, observer: Observer) -> None:
    workers.start()
    slow = jobs.too_slow.enqueue("acme", "slow", observer.path)
    after = jobs.quick.enqueue("acme", "after", observer.path)
    observer.wait_for_all(20)
    assert (fresh(slow).state, slow.attempt) == (State.FAILED, 1)
    assert "JobTimeoutException" in slow.error
    assert fresh(after).state == State.FINISHED


def test_i1_i3_a_swallowed_timeout_ends_with_the_kill_of_rq_and_the_job_fails(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    workers.start(worker_class=IMPATIENT)
    deaf = jobs.swallow_the_timeout.enqueue("acme", "deaf", observer.path, str(door))
    after = jobs.quick.enqueue("acme", "after", observer.path)
    observer.wait_for_all(20)
    assert (fresh(deaf).state, deaf.attempt) == (State.FAILED, 1)
    assert not observer.ended("deaf")
    assert fresh(after).state == State.FINISHED


def test_i1_a_swallowed_timeout_keeps_its_slot_until_the_job_really_ends(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    workers.start(2)
    deaf = jobs.swallow_the_timeout.enqueue("acme", "deaf", observer.path, str(door))
    jobs.quick.enqueue("acme", "after", observer.path)
    observer.process_of("deaf")
    wait_until(lambda: deaf_for(deaf) > 3)
    assert observer.started() == ["deaf"]
    door.touch()
    observer.wait_for_all()
    assert fresh(deaf).state == State.FINISHED


def deaf_for(job: TenantJob) -> float:
    beat_at, started_at = TenantJob.objects.filter(pk=job.pk).values_list("beat_at", "started_at").get()
    return float((beat_at - started_at).total_seconds())


def test_i2_a_raising_on_success_changes_nothing_in_the_row(workers: FaultWorkers, observer: Observer) -> None:
    workers.start()
    queue = django_rq.get_queue("imports")
    rq_job = queue.enqueue(jobs.quick, "acme", "plain", observer.path, on_success=Callback(jobs.raise_on_success))
    wait_until(lambda: rq_job.get_status() == JobStatus.FAILED)
    assert TenantJob.objects.get().state == State.FINISHED
    assert TenantQueue.objects.get().current_job == 0


def test_i3_a_returned_retry_runs_the_job_again_in_its_slot(workers: FaultWorkers, observer: Observer) -> None:
    workers.start()
    job = jobs.ask_again.enqueue("acme", "again", observer.path, 3)
    observer.wait_for_all()
    assert (fresh(job).state, job.attempt, job.failures) == (State.FINISHED, 3, 2)
    assert observer.started() == ["again"] * 3


def test_i3_a_retry_with_an_interval_needs_no_scheduler(workers: FaultWorkers, observer: Observer) -> None:
    workers.start()
    job = jobs.raise_once.enqueue("acme", "flaky", observer.path)
    jobs.quick.enqueue("acme", "meanwhile", observer.path)
    observer.wait_for_all()
    assert observer.started() == ["flaky", "meanwhile", "flaky"]
    assert fresh(job).state == State.FINISHED


def test_i1_i4_a_job_that_keeps_the_gil_for_longer_than_its_lease_runs_once(
    workers: FaultWorkers, observer: Observer
) -> None:
    workers.start(2)
    job = jobs.keep_the_gil.enqueue("acme", "deaf", observer.path, 6)
    jobs.quick.enqueue("acme", "after", observer.path)
    observer.wait_for_all()
    assert observer.started() == ["deaf", "after"]
    assert (fresh(job).state, job.attempt) == (State.FINISHED, 1)


def test_i1_i3_i4_a_simple_worker_that_keeps_the_gil_so_long_is_killed_before_its_job_runs_elsewhere(
    workers: FaultWorkers, observer: Observer
) -> None:
    """The thread that sends its heartbeats cannot run, so it looks dead, and there is no other way to be sure."""
    (simple,) = workers.start(1, worker_class="tenant_slots.workers.TenantSimpleWorker")
    job = jobs.keep_the_gil.enqueue("acme", "deaf", observer.path, jobs.LONGEST)
    observer.process_of("deaf")
    workers.start()
    observer.wait_for_all()
    assert simple.wait(5) == -signal.SIGKILL
    assert (fresh(job).state, job.crashes, job.interruptions) == (State.FINISHED, 0, 1)
    assert observer.started() == ["deaf", "deaf"]


def test_i3_i4_a_horse_that_dies_after_its_last_line_and_before_it_says_so_runs_again(
    workers: FaultWorkers, observer: Observer, tmp_path: Path
) -> None:
    """At least once: the work was done, and nobody could know."""
    armed = tmp_path / "armed"
    armed.touch()
    workers.start(worker_class=workers.with_sabotage("tenant_slots.running.outbox:Outbox.put before SIGKILL", armed))
    jobs.quick.enqueue("acme", "unlucky", observer.path)
    observer.wait_for_all()
    assert observer.started() == ["unlucky", "unlucky"]


def test_i3_i4_a_horse_that_dies_after_it_said_how_its_job_ended_runs_once(
    workers: FaultWorkers, observer: Observer, tmp_path: Path
) -> None:
    armed = tmp_path / "armed"
    armed.touch()
    workers.start(worker_class=workers.with_sabotage("tenant_slots.running.outbox:Outbox.put after SIGKILL", armed))
    job = jobs.quick.enqueue("acme", "lucky", observer.path)
    observer.wait_for_all()
    assert observer.started() == ["lucky"]
    assert (fresh(job).state, job.crashes) == (State.FINISHED, 0)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "ours"])
@pytest.mark.parametrize("worker_class", ["rq.Worker", *OURS, "tenant_slots.workers.TenantSimpleWorker"])
def test_i3_an_error_that_cannot_be_formatted_fails_its_job_once_and_ends_no_worker(
    workers: FaultWorkers, observer: Observer, worker_class: str, plain: bool
) -> None:
    """RQ formats the error too, and a worker without work-horses ends when that raises."""
    (worker,) = workers.start(worker_class=worker_class)
    queue = django_rq.get_queue("imports")
    enqueue = partial(queue.enqueue, jobs.raise_oddly) if plain else jobs.raise_oddly.enqueue
    for kind in jobs.ERRORS:
        enqueue(kind, kind, observer.path)
    wait_until(lambda: TenantJob.objects.filter(state__in=ENDED).count() == len(jobs.ERRORS))
    for job in TenantJob.objects.select_related("tenant_queue"):
        kind = job.tenant_queue.tenant
        assert (kind, job.state, job.crashes, job.attempt) == (kind, State.FAILED, 0, 1)
        assert kind in job.error
        assert "raise_oddly" in job.error, "it must say where"
    ended = [TenantJob.objects.get(tenant_queue__tenant=kind) for kind in jobs.ERRORS]
    wait_until(lambda: queue.failed_job_registry.count == len(ended), message="RQ has not recorded all of them")
    assert worker.poll() is None
    assert sorted(observer.started()) == sorted(jobs.ERRORS)


@pytest.mark.parametrize("kind", ["Worker", "PreforkWorker", "SimpleWorker"])
def test_control_one_that_is_formatted_all_the_same_is_taken_for_a_crash(
    workers: FaultWorkers, observer: Observer, kind: str
) -> None:
    workers.start(worker_class=f"tests.faults.workers.Formatting{kind}")
    job = jobs.raise_oddly.enqueue("SyntaxError", "SyntaxError", observer.path)
    wait_until(lambda: fresh(job).crashes)
