"""Redis forgets, is away, or answers nothing. The rows are the truth, and Redis is filled again from them."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import django_rq
import pytest
from rq import Worker
from rq.job import Job, JobStatus
from rq.registry import StartedJobRegistry
from rq.scheduler import RQScheduler
from rq.utils import now as rq_now

from tenant_slots import dispatch, fleet, queue_directory, transitions
from tenant_slots.models import EVERYWHERE, State, SweepClaim, TenantJob, TenantQueue
from tests.factories import counters_match, fresh, in_rq
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer, all_ended, is_gone
from tests.faults.servers import Valkey, django_on_redis
from tests.faults.test_worker_process import ELSEWHERE
from tests.processes import is_announced, last_rq_id, wait_until


def flushall() -> None:
    django_rq.get_connection("imports").flushall()


def enqueue_some(observer: Observer, *names: str, tenant: str = "acme", seconds: float = 0.0) -> list[TenantJob]:
    return jobs.quick.enqueue_many([((tenant, name, observer.path, seconds), {}) for name in names])


def test_i3_flushall_while_idle(workers: FaultWorkers, observer: Observer) -> None:
    workers.start()
    flushall()
    enqueue_some(observer, "one", "two")
    observer.wait_for_all()


def test_i3_i5_i7_flushall_while_jobs_are_queued(workers: FaultWorkers, observer: Observer) -> None:
    TenantQueue.objects.create(tenant="acme", queue="imports", max_job=2)
    enqueue_some(observer, "one", "two", "three")
    flushall()
    workers.start()
    observer.wait_for_all()
    assert sorted(observer.started()) == ["one", "three", "two"]


def test_i3_i7_stock_workers_of_an_overflow_queue_go_on_after_flushall(
    workers: FaultWorkers, observer: Observer
) -> None:
    """They wait at RQ's list, which nobody knows any more: nothing would be admitted in a queue without a worker."""
    workers.start(worker_class="rq.Worker", queues=("imports_slow",))
    workers.processes.append(workers.start_sweeper())
    wait_until(lambda: SweepClaim.objects.filter(name=EVERYWHERE, sweeps__gte=2).exists())
    flushall()
    row = TenantQueue.objects.create(tenant="acme", queue="imports", max_job=0)
    enqueue_some(observer, "one", "two")
    TenantJob.objects.update(rq_queue="imports_slow")
    row.set_limit(1)
    observer.wait_for_all()


def test_i1_i3_i4_flushall_while_a_job_runs(workers: FaultWorkers, observer: Observer, door: Path) -> None:
    workers.start(2)
    jobs.hold.enqueue("acme", "long", observer.path, str(door))
    enqueue_some(observer, "next")
    observer.process_of("long")
    flushall()
    only_its_first_run_goes_on(observer, door, leases=2)
    assert counters_match()


def only_its_first_run_goes_on(observer: Observer, door: Path, leases: int) -> None:
    """The long job is not started again while a job of another tenant lasts for some leases. Then the door opens."""
    (sentinel,) = enqueue_some(observer, "sentinel", tenant="sentinel", seconds=float(leases * SHORT["LEASE_TTL"]))
    wait_until(lambda: fresh(sentinel).has_ended)
    again = "I1, I4: the job was started again, or another one beside it, while its first run goes on"
    assert observer.started() == ["long", "sentinel"], again
    door.touch()
    observer.wait_for_all()


def test_i1_i4_flushall_does_not_start_the_job_of_a_stock_worker_on_another_host_again(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """A stock worker writes its record again with its next heartbeat, which is up to 30 seconds away."""
    workers.start(1, worker_class="tests.faults.workers.StockElsewhereWorker")
    jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    flushall()
    workers.start(2)
    only_its_first_run_goes_on(observer, door, leases=3)


def test_i1_i4_a_promoted_replica_without_the_last_writes_does_not_start_the_job_of_a_stock_worker_again(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """It lacks what the worker wrote when it took the job: to RQ the worker is idle, for as long as the job runs."""
    workers.start(1, worker_class="tests.faults.workers.StockElsewhereWorker")
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    redis: Any = django_rq.get_connection("imports")
    record = f"rq:worker:{fresh(job).worker}"
    assert redis.hget(record, "current_job").decode() == job.rq_id, "or the writes that are lost here are others"
    redis.hset(record, "state", "idle")
    redis.hdel(record, "current_job")
    redis.delete(StartedJobRegistry("imports", connection=redis).key)
    workers.start(2)
    only_its_first_run_goes_on(observer, door, leases=3)


def test_i3_a_running_job_can_still_be_canceled_after_flushall(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """RQ's stop command needs the record of the job that was just lost."""
    workers.start()
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    flushall()
    assert job.cancel()
    wait_until(
        lambda: fresh(job).state == State.CANCELED, 10, "cancel() said yes, and the job runs on: RQ had lost its record"
    )


def test_i3_enqueue_works_while_redis_is_down_and_the_push_follows(
    valkey: Valkey, workers: FaultWorkers, observer: Observer
) -> None:
    valkey.stop()
    (job,) = enqueue_some(observer, "early")
    assert (fresh(job).state, job.attempt) == (State.WAITING, 0)
    valkey.start()
    workers.start()
    observer.wait_for_all()
    assert observer.started() == ["early"]


def test_i8_enqueueing_many_while_redis_is_down_takes_no_longer_than_enqueueing_one(
    valkey: Valkey, workers: FaultWorkers, observer: Observer
) -> None:
    """The caller is a web request: what cannot be pushed is not tried once for each job."""
    TenantQueue.objects.create(tenant="acme", queue="imports", max_job=40)
    valkey.stop()
    with django_on_redis(valkey.direct_url):
        one = seconds_to_enqueue(observer, ["one"], tenant="other")
        many = seconds_to_enqueue(observer, [f"job{n}" for n in range(10)])
        valkey.start()
    assert many < 2 * one + 2, f"enqueueing one took {one:.1f} s, ten took {many:.1f} s"
    workers.start(2)
    observer.wait_for_all()


def seconds_to_enqueue(observer: Observer, names: list[str], tenant: str = "acme") -> float:
    started = time.monotonic()
    enqueue_some(observer, *names, tenant=tenant)
    return time.monotonic() - started


def test_i2_i3_redis_down_while_a_job_ends_releases_its_slot_in_the_database_first(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    workers.start()
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    after = enqueue_some(observer, "after")[0]
    observer.process_of("long")
    valkey.stop()
    door.touch()
    wait_until(lambda: fresh(job).state == State.FINISHED, message="the slot waits for Redis")
    assert fresh(after).state == State.WAITING
    valkey.start()
    workers.start()
    observer.wait_for_all()
    assert observer.started() == ["long", "after"]


def test_i3_i4_a_sigterm_while_redis_is_down_lets_the_running_job_end(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """RQ tells Redis of it at once, and where a job runs in the process of its worker, in the midst of that job."""
    (worker,) = workers.start(1, worker_class="tenant_slots.workers.TenantSimpleWorker")
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    valkey.proxy.cut()
    worker.terminate()
    door.touch()
    worker.wait(30)
    assert (fresh(job).state, job.crashes, job.interruptions) == (State.FINISHED, 0, 0)


def test_i1_i3_i4_redis_down_for_longer_than_a_lease_does_not_end_the_running_job(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """RQ's own worker quits about 11 s after it lost Redis."""
    workers.start()
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    after = enqueue_some(observer, "after")[0]
    observer.process_of("long")
    valkey.stop()
    wait_until(lambda: lease_kept_for(job) > 3 * SHORT["LEASE_TTL"], message="the lease is not kept without Redis")
    door.touch()
    wait_until(lambda: fresh(job).state == State.FINISHED)
    valkey.start()
    workers.start()
    observer.wait_for_all()
    assert (job.attempt, job.crashes) == (1, 0)
    assert fresh(after).state == State.FINISHED


@pytest.mark.parametrize("address", ["URL", "HOST"])
def test_i2_a_job_that_ends_while_redis_answers_nothing_gives_its_slot_back_in_seconds(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, door: Path, address: str
) -> None:
    """Whatever the worker has to tell Redis while the job runs. By host, redis-py tries each of it eleven times."""
    if address == "HOST":
        workers.variables["TEST_REDIS_PORT"] = str(valkey.proxy.port)
    workers.start(worker_class="tenant_slots.workers.TenantPreforkWorker")
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    wait_until(lambda: is_announced(job))
    valkey.proxy.black_hole()
    try:
        since = lease_kept_for(job)
        wait_until(lambda: lease_kept_for(job) > since + SHORT["LEASE_TTL"], message="the lease is not kept")
        door.touch()
        wait_until(lambda: fresh(job).state == State.FINISHED, timeout=8, message="the slot waits for Redis")
    finally:
        valkey.proxy.heal()
    observer.wait_for_all()


def hold_on_two_hosts(workers: FaultWorkers, observer: Observer, door: Path, worker_class: str) -> list[TenantJob]:
    """One job on each of three workers, of which one is on another host."""
    workers.start(1, worker_class=ELSEWHERE)
    workers.start(2, worker_class=worker_class)
    held = [jobs.hold.enqueue(tenant, tenant, observer.path, str(door)) for tenant in "abc"]
    for job in held:
        observer.process_of(job.tenant_queue.tenant)
        wait_until(lambda job=job: is_announced(job))
    return held


@pytest.mark.parametrize("kind", ["TenantWorker", "TenantPreforkWorker", "TenantSimpleWorker"])
def test_i1_i11_while_redis_answers_nothing_nobody_on_either_host_takes_a_healthy_run_for_lost(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    held = hold_on_two_hosts(workers, observer, door, f"tenant_slots.workers.{kind}")
    valkey.proxy.black_hole()
    try:
        since = [lease_kept_for(job) for job in held]
        for job, before in zip(held, since, strict=True):
            wait_until(lambda job=job, before=before: lease_kept_for(job) > before + 4 * SHORT["LEASE_TTL"])
        door.touch()
        wait_until(all_ended, message="the ends wait for Redis")
    finally:
        valkey.proxy.heal()
    assert sorted(observer.started()) == ["a", "b", "c"]
    assert {(fresh(job).state, job.crashes, job.interruptions) for job in held} == {(State.FINISHED, 0, 0)}


def test_control_runs_whose_heartbeats_wait_for_redis_are_taken_for_lost(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    held = hold_on_two_hosts(workers, observer, door, "tests.faults.workers.RedisFirstWorker")
    valkey.proxy.black_hole()
    try:
        wait_until(lambda: sum(fresh(job).interruptions for job in held), message="nobody judged them")
    finally:
        valkey.proxy.heal()
    observer.fenced |= set("abc")


def lease_kept_for(job: TenantJob) -> float:
    beat_at, started_at = TenantJob.objects.filter(pk=job.pk).values_list("beat_at", "started_at").get()
    return float((beat_at - started_at).total_seconds())


def test_i3_a_job_that_a_worker_has_just_taken_from_its_list_runs_though_redis_goes_away(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, tmp_path: Path, kind: str
) -> None:
    armed = tmp_path / "armed"
    plan = "tenant_slots.workers.riding:RidingWorker._perform_ours before pause"
    workers.start(1, worker_class=workers.with_sabotage(plan, armed, f"Sabotaged{kind}"))
    wait_until(lambda: django_rq.get_connection("imports").zcard("tenant_slots:idle:imports"))
    armed.touch()
    (job,) = enqueue_some(observer, "taken")
    wait_until(armed.with_suffix(".done").exists)
    valkey.stop()
    armed.with_suffix(".go").touch()
    wait_until(lambda: fresh(job).has_ended)
    assert (job.refresh_from_db(), job.state, job.error) == (None, State.FINISHED, "")
    assert observer.started() == ["taken"]
    valkey.start()


def somebody_waits(valkey: Valkey) -> bool:
    """A worker, for a job."""
    client: Any = valkey.client()
    return any(session["cmd"] == "blmove" for session in client.client_list())


def test_i3_idle_workers_outlive_a_restart_of_redis(valkey: Valkey, workers: FaultWorkers, observer: Observer) -> None:
    (worker,) = workers.start()
    wait_until(lambda: somebody_waits(valkey))
    valkey.stop()
    valkey.start()
    enqueue_some(observer, "one", "two")
    observer.wait_for_all()
    assert worker.poll() is None


def sweeps() -> int:
    return sum(SweepClaim.objects.filter(name=EVERYWHERE).values_list("sweeps", flat=True))


def test_i2_i7_an_idle_worker_sweeps_while_redis_is_away_for_long_and_works_as_soon_as_it_is_back(
    valkey: Valkey, workers: FaultWorkers, observer: Observer
) -> None:
    workers.start(1, worker_class="tests.faults.workers.LateWorker")
    observer.promise = 30  # nobody can be given a job meanwhile
    wait_until(lambda: somebody_waits(valkey))  # one that has just begun would end, as RQ's does
    valkey.stop()
    (job,) = enqueue_some(observer, "meanwhile")
    before = sweeps()
    wait_until(lambda: sweeps() > before + 5, timeout=40, message="I2: nobody sweeps, as RQ waits for Redis")
    valkey.start()
    wait_until(lambda: fresh(job).has_ended, timeout=20, message="I7: a free worker waits for a Redis that is back")


def test_i3_i7_a_process_that_dies_after_its_commit_and_before_its_push_leaves_the_job_to_the_sweep(
    workers: FaultWorkers, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "push", lambda jobs: None)
        enqueue_some(observer, "unpushed")
    with monkeypatch.context() as patch:
        patch.setattr(transitions, "offer_many", lambda *turns: None)
        enqueue_some(observer, "unadmitted", tenant="other")
    assert in_rq() == 0
    workers.start()
    observer.wait_for_all()
    assert sorted(observer.started()) == ["unadmitted", "unpushed"]


def test_i3_i4_a_push_whose_answer_is_lost_runs_the_job_once(
    valkey: Valkey, workers: FaultWorkers, observer: Observer
) -> None:
    """The client sends it again, so that RQ has the id twice."""
    queue_directory.queue_named("imports").get_redis_server_version()
    valkey.proxy.lose_answer_to(b"PUSH")
    (job,) = enqueue_some(observer, "twice")
    assert valkey.proxy.lost.wait(5)
    workers.start(2)
    observer.wait_for_all()
    assert observer.started() == ["twice"]
    assert fresh(job).attempt == 1


def test_i3_redis_out_of_memory_refuses_the_push_and_the_job_waits_for_room(
    valkey: Valkey, workers: FaultWorkers, observer: Observer
) -> None:
    client: Any = valkey.client()
    client.config_set("maxmemory", 1)
    (job,) = enqueue_some(observer, "refused")
    assert fresh(job).state == State.WAITING
    client.config_set("maxmemory", 0)
    workers.start()
    observer.wait_for_all()
    assert observer.started() == ["refused"]


REFUSALS: dict[str, tuple[list[str], list[str]]] = {
    "OOM": (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
    "READONLY": (["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"]),
}
"""What makes a Redis refuse writes with this error, and what ends that."""


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("kind", ["Worker", "PreforkWorker", "SimpleWorker"])
def test_i3_workers_wait_for_a_redis_that_takes_no_writes(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, kind: str, error: str
) -> None:
    client: Any = valkey.client()
    refuse, take = REFUSALS[error]
    (worker,) = workers.start(1, worker_class=f"tenant_slots.workers.Tenant{kind}")
    enqueue_some(observer, "before")
    observer.wait_for_all()
    wait_until(lambda: [one.get_state() for one in Worker.all(connection=client)] == ["idle"])
    client.execute_command(*refuse)
    try:
        enqueue_some(observer, "meanwhile")
        refused = _refused(client, error)
        wait_until(lambda: _refused(client, error) >= refused + 6 or worker.poll() is not None)
    finally:
        client.execute_command(*take)
    assert worker.poll() is None
    observer.wait_for_all()
    assert observer.started() == ["before", "meanwhile"]


EXECUTES = {
    "Worker": "tenant_slots.workers.supervisor:Supervisor._execute",
    "PreforkWorker": "tenant_slots.workers.supervisor:Supervisor._execute",
    "SimpleWorker": "tenant_slots.workers.simple:TenantSimpleWorker._execute",
}
"""What a worker does with the job that it has taken."""


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize(
    ("kind", "pauses"),
    [("Worker", True), ("PreforkWorker", True), ("SimpleWorker", True), ("SimpleWorker", False)],
)
def test_i3_a_worker_outlives_a_job_that_it_has_taken_and_of_which_redis_cannot_be_told(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, tmp_path: Path, kind: str, pauses: bool, error: str
) -> None:
    """It is not to run where its tenant was paused since. Else those with work-horses tell nothing of it before."""
    client: Any = valkey.client()
    refuse, take = REFUSALS[error]
    row, armed = TenantQueue.objects.create(tenant="acme", queue="imports", max_job=1), tmp_path / "armed"
    plan = f"{EXECUTES[kind]} before pause"
    (worker,) = workers.start(1, worker_class=workers.with_sabotage(plan, armed, f"Sabotaged{kind}"))
    wait_until(lambda: client.zcard("tenant_slots:idle:imports"))
    armed.touch()
    enqueue_some(observer, "taken")
    wait_until(armed.with_suffix(".done").exists)
    if pauses:
        row.pause()
    client.execute_command(*refuse)
    try:
        refused = _refused(client, error)
        armed.with_suffix(".go").touch()
        wait_until(lambda: _refused(client, error) >= refused + 6 or worker.poll() is not None)
    finally:
        client.execute_command(*take)
    assert worker.poll() is None
    row.resume()
    observer.wait_for_all()
    assert observer.started() == ["taken"]


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("kind", ["Worker", "PreforkWorker", "SimpleWorker"])
def test_i3_a_worker_whose_job_ends_while_redis_takes_no_writes_goes_on_when_it_does(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, door: Path, kind: str, error: str
) -> None:
    client: Any = valkey.client()
    refuse, take = REFUSALS[error]
    (worker,) = workers.start(1, worker_class=f"tenant_slots.workers.Tenant{kind}")
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    wait_until(lambda: is_announced(job))
    client.execute_command(*refuse)
    try:
        door.touch()
        wait_until(lambda: fresh(job).has_ended)
        refused = _refused(client, error)
        wait_until(lambda: _refused(client, error) >= refused + 3 or worker.poll() is not None)
    finally:
        client.execute_command(*take)
    enqueue_some(observer, "after")
    observer.wait_for_all()
    assert worker.poll() is None
    assert fresh(job).state == State.FINISHED


@pytest.mark.parametrize("kind", ["Worker", "PreforkWorker", "SimpleWorker"])
def test_an_idle_worker_is_known_again_whose_record_was_over_before_redis_came_back(
    valkey: Valkey, workers: FaultWorkers, kind: str
) -> None:
    """RQ gives it some minutes. Its next heartbeat makes another one, which says neither whose it is nor since when."""
    client: Any = valkey.client()
    workers.start(1, worker_class=f"tenant_slots.workers.Tenant{kind}")
    wait_until(lambda: somebody_waits(valkey))
    (key,) = Worker.all_keys(connection=client)
    (before,) = fleet.known("imports").members
    client.delete(key)
    wait_until(lambda: client.hexists(key, "last_heartbeat"))
    wait_until(lambda: [one.pid for one in fleet.known("imports").members] == [before.pid], 15)
    (after,) = fleet.known("imports").members
    assert (after.worker_class, after.born_at, after.queues) == (before.worker_class, before.born_at, before.queues)


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize(
    ("kind", "is_busy"), [("PreforkWorker", False), ("PreforkWorker", True), ("SimpleWorker", False)]
)
def test_i7_rqs_scheduler_goes_on_when_redis_takes_writes_again(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, door: Path, kind: str, is_busy: bool, error: str
) -> None:
    """The first write that is refused ends it, and RQ would look for that after ten minutes, in which no job runs."""
    client: Any = valkey.client()
    refuse, take = REFUSALS[error]
    (worker,) = workers.start(1, "--with-scheduler", worker_class=f"tenant_slots.workers.Tenant{kind}")
    if is_busy:
        jobs.hold.enqueue("acme", "long", observer.path, str(door))
        observer.process_of("long")
    wait_until(lambda: schedulers(client))
    client.execute_command(*refuse)
    try:
        wait_until(lambda: not schedulers(client), message="it outlives that by itself")
    finally:
        client.execute_command(*take)
    wait_until(lambda: schedulers(client), 15, "I7: what is scheduled waits for a scheduler")
    worker.terminate()
    door.touch()
    assert worker.wait(15) == 0
    assert not schedulers(client)


def test_i7_nor_does_what_is_scheduled_wait_for_one_that_is_gone(
    valkey: Valkey, workers: FaultWorkers, observer: Observer
) -> None:
    """A worker that takes the place of one that was killed finds that one's lock, which lasts for a minute."""
    client: Any = valkey.client()
    client.set(RQScheduler.get_locking_key("imports"), "gone", px=10000)
    workers.start(1, "--with-scheduler", worker_class="tenant_slots.workers.TenantPreforkWorker")
    django_rq.get_queue("imports").enqueue_in(timedelta(0), jobs.quick, "acme", "scheduled", observer.path)
    assert client.exists(RQScheduler.get_locking_key("imports")), "or it has one from the beginning"
    wait_until(lambda: observer.ended("scheduled"), 20, "I7: what is scheduled waits for a scheduler")


@pytest.mark.parametrize("kind", ["PreforkWorker", "SimpleWorker"])
def test_i2_a_worker_that_is_told_to_end_does_not_wait_for_a_scheduler_that_waits_for_redis(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    """By host it does for minutes. Whoever supervises workers would kill this one before, and its job ran again."""
    workers.variables["TEST_REDIS_PORT"] = str(valkey.proxy.port)
    client: Any = valkey.client()
    (worker,) = workers.start(1, "--with-scheduler", worker_class=f"tenant_slots.workers.Tenant{kind}")
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    wait_until(lambda: is_announced(job) and schedulers(client))
    (scheduler,) = schedulers(client)
    valkey.proxy.black_hole()
    worker.terminate()
    door.touch()
    wait_until(lambda: fresh(job).state == State.FINISHED, 8, "I2: the end of the job waits for RQ's scheduler")
    assert worker.wait(40) == 0
    assert is_gone(scheduler)


def schedulers(client: Any) -> list[int]:
    """Processes of RQ's scheduler that live."""
    found = [client.hget(key, "pid") for key in client.scan_iter("rq:scheduler:*")]
    return [int(pid) for pid in found if pid and not is_gone(int(pid))]


@pytest.mark.parametrize("kind", ["Worker", "PreforkWorker", "SimpleWorker"])
def test_a_worker_that_is_told_to_end_has_not_failed_although_redis_takes_no_writes(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, kind: str
) -> None:
    """It cannot tell Redis that it is gone."""
    client: Any = valkey.client()
    refuse, take = REFUSALS["READONLY"]
    (worker,) = workers.start(1, worker_class=f"tenant_slots.workers.Tenant{kind}")
    enqueue_some(observer, "before")
    observer.wait_for_all()
    client.execute_command(*refuse)
    try:
        worker.terminate()
        assert worker.wait(30) == 0
    finally:
        client.execute_command(*take)


def _refused(client: Any, error: str) -> int:
    """How many commands have got this error so far."""
    count: int = client.info("errorstats").get(f"errorstat_{error}", {"count": 0})["count"]
    return count


def test_i3_a_redis_that_answers_nothing_for_a_while(valkey: Valkey, workers: FaultWorkers, observer: Observer) -> None:
    workers.start()
    valkey.proxy.black_hole()
    busy = ThreadPoolExecutor(1)
    try:
        enqueued = busy.submit(_enqueue_one, observer)
        wait_until(TenantJob.objects.waiting().exists, message="the commit waits for Redis")
        assert not enqueued.done()
    finally:
        valkey.proxy.heal()
        busy.shutdown()
    observer.wait_for_all()


def _enqueue_one(observer: Observer) -> None:
    from django.db import connection

    try:
        enqueue_some(observer, "patient")
    finally:
        connection.close()


def test_i1_i4_the_same_rq_id_pushed_five_times_runs_once(workers: FaultWorkers, observer: Observer) -> None:
    (job,) = enqueue_some(observer, "five", seconds=0.3)
    queue = django_rq.get_queue("imports")
    for _ in range(4):
        queue.push_job_id(last_rq_id(job))
    workers.start(2)
    observer.wait_for_all()
    wait_until(lambda: in_rq() == 0)
    assert observer.started() == ["five"]


def id_once_taken(job: TenantJob) -> str:
    """An attempt that has not begun has another id."""
    wait_until(TenantJob.objects.filter(pk=job.pk, attempt=1).exists, message="a worker takes it")
    return last_rq_id(job)


@pytest.mark.parametrize(
    "worker_class", ["rq.Worker", *(f"tenant_slots.workers.Tenant{kind}Worker" for kind in ("", "Prefork", "Simple"))]
)
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "ours"])
def test_i4_a_job_that_is_delivered_again_while_it_runs_is_finished_once_and_by_its_first_delivery(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str, plain: bool
) -> None:
    """For RQ the job is finished when any delivery of it returns, and its dependents start."""
    rq_job, child = delivered_again(workers, observer, door, worker_class, plain)
    assert (rq_job.get_status(), child.get_status()) == (JobStatus.STARTED, JobStatus.DEFERRED)
    door.touch()
    wait_until(lambda: rq_job.get_status() == JobStatus.FINISHED and child.get_status() == JobStatus.FINISHED)
    assert sorted(observer.started()) == ["child", "long"]
    scheduled = django_rq.get_queue("imports").scheduled_job_registry
    assert scheduled.count == 0, "the second delivery would come back"


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "ours"])
def test_control_where_a_delivery_that_runs_nothing_is_a_success_its_dependents_do_not_wait(
    workers: FaultWorkers, observer: Observer, door: Path, plain: bool
) -> None:
    delivered_again(workers, observer, door, "tests.faults.workers.SatisfiedWorker", plain)
    wait_until(lambda: observer.ended("child"))
    assert not observer.ended("long")
    door.touch()
    wait_until(lambda: observer.ended("long"))


def delivered_again(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str, plain: bool
) -> tuple[Job, Job]:
    """A job that runs, of which another delivery has ended, and one that depends on it."""
    queue = django_rq.get_queue("imports")
    workers.start(2, worker_class=worker_class)
    arguments = ("acme", "long", observer.path, str(door))
    rq_id = queue.enqueue(jobs.hold, *arguments).id if plain else id_once_taken(jobs.hold.enqueue(*arguments))
    wait_until(lambda: queue.fetch_job(rq_id) is not None, message="RQ hears of it a moment after its start")
    rq_job = queue.fetch_job(rq_id)
    assert rq_job is not None
    observer.process_of("long")
    wait_until(lambda: rq_job.get_status() == JobStatus.STARTED)
    child = queue.enqueue(jobs.quick, "other", "child", observer.path, depends_on=rq_job)
    queue.push_job_id(rq_id)
    wait_until(lambda: deliveries_ended() >= 1)
    return rq_job, child


def deliveries_ended() -> int:
    """As RQ's workers count them; a Retry counts as a failure."""
    everyone = Worker.all(connection=django_rq.get_connection("imports"))
    return sum(worker.successful_job_count + worker.failed_job_count for worker in everyone)


def test_i1_i4_a_stale_entry_of_the_started_registry_and_two_cleanups_start_no_second_run(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """RQ takes the entry for an abandoned job 90 s after its last heartbeat; django-rq cleans up at every page view."""
    workers.start(2)
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    wait_until(lambda: is_announced(job))
    registry = StartedJobRegistry("imports", connection=django_rq.get_connection("imports"))
    for execution in registry.connection.zrange(registry.key, 0, -1):
        registry.connection.zadd(registry.key, {execution: rq_now().timestamp() - 100})
    with ThreadPoolExecutor(2) as cleaners:
        list(cleaners.map(lambda _: registry.cleanup(), range(2)))
    rq_job = django_rq.get_queue("imports").fetch_job(fresh(job).rq_id)
    assert rq_job is not None
    rq_job.requeue()
    rq_job.requeue() if rq_job.get_status() == "failed" else None
    wait_until(lambda: in_rq() == 0)
    enqueue_some(observer, "sentinel", tenant="sentinel", seconds=1.0)
    wait_until(lambda: observer.ended("sentinel"))
    assert observer.started().count("long") == 1
    door.touch()
    observer.wait_for_all()
    assert fresh(job).state == State.FINISHED


def test_i2_i3_a_horse_killed_while_redis_is_away_is_run_again(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    workers.start()
    jobs.hold.enqueue("acme", "both", observer.path, str(door))
    horse = observer.process_of("both")
    valkey.stop()
    os.kill(horse, signal.SIGKILL)
    door.touch()
    valkey.start()
    workers.start()
    wait_until(all_ended, 30)
    assert len(observer.starts("both")) == 2


@pytest.mark.parametrize("address", ["URL", "HOST"])
def test_i2_an_idle_worker_sweeps_while_redis_answers_nothing(
    valkey: Valkey, workers: FaultWorkers, observer: Observer, address: str
) -> None:
    """By host, redis-py tries eleven times what it waits for, each time for longer than the worker waits for a job."""
    if address == "HOST":
        workers.variables["TEST_REDIS_PORT"] = str(valkey.proxy.port)
    workers.start(1)
    wait_until(lambda: somebody_waits(valkey))
    valkey.proxy.black_hole()
    try:
        for _ in range(3):
            before = sweeps()
            wait_until(lambda before=before: sweeps() > before, timeout=30, message="I2: nobody sweeps")
    finally:
        valkey.proxy.heal()
