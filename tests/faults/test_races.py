"""Two of our own meet: sweep and finisher, sweepers, a changed limit and a load.

Elsewhere: enqueue against release, with the naive form as its control, in ``tests/races/test_enqueue_against_release``;
the forced lost wake-up in ``tests/races/test_lost_wake_up``; two releases in ``tests/races/test_double_release``; all
interleavings of a small model, and a stateful one on the real database, in ``tests/model``.
"""

from __future__ import annotations

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tenant_slots import slots
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs, steps, sweeper
from tests.factories import (
    admit,
    another_process,
    counters_match,
    dead_process,
    fresh,
    running_job,
    tenant_queue,
    waiting_job,
)
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer, ticks_of
from tests.processes import is_announced, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_i2_i3_i6_the_finisher_comes_before_the_sweep() -> None:
    row = tenant_queue()
    seen_by_the_sweep = running_job(row, dead_process())
    assert slots.release(seen_by_the_sweep, state=State.FINISHED)
    assert not lost_runs.end_lost_run(seen_by_the_sweep, "its process died")
    assert fresh(seen_by_the_sweep).state == State.FINISHED
    assert fresh(row).current_job == 0


def test_i1_i4_i6_the_sweep_comes_before_the_finisher() -> None:
    row = tenant_queue()
    job = running_job(row, dead_process())
    stale = TenantJob.objects.get(pk=job.pk)
    waiting = waiting_job(row)
    assert lost_runs.end_lost_run(job, "its process died")
    assert not slots.release(stale, state=State.FINISHED)
    assert (fresh(job).state, job.attempt) == (State.QUEUED, 2)
    assert fresh(waiting).state == State.WAITING
    assert fresh(row).current_job == 1


def test_i1_i4_a_heartbeat_of_a_stale_run_after_a_reclaim_renews_nothing() -> None:
    job = running_job(tenant_queue(), dead_process())
    token = job.token
    assert slots.beat(job.pk, token)
    lost_runs.end_lost_run(job, "its process died")
    assert not slots.beat(job.pk, token)


def at_once(*actions: Any) -> list[Any]:
    def in_own_session(action: Any) -> Any:
        try:
            return action()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(actions)) as threads:
        return list(threads.map(in_own_session, actions))


def test_i1_i4_i6_two_sweepers_reclaim_each_job_once() -> None:
    """Rows that others hold at the moment are the next sweep's."""
    rows = [tenant_queue(f"tenant{n}") for n in range(6)]
    lost = [running_job(row, dead_process()) for row in rows]
    reports = [*at_once(*[lambda: sweeper.run_now("one")] * 3), sweeper.run_now("next")]
    assert sum(report.reclaimed for report in reports) == len(lost)
    assert {(fresh(job).attempt, job.interruptions, job.state) for job in lost} == {(2, 1, State.QUEUED)}
    assert counters_match()


def test_i6_a_sweep_among_finishing_jobs_finds_no_wrong_counter() -> None:
    rows = [tenant_queue(f"tenant{n}", max_job=2) for n in range(3)]
    for row in rows:
        for _ in range(20):
            waiting_job(row)

    def finish_all(row: TenantQueue) -> None:
        held = admit(row)
        while held:
            job = held.pop()
            assert slots.start(job, another_process())
            assert slots.release(job, state=State.FINISHED)
            held += admit(row)

    def sweep_often() -> int:
        return sum(sweeper.Sweeper("w").run((steps.repair_counters,)).repaired for _ in range(40))

    *_, repaired = at_once(*[lambda row=row: finish_all(row) for row in rows], sweep_often)
    assert repaired == 0
    assert counters_match()
    assert not TenantJob.objects.exclude(state=State.FINISHED).exists()


def test_i1_i3_i6_a_limit_that_goes_from_10_to_2_to_10_under_load(workers: FaultWorkers, observer: Observer) -> None:
    row = tenant_queue("acme", max_job=10)
    observer.limits["acme"] = 10
    workers.start(4)
    jobs.quick.enqueue_many([(("acme", f"job{n}", observer.path, 0.03), {}) for n in range(120)])
    for done, limit in ((20, 2), (60, 10)):
        wait_until(lambda done=done: len(observer.started()) >= done)
        row.set_limit(limit)
        if limit == 2:
            wait_until(lambda: fresh(row).current_job <= 2)
            lowered_at = len(observer.events())
    together = [event.kind for event in observer.events()[lowered_at : lowered_at + 60]]
    observer.wait_for_all()
    assert "beside-2" not in together[: together.index("end") + 20]


def test_i3_i7_pause_and_resume_under_load(workers: FaultWorkers, observer: Observer) -> None:
    row = tenant_queue("acme", max_job=3)
    workers.start(3)
    jobs.quick.enqueue_many([(("acme", f"job{n}", observer.path, 0.02), {}) for n in range(60)])
    for done in (10, 25):
        wait_until(lambda done=done: len(observer.started()) >= done)
        row.pause()
        wait_until(lambda: fresh(row).current_job == 0)
        started = len(observer.started())
        admit(row)
        assert len(observer.started()) == started
        assert fresh(row).current_job == 0
        row.resume()
    observer.wait_for_all()
    assert sorted(observer.started()) == sorted(f"job{n}" for n in range(60))


def test_i3_i4_a_job_that_rqs_stop_command_killed_is_not_run_again_by_a_sweep_that_comes_at_once(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, door: Path
) -> None:
    """The horse is dead before RQ has noted why; another worker of the host sweeps in between."""
    from rq.command import send_stop_job_command

    from tenant_slots import queue_directory

    armed = tmp_path / "armed"
    armed.touch()
    plan = "rq.worker:BaseWorker.handle_job_failure before pause"
    workers.start(1, worker_class=workers.with_sabotage(plan, armed))
    job = jobs.hold.enqueue("acme", "stopped", observer.path, str(door))
    horse = observer.process_of("stopped")
    wait_until(lambda: is_announced(job))
    send_stop_job_command(queue_directory.queue_named("imports").connection, fresh(job).rq_id)
    wait_until(armed.with_suffix(".done").exists)
    wait_until(lambda: ticks_of(horse)[0] in "ZX")
    sweeper.run_now("another worker of this host")
    armed.with_suffix(".go").touch()
    wait_until(lambda: fresh(job).has_ended or len(observer.starts("stopped")) > 1)
    assert fresh(job).state == State.CANCELED, "a person stopped the job, and the sweep took it for a crash"


def test_i3_i5_random_cancels_under_load_lose_and_reorder_nothing(workers: FaultWorkers, observer: Observer) -> None:
    tenant_queue("a", max_job=2)
    workers.start(3)
    calls = [(("ab"[n % 2], f"job{n}", observer.path, 0.03), {}) for n in range(60)]
    enqueued = jobs.quick.enqueue_many(calls)
    chosen = random.Random(7).sample(enqueued, 20)
    for job in chosen:
        job.cancel()
    observer.wait_for_all()
    assert TenantJob.objects.filter(state=State.FINISHED).count() >= 40
    assert not TenantJob.objects.filter(state=State.FAILED).exists()


def test_i1_i2_i3_horses_killed_at_random_under_load(workers: FaultWorkers, observer: Observer) -> None:
    chance = random.Random(11)
    tenant_queue("a", max_job=2)
    workers.start(3)
    jobs.quick.enqueue_many([(("abc"[n % 3], f"job{n}", observer.path, 0.1), {}) for n in range(45)])
    for kill in range(8):
        wait_until(lambda kill=kill: len(observer.started()) > 4 * kill)
        victim = chance.choice(observer.starts())
        if ticks_of(victim.pid)[1] == victim.ticks:
            os.kill(victim.pid, signal.SIGKILL)
    observer.wait_for_all()
    assert set(observer.started()) == {f"job{n}" for n in range(45)}
