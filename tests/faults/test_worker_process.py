"""The process that supervises jobs dies, is stopped, or is told to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import django_rq
import pytest
import rq

from tenant_slots import owners
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.factories import counters_match, fresh
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer, is_gone
from tests.faults.workers import CHOSEN
from tests.processes import ROOT, Workers, _children, environment, wait_until

ELSEWHERE = "tests.faults.workers.ElsewhereWorker"
THREE_QUEUES = ("imports_bulk", "imports", "reports")


def test_i2_i3_i4_a_killed_worker_takes_its_horse_along_and_another_runs_the_job(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    workers.start()
    job = jobs.hold.enqueue("acme", "orphan", observer.path, str(door))
    horse = observer.process_of("orphan")
    workers.start()
    workers.kill(0)
    wait_until(lambda: is_gone(horse), timeout=5, message="the horse outlived its worker")
    observer.process_of("orphan", run=2)
    door.touch()
    observer.wait_for_all()
    assert (fresh(job).state, job.crashes, job.interruptions) == (State.FINISHED, 0, 1)


def test_i2_i3_a_worker_that_is_killed_on_another_host_loses_its_job_after_its_lease(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    workers.start(1, worker_class=ELSEWHERE)
    job = jobs.hold.enqueue("acme", "far", observer.path, str(door))
    observer.process_of("far")
    workers.start()
    workers.kill(0)
    observer.process_of("far", run=2)
    door.touch()
    observer.wait_for_all()
    assert (fresh(job).crashes, job.interruptions) == (0, 1)
    assert "sent no heartbeat" in job.error


def test_i2_i3_i4_a_worker_of_this_host_stopped_past_its_lease_is_killed_before_its_job_runs_elsewhere(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    (stale,) = workers.start()
    job = jobs.hold.enqueue("acme", "stopped", observer.path, str(door))
    horse = observer.process_of("stopped")
    stop(stale.pid, horse)
    workers.start()
    observer.process_of("stopped", run=2)
    assert is_gone(horse)
    stale.send_signal(signal.SIGCONT)
    door.touch()
    observer.wait_for_all()
    assert (fresh(job).attempt, job.state) == (2, State.FINISHED)


def test_i1_i3_i4_a_worker_of_another_host_stopped_past_its_lease_ends_itself_and_releases_nothing(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    (stale,) = workers.start(1, worker_class=ELSEWHERE)
    job = jobs.hold.enqueue("acme", "stale", observer.path, str(door))
    horse = observer.process_of("stale")
    stop(stale.pid, horse)
    workers.start()
    observer.process_of("stale", run=2)
    resume(stale.pid, horse)
    wait_until(lambda: is_gone(horse), timeout=5, message="the stale run did not end itself")
    assert fresh(TenantQueue.objects.get()).current_job == 1
    assert (fresh(job).state, job.attempt) == (State.RUNNING, 2)
    door.touch()
    observer.wait_for_all()
    assert (job.crashes, job.interruptions) == (0, 1)


def test_i1_i4_a_stale_run_that_finishes_before_its_worker_notices_releases_nothing(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    (stale,) = workers.start(1, worker_class=ELSEWHERE)
    job = jobs.hold.enqueue("acme", "stale", observer.path, str(door))
    waiting = jobs.quick.enqueue("acme", "waiting", observer.path)
    horse = observer.process_of("stale")
    stop(stale.pid, horse)
    workers.start()
    second = observer.process_of("stale", run=2)
    os.kill(second, signal.SIGSTOP)
    door.touch()
    os.kill(horse, signal.SIGCONT)
    wait_until(lambda: observer.ended("stale"))
    stale.send_signal(signal.SIGCONT)
    jobs.quick.enqueue("other", "other", observer.path)
    wait_until(lambda: observer.ended("other"), message="the stale worker, as the other one is busy, does not go on")
    assert (fresh(job).state, job.attempt) == (State.RUNNING, 2)
    assert fresh(waiting).state == State.WAITING
    os.kill(second, signal.SIGCONT)
    observer.wait_for_all()


@pytest.mark.parametrize(
    ("name", "is_replaced"),
    [("ElsewherePreforkWorker", True), pytest.param("HeedlessElsewherePreforkWorker", False, id="control")],
)
def test_i1_i4_a_work_horse_whose_job_has_lost_its_lease_is_replaced_by_another(
    workers: FaultWorkers, observer: Observer, door: Path, name: str, is_replaced: bool
) -> None:
    (stale,) = workers.start(worker_class=f"tests.faults.workers.{name}")
    jobs.quick.enqueue("acme", "before", observer.path)
    observer.wait_for_all()
    jobs.hold.enqueue("acme", "stale", observer.path, str(door))
    horse = observer.process_of("stale")
    assert observer.process_of("before") == horse
    stop(stale.pid, horse)
    workers.start()
    observer.process_of("stale", run=2)
    resume(stale.pid, horse)
    jobs.quick.enqueue("other", "after", observer.path)
    resumed = time.monotonic()
    wait_until(lambda: observer.starts("after") or time.monotonic() - resumed > 2 * SHORT["LEASE_TTL"])
    assert is_gone(horse) is is_replaced
    assert len(observer.starts("after")) == is_replaced, "the other worker is busy"
    door.touch()
    observer.wait_for_all()
    assert stale.poll() is None


def stop(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def resume(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("queues", [("imports",), THREE_QUEUES], ids=["one queue", "three queues"])
@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_i2_i3_a_worker_that_ends_between_pop_and_start_loses_nothing(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, queues: tuple[str, ...], number: str
) -> None:
    """With several queues RQ 2.12 pops the id without a trace; with one it leaves it in its intermediate list."""
    armed = tmp_path / "armed"
    armed.touch()
    plan = f"tenant_slots.workers.supervisor:Supervisor.execute_job before {number}"
    (unlucky,) = workers.start(1, queues=queues, worker_class=workers.with_sabotage(plan, armed))
    wait_until_idle(1, *queues)
    job = jobs.quick.enqueue("acme", "popped", observer.path)
    unlucky.wait(20)
    workers.start()
    observer.wait_for_all()
    assert (fresh(job).state, job.attempt, job.crashes) == (State.FINISHED, 1, 0)
    assert observer.started() == ["popped"]


@pytest.mark.parametrize("queues", [("imports",), THREE_QUEUES], ids=["one queue", "three queues"])
@pytest.mark.parametrize("waits", [True, False], ids=["it waits for one", "there is one"])
@pytest.mark.parametrize("worker_class", ["SabotagedPreforkWorker", "SabotagedSimpleWorker"])
def test_i3_a_plain_job_that_a_worker_has_popped_when_it_is_told_to_end_runs(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, queues: tuple[str, ...], waits: bool, worker_class: str
) -> None:
    """Nobody else knows of it: no sweep pushes what has no row."""
    armed = tmp_path / "armed"
    sabotaged = workers.with_sabotage("rq.job:Job.fetch before worker-SIGTERM", armed, worker_class)

    def enqueue() -> None:
        armed.touch()
        django_rq.get_queue("imports").enqueue(jobs.quick, "acme", "popped", observer.path)

    if not waits:
        enqueue()
    (worker,) = workers.start(1, queues=queues, worker_class=sabotaged)
    if waits:
        wait_until_idle(1, *queues)
        enqueue()
    assert worker.wait(10) == 0
    assert observer.started() == ["popped"]
    assert armed.with_suffix(".done").exists()


@pytest.mark.parametrize("queues", [("imports",), THREE_QUEUES], ids=["one queue", "three queues"])
def test_a_worker_that_is_told_to_end_as_it_pops_what_rq_has_forgotten_waits_for_no_other_job(
    workers: FaultWorkers, tmp_path: Path, queues: tuple[str, ...]
) -> None:
    """As a job whose `ttl` was over: RQ goes on to wait, for as long as a sweep is not due."""
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps({**SHORT, "SWEEP_INTERVAL": 60})
    armed = tmp_path / "armed"
    sabotaged = workers.with_sabotage("rq.job:Job.fetch before worker-SIGTERM", armed, "SabotagedSimpleWorker")
    (worker,) = workers.start(1, queues=queues, worker_class=sabotaged)
    wait_until_idle(1, *queues)
    armed.touch()
    django_rq.get_queue("imports").push_job_id("forgotten")
    assert worker.wait(10) == 0
    assert armed.with_suffix(".done").exists()


def wait_until_idle(count: int, *queues: str) -> None:
    """Workers of ours are idle, as far as the order of tenants knows: each takes its next job from RQ's list."""
    redis = django_rq.get_connection(queues[0])
    wait_until(lambda: all(redis.zcard(f"tenant_slots:idle:{queue}") == count for queue in queues))


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize(
    "moment",
    ["tenant_slots.slots:start after", "tenant_slots.workers.supervisor:Supervisor._hand_out before"],
    ids=["while it takes note of the start", "before a work-horse is told"],
)
def test_i2_i3_i4_a_worker_that_ends_before_the_function_is_called_leaves_the_job_to_another(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, moment: str, number: str
) -> None:
    armed = tmp_path / "armed"
    (unlucky,) = workers.start(1, worker_class=workers.with_sabotage(f"{moment} worker-{number}", armed))
    workers.start()
    jobs.quick.enqueue_many([((f"warm{n}", f"warm{n}", observer.path, 0.3), {}) for n in range(2)])
    observer.wait_for_all()
    wait_until_idle(2, "imports")  # so that each starts its job when RQ's list has handed it out
    armed.touch()
    held = [jobs.quick.enqueue(tenant, tenant, observer.path, 0.3) for tenant in "ab"]  # one for each worker
    unlucky.wait(20)
    observer.wait_for_all()
    assert sorted(name for name in observer.started() if "warm" not in name) == ["a", "b"]
    assert {fresh(job).state for job in held} == {State.FINISHED}


@pytest.mark.parametrize(
    ("moment", "runs"),
    [
        ("before worker-SIGKILL", 2),
        ("after worker-SIGKILL", 1),
        ("before worker-SIGTERM", 1),
        ("after worker-SIGTERM", 1),
    ],
)
def test_i2_i3_i4_a_worker_that_ends_while_it_records_the_end_of_a_job(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, door: Path, moment: str, runs: int
) -> None:
    """Killed before the release it could tell nobody. A SIGTERM is a polite question: what was done stays done."""
    armed = tmp_path / "armed"
    steps = "tenant_slots.slots:release,tenant_slots.slots:release_and_start"
    jobs.quick.enqueue("acme", "first", observer.path)
    (unlucky,) = workers.start(1, worker_class=workers.with_sabotage(f"{steps} {moment}", armed))
    jobs.hold.enqueue("acme", "done", observer.path, str(door))
    jobs.quick.enqueue("acme", "next", observer.path)
    observer.process_of("done")
    armed.touch()
    door.touch()
    try:
        unlucky.wait(10)
    except subprocess.TimeoutExpired:
        pytest.fail("the worker goes on after SIGTERM")
    workers.start()
    observer.wait_for_all()
    assert observer.started() == ["first", *["done"] * runs, "next"]


def test_i3_i4_a_warm_stop_lets_the_job_end(workers: FaultWorkers, observer: Observer, door: Path) -> None:
    (worker,) = workers.start()
    job = jobs.hold.enqueue("acme", "last", observer.path, str(door))
    jobs.quick.enqueue("acme", "after", observer.path)
    observer.process_of("last")
    worker.terminate()
    wait_until(
        lambda: sends_heartbeats_after_stop(job), message="a worker that stops warmly must keep sending heartbeats"
    )
    door.touch()
    assert worker.wait(10) == 0
    assert (fresh(job).state, job.crashes, job.interruptions) == (State.FINISHED, 0, 0)
    assert observer.started() == ["last"], "it has taken another job although it was to stop"
    workers.start()
    observer.wait_for_all()
    assert observer.started() == ["last", "after"]


def sends_heartbeats_after_stop(job: TenantJob) -> bool:
    beat_at, started_at = TenantJob.objects.filter(pk=job.pk).values_list("beat_at", "started_at").get()
    return bool((beat_at - started_at).total_seconds() > SHORT["LEASE_TTL"] + 1)


def test_i2_i3_a_cold_stop_gives_the_job_back(workers: FaultWorkers, observer: Observer, door: Path) -> None:
    """RQ ignores a second signal within a second of the first."""
    (worker,) = workers.start()
    job = jobs.hold.enqueue("acme", "cut-off", observer.path, str(door))
    horse = observer.process_of("cut-off")
    worker.terminate()

    def ended_after_another_signal() -> bool:
        worker.terminate()
        return worker.poll() is not None

    wait_until(ended_after_another_signal)
    assert is_gone(horse)
    workers.start()
    observer.process_of("cut-off", run=2)
    door.touch()
    observer.wait_for_all()
    assert fresh(job).state == State.FINISHED


def test_i2_a_sigterm_that_arrives_during_a_sweep_ends_the_worker(
    workers: FaultWorkers, observer: Observer, tmp_path: Path
) -> None:
    armed = tmp_path / "armed"
    plan = "tenant_slots.repair.claims:done before worker-SIGTERM"
    (worker,) = workers.start(1, worker_class=workers.with_sabotage(plan, armed))
    armed.touch()
    wait_until(armed.with_suffix(".done").exists)
    try:
        assert worker.wait(8) == 0
    except subprocess.TimeoutExpired:
        pytest.fail("the worker goes on after SIGTERM: the sweep swallowed RQ's StopRequested")


@pytest.mark.parametrize(
    ("worker_class", "moment"),
    [
        ("SabotagedWorker", "tenant_slots.workers.base:name_driver_once before"),
        ("SabotagedPreforkWorker", "tenant_slots.workers.base:name_driver_once before"),
        ("SabotagedSimpleWorker", "tenant_slots.workers.base:name_driver_once before"),
        ("SabotagedWorker", "rq.worker:Worker.register_birth before"),
        ("SabotagedWorker", "rq.worker:Worker.register_birth after"),
    ],
)
def test_a_sigterm_that_arrives_while_a_worker_starts_leaves_no_record_of_it(
    workers: FaultWorkers, tmp_path: Path, worker_class: str, moment: str
) -> None:
    """It is registered in the midst of that, and RQ does not listen to signals yet."""
    armed = tmp_path / "armed"
    armed.touch()
    ended = workers.run(worker_class=workers.with_sabotage(f"{moment} worker-SIGTERM", armed, worker_class))
    assert armed.with_suffix(".done").exists()
    assert ended.returncode == 0
    assert not rq.Worker.count(connection=django_rq.get_connection("imports"))


@pytest.mark.parametrize("worker_class", ["SabotagedWorker", "SabotagedPreforkWorker", "SabotagedSimpleWorker"])
def test_i2_a_sigterm_that_arrives_while_an_idle_worker_writes_its_log_ends_it(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str
) -> None:
    """What a handler of `logging` raises is swallowed, and so is what a handler of signals raises in there."""
    armed = tmp_path / "armed"
    plan = "logging:StreamHandler.format before worker-SIGTERM"
    (worker,) = workers.start(1, worker_class=workers.with_sabotage(plan, armed, worker_class))
    wait_until_idle(1, "imports")
    armed.touch()
    jobs.quick.enqueue("acme", "logged", observer.path)
    wait_until(armed.with_suffix(".done").exists)
    try:
        assert worker.wait(8) == 0
    except subprocess.TimeoutExpired:
        pytest.fail("the worker goes on after SIGTERM: its log swallowed RQ's StopRequested")
    assert observer.started() == ["logged"], "the job was there before the signal"


@pytest.mark.parametrize("moment", ["rq.job:Job.save before", "rq.worker:SimpleWorker.prepare_execution before"])
def test_i3_i4_a_sigterm_between_two_steps_before_a_job_lets_it_run(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, moment: str
) -> None:
    """RQ does not think a worker busy yet, whose tenant has lost a slot to the job."""
    armed = tmp_path / "armed"
    plan = f"{moment} worker-SIGTERM"
    armed.touch()
    rows = [jobs.quick.enqueue("acme", name, observer.path) for name in ("first", "second")]
    (worker,) = workers.start(1, worker_class=workers.with_sabotage(plan, armed, "SabotagedSimpleWorker"))
    assert worker.wait(10) == 0
    assert observer.started() == ["first"]
    workers.start()
    observer.wait_for_all()
    assert [(row.crashes, row.interruptions) for row in map(fresh, rows)] == [(0, 0)] * 2


def test_i2_i7_a_worker_that_is_killed_while_it_sweeps_holds_up_the_others_for_no_longer_than_the_promise(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, door: Path
) -> None:
    """Its claim to be the only sweeper runs out. The intervals are the default ones: the promise is about those."""
    workers.variables["TEST_TENANT_SLOTS"] = "{}"
    armed = tmp_path / "armed"
    sweeper_class = workers.with_sabotage("tenant_slots.repair.claims:done before worker-SIGKILL", armed)
    workers.start()
    jobs.hold.enqueue("acme", "lost", observer.path, str(door))
    horse = observer.process_of("lost")
    (sweeper,) = workers.start(1, worker_class=sweeper_class)
    armed.touch()
    os.kill(workers.processes[0].pid, signal.SIGSTOP)
    sweeper.wait(20)
    workers.start()
    workers.kill(0)
    wait_until(lambda: is_gone(horse))
    wait_until(
        lambda: len(observer.starts("lost")) == 2,
        timeout=10.5,
        message="I2: the slot of a dead job was not back within 10 s, because a dead sweeper's claim outlives that",
    )
    door.touch()
    observer.wait_for_all()


@pytest.mark.parametrize("worker_class", ["rq.Worker", CHOSEN])
def test_i3_i4_a_killed_pool_manager_leaves_workers_that_go_on_and_that_nobody_replaces(
    observer: Observer, workers: FaultWorkers, door: Path, worker_class: str
) -> None:
    command = [sys.executable, "-W", "ignore", "manage.py", "rqworker-pool", "imports", "--num-workers", "2"]
    values = {**environment(worker_class), **workers.variables}
    before = Workers._registered()
    pool = subprocess.Popen(command, cwd=ROOT, env=values, start_new_session=True)
    try:
        wait_until(lambda: Workers._registered() >= before + 2, message="the pool did not start")
        first, second = without_and_with_scheduler(pool.pid)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(workers_of(pool.pid) - {first, second}) == 1, message="the control: it replaces one")
        wait_until(lambda: Workers._registered() >= before + 3, message="the new one did not start")
        (third,) = workers_of(pool.pid) - {first, second}

        jobs.hold.enqueue("acme", "long", observer.path, str(door))
        observer.process_of("long")
        pool.kill()
        pool.wait()
        jobs.quick.enqueue_many([((tenant, f"after-{tenant}", observer.path), {}) for tenant in "abc"])
        wait_until(lambda: {"after-a", "after-b", "after-c"} <= set(observer.started()))
        door.touch()
        observer.wait_for_all()
        assert observer.started().count("long") == 1

        os.kill(second, signal.SIGTERM)
        wait_until(lambda: is_gone(second), message="it does not end when it is told to")
        sentinel = jobs.quick.enqueue("sentinel", "sentinel", observer.path, 2.0 * SHORT["LEASE_TTL"])
        wait_until(lambda: fresh(sentinel).has_ended)
        assert not is_gone(third)
        assert Workers._registered() <= before + 2, "the first, whose record has not expired, and the third"
    finally:
        os.killpg(pool.pid, signal.SIGKILL)
    assert counters_match()


@pytest.mark.parametrize("kind", ["Worker", "PreforkWorker", "SimpleWorker"])
def test_i3_redis_gives_no_job_to_a_killed_worker_whose_scheduler_goes_on(
    workers: FaultWorkers, observer: Observer, kind: str
) -> None:
    """RQ's scheduler is a child of the worker. What is taken from the list by nobody, and has no row, is lost."""
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps({**SHORT, "SWEEP_INTERVAL": 60})
    redis = django_rq.get_connection("imports")

    def somebody_waits() -> bool:
        return any(client["cmd"] == "blmove" for client in redis.client_list())

    (worker,) = workers.start(1, "--with-scheduler", worker_class=f"tenant_slots.workers.Tenant{kind}")
    wait_until(lambda: somebody_waits() and _children(worker.pid))
    children = _children(worker.pid)
    try:
        workers.kill(0)
        wait_until(lambda: not somebody_waits(), timeout=5, message="Redis takes the killed worker for one that waits")
        django_rq.get_queue("imports").enqueue(jobs.quick, "acme", "plain", observer.path)
        workers.start(1)
        observer.wait_for_all()
    finally:
        for child in children:
            if not is_gone(child):
                os.kill(child, signal.SIGKILL)


def without_and_with_scheduler(pool: int) -> list[int]:
    """RQ's scheduler, a child of one of them, keeps that one's connections to Redis open when it dies: the next
    job that Redis hands out goes to a stock worker that is no more."""
    wait_until(lambda: any(map(_children, workers_of(pool))), message="RQ's scheduler did not start")
    return sorted(workers_of(pool), key=lambda pid: len(_children(pid)))


def workers_of(pool: int) -> set[int]:
    return {child for child in _children(pool) if not is_gone(child)}


@pytest.mark.parametrize("worker_class", ["rq.Worker", "rq.worker.SpawnWorker"])
def test_i2_i3_a_stock_worker_and_its_horse_that_are_killed_are_swept_up_by_ours(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str
) -> None:
    workers.start(1, worker_class=worker_class)
    job = jobs.hold.enqueue("acme", "stock", observer.path, str(door))
    horse = observer.process_of("stock")
    workers.start()
    workers.kill(0)
    os.kill(horse, signal.SIGKILL)
    observer.process_of("stock", run=2)
    door.touch()
    observer.wait_for_all()
    assert (fresh(job).crashes, job.interruptions) == (0, 1)


def test_i4_the_orphan_of_a_killed_stock_worker_keeps_its_slot_until_it_ends(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """Nothing ties a stock worker's horse to it. The process lives, so its job is not started again."""
    workers.start(1, worker_class="rq.Worker")
    job = jobs.hold.enqueue("acme", "orphan", observer.path, str(door))
    waiting = jobs.quick.enqueue("acme", "waiting", observer.path)
    observer.process_of("orphan")
    workers.start()
    workers.kill(0)
    sentinel = jobs.quick.enqueue("sentinel", "sentinel", observer.path, 2 * SHORT["LEASE_TTL"])
    wait_until(lambda: fresh(sentinel).has_ended)
    assert (fresh(job).state, fresh(waiting).state) == (State.RUNNING, State.WAITING)
    door.touch()
    observer.wait_for_all()
    assert observer.started().count("orphan") == 1


@pytest.mark.parametrize(
    "worker_class", ["rq.SimpleWorker", "tenant_slots.workers.TenantSimpleWorker"], ids=["stock", "ours"]
)
def test_i2_i3_a_killed_simple_worker_gives_its_slot_back(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str
) -> None:
    workers.start(1, worker_class=worker_class)
    job = jobs.hold.enqueue("acme", "lost", observer.path, str(door))
    observer.process_of("lost")
    workers.start()
    workers.kill(0)
    observer.process_of("lost", run=2)
    door.touch()
    observer.wait_for_all()
    assert (fresh(job).crashes, job.interruptions) == (0, 1)


def test_the_host_of_a_test_worker_is_really_another_one() -> None:
    """Else the tests above would prove nothing."""
    assert owners.this_host() not in ("", "another host")
