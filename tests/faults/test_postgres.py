"""PostgreSQL restarts, is away, loses an answer, or is held up by somebody else's transaction."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import InterfaceError, InternalError, OperationalError, connection, transaction
from django.test import override_settings

from tenant_slots import locks, slots, statements
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.releases import Release
from tenant_slots.repair.one_row import LOCK_TIMEOUT_SECONDS
from tenant_slots.repair.sweeper import Sweeper
from tenant_slots.running.run import Run
from tenant_slots.workers.heartbeats import Heartbeats
from tests.factories import (
    admit,
    counters_match,
    dead_process,
    end_run,
    fresh,
    owner,
    running_job,
    tenant_queue,
    waiting_job,
    work,
)
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer, all_ended, ticks_of
from tests.faults.servers import Postgres
from tests.faults.workers import CHOSEN
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.processes import test_database_url as database_url

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about sessions and restarts of PostgreSQL"),
]

COMMIT = b"COMMIT\0"
"""As the statement is sent; READ COMMITTED is another one."""

SIMPLE = "tenant_slots.workers.TenantSimpleWorker"


def enqueue_some(observer: Observer, count: int, tenants: str = "abc", seconds: float = 0.05) -> None:
    calls = [((tenants[n % len(tenants)], f"job{n}", observer.path, seconds), {}) for n in range(count)]
    jobs.quick.enqueue_many(calls)


def test_i1_i3_i4_i6_immediate_restarts_under_load(
    postgres: Postgres, workers: FaultWorkers, observer: Observer
) -> None:
    tenant_queue("a", max_job=2)
    workers.start(3)
    enqueue_some(observer, 90)
    for done in (10, 30):
        wait_until(lambda done=done: len(observer.started()) >= done)
        postgres.restart("immediate")
    connection.close()
    observer.wait_for_all(60)
    assert set(observer.started()) == {f"job{n}" for n in range(90)}


@pytest.mark.parametrize(
    ("worker_class", "runs"), [(CHOSEN, 1), pytest.param("tests.faults.workers.ForgetfulWorker", 2, id="control")]
)
def test_i2_i3_i4_away_while_a_job_ends(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, door: Path, worker_class: str, runs: int
) -> None:
    """The end is recorded when the database is back, and an outage alone reclaims nobody."""
    workers.start(2, worker_class=worker_class)
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    after = jobs.quick.enqueue("acme", "after", observer.path)
    observer.process_of("long")
    postgres.stop()
    door.touch()
    stopped = time.monotonic()
    wait_until(lambda: observer.ended("long") and time.monotonic() - stopped > 3 * SHORT["LEASE_TTL"])
    postgres.start()
    connection.close()
    observer.wait_for_all()
    assert (fresh(job).state, job.attempt, job.crashes) == (State.FINISHED, runs, 0)
    assert fresh(after).state == State.FINISHED
    assert observer.started() == [*["long"] * runs, "after"]


def test_i1_i4_away_for_longer_than_a_lease_while_a_job_runs_on_another_host(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    workers.start(1, worker_class="tests.faults.workers.ElsewhereWorker")
    job = jobs.hold.enqueue("acme", "far", observer.path, str(door))
    observer.process_of("far")
    workers.start()
    postgres.stop()
    stopped = time.monotonic()
    wait_until(lambda: time.monotonic() - stopped > 2 * SHORT["LEASE_TTL"])
    postgres.start()
    connection.close()
    sentinel = jobs.quick.enqueue("sentinel", "sentinel", observer.path, 2.0 * SHORT["LEASE_TTL"])
    wait_until(lambda: fresh(sentinel).has_ended)
    assert (fresh(job).state, job.attempt) == (State.RUNNING, 1)
    door.touch()
    observer.wait_for_all()


def test_i3_workers_that_start_while_it_is_away_work_when_it_is_back(
    postgres: Postgres, workers: FaultWorkers, observer: Observer
) -> None:
    enqueue_some(observer, 3)
    connection.close()
    postgres.proxy.cut()
    workers.start()
    postgres.proxy.heal()
    observer.wait_for_all()


def test_i1_i4_the_other_host_loses_its_network_and_its_run_is_fenced_when_it_is_back(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """A partition without a word: no session is closed, no statement is answered."""
    observer.fenced.add("far")
    workers.start(1, worker_class="tests.faults.workers.ElsewhereWorker")
    job = jobs.hold.enqueue("acme", "far", observer.path, str(door))
    horse = observer.process_of("far")
    wait_until(lambda: fresh(job).beat_at > job.started_at, message="the first heartbeat did not come")
    with reaching_directly(postgres):
        workers.variables["DATABASE_URL"] = postgres.direct_url
        postgres.proxy.black_hole()
        workers.start()
        observer.process_of("far", run=2)
        postgres.proxy.heal()
        wait_until(lambda: ticks_of(horse)[0] in "ZX", 15, "the stale run goes on although the network is back")
        assert (fresh(job).state, job.attempt) == (State.RUNNING, 2)
        door.touch()
        observer.wait_for_all()


@contextmanager
def reaching_directly(postgres: Postgres) -> Iterator[None]:
    from tests.faults.servers import django_on_database

    with django_on_database(postgres.direct_url):
        yield


def test_i2_i7_a_black_hole_during_a_sweep_does_not_stop_an_idle_worker_for_long(
    postgres: Postgres, workers: FaultWorkers, observer: Observer
) -> None:
    """Its session is dead without knowing it. Other sessions work, and Redis does too."""
    workers.start()
    wait_until(lambda: postgres.run("SELECT 1 FROM tenant_slots_sweepclaim"))
    postgres.proxy.black_hole()
    with reaching_directly(postgres):
        slept = time.monotonic()
        wait_until(lambda: time.monotonic() - slept > 2 * SHORT["SWEEP_INTERVAL"] + 1)
        postgres.proxy.forget()
        postgres.proxy.heal()
        enqueue_some(observer, 1)
        wait_until(all_ended, 20, "the worker waits for an answer that will never come")


@pytest.mark.parametrize("moment", ["admit", "release", "start"])
def test_i3_i4_i6_a_reply_to_commit_that_is_lost(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, moment: str
) -> None:
    """It was committed and nobody was told: a second try must not do it twice."""
    row = tenant_queue("acme", max_job=1)
    job = waiting_job(row)
    waiting_job(row)
    if moment == "admit":
        postgres.proxy.lose_answer_to(COMMIT)
        with pytest.raises(OperationalError):
            admit(row)
        connection.close()
        assert admit(row) == []
        assert fresh(row).current_job == 1
    elif moment == "start":
        (job,) = admit(row)
        postgres.proxy.lose_answer_to(b"UPDATE")
        assert Run("worker").start(job)
        assert fresh(job).state == State.RUNNING
    else:
        (job,) = admit(row)
        slots.start(job, owner())
        postgres.proxy.lose_answer_to(COMMIT)
        end_run(job, state=State.FINISHED)
        assert fresh(job).state == State.FINISHED
        assert fresh(row).current_job == 1, "the slot was handed on once"
    assert postgres.proxy.lost.wait(5)
    assert counters_match()


@pytest.mark.parametrize("statement", ["TAKE", "CLAIM"])
def test_i3_i6_a_backend_terminated_inside_admit_changes_nothing(
    observer: Observer, workers: FaultWorkers, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    is_terminated = terminate_before(monkeypatch, statement)
    jobs.quick.enqueue("acme", "survivor", observer.path)
    assert is_terminated.is_set()
    connection.close()
    assert counters_match()
    assert TenantJob.objects.get().state == State.WAITING
    monkeypatch.undo()
    workers.start()
    observer.wait_for_all()


@pytest.mark.parametrize(
    ("statement", "step_by_step"), [("GIVE_BACK_THEN", set()), ("GIVE_BACK", {"default"})], ids=["at once", "in steps"]
)
def test_i2_i3_i6_a_backend_terminated_for_a_release_is_tried_again(
    observer: Observer, monkeypatch: pytest.MonkeyPatch, statement: str, step_by_step: set[str]
) -> None:
    """In one statement there is no moment inside: the session is gone just before it is sent."""
    monkeypatch.setattr(locks, "_step_by_step", step_by_step)
    jobs.quick.enqueue_many([(("acme", name, observer.path), {}) for name in ("one", "two")])
    is_terminated = terminate_before(monkeypatch, statement)
    work("imports")
    assert is_terminated.is_set()
    assert all_ended()
    assert observer.started() == ["one", "two"]


def terminate_before(monkeypatch: pytest.MonkeyPatch, name: str) -> threading.Event:
    """End our own session the next time that this one of the statements is about to be sent. It says that it has."""
    statement = getattr(statements, name)
    original = statement.given
    done = threading.Event()

    def replacement(*arguments: Any) -> Any:
        if not done.is_set():
            done.set()
            with pytest.raises(OperationalError), connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return original(*arguments)

    monkeypatch.setattr(statement, "given", replacement)
    return done


@contextmanager
def another_session() -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url()) as session:
        yield session


@contextmanager
def idle_transaction_on(row: TenantQueue) -> Iterator[None]:
    """Somebody's forgotten psql window, with an UPDATE in it."""
    with another_session() as session:
        session.execute("UPDATE tenant_slots_tenantqueue SET max_job = max_job WHERE id = %s", [row.pk])
        yield
        session.rollback()


def seconds_for_thirty(observer: Observer, name: str) -> float:
    """Until as many jobs of three tenants have started."""
    began = time.monotonic()
    names = {f"{name}{n}": "abc"[n % 3] for n in range(30)}
    jobs.quick.enqueue_many([((tenant, each, observer.path, 0.01), {}) for each, tenant in names.items()])
    wait_until(lambda: names.keys() <= set(observer.started()), 60)
    return time.monotonic() - began


def test_i8_an_idle_transaction_on_one_tenants_row_does_not_touch_the_others(
    workers: FaultWorkers, observer: Observer
) -> None:
    stuck, others = tenant_queue("stuck"), [tenant_queue(name) for name in "abc"]
    workers.start(2)
    without = seconds_for_thirty(observer, "before")
    with idle_transaction_on(stuck):
        job = waiting_job(stuck)
        arguments = ["stuck", "stuck", observer.path]
        TenantJob.objects.filter(pk=job.pk).update(task="tests.faults.jobs.quick", args=arguments)
        beside = seconds_for_thirty(observer, "beside")
    assert beside < 2 * without + 4, "other tenants waited for the lock on one tenant's row"
    observer.wait_for_all()
    assert len(others) == 3


@pytest.mark.parametrize("worker_class", ["TenantPreforkWorker", "TenantSimpleWorker"])
def test_i8_nor_does_one_on_the_rows_of_many(workers: FaultWorkers, observer: Observer, worker_class: str) -> None:
    """Each comes back by itself again and again. To wait for each of them would be all that the workers do."""
    stuck = [tenant_queue(f"stuck-{number}") for number in range(60)]
    other = tenant_queue("other", 2)
    for row in stuck:
        jobs.quick.enqueue(row.tenant, row.tenant, observer.path)
    with another_session() as session:
        session.execute("UPDATE tenant_slots_tenantqueue SET max_job = max_job WHERE id <> %s", [other.pk])
        workers.start(2, worker_class=f"tenant_slots.workers.{worker_class}")
        for number in range(20):
            jobs.quick.enqueue("other", f"other-{number}", observer.path, 0.2)
        wait_until(lambda: sum(name.startswith("other-") for name in observer.started()) == 20, 40)
        session.rollback()
    observer.wait_for_all()
    observer.watched.clear()  # those that were held have waited beside idle workers


def test_i2_i8_the_sweep_repairs_other_tenants_while_one_row_is_locked(caplog: pytest.LogCaptureFixture) -> None:
    """The locked tenant comes first in every step, and the sweep is not to give up at it, nor to wait for long."""
    stuck, other = tenant_queue("stuck"), tenant_queue("other")
    running_job(stuck, dead_process())
    lost = running_job(other, dead_process())
    stranded = waiting_job(tenant_queue("third"))
    sweeper = Sweeper("test")
    time_enough = {**SHORT, "LEASE_TTL": 60}
    with override_settings(TENANT_SLOTS=time_enough), idle_transaction_on(stuck):
        sweeper.sweep_if_due()
        assert fresh(lost).attempt == 2, "I8: the lock on one tenant's row kept another tenant's slot"
        assert fresh(stranded).state == State.QUEUED
    waits = sum("which is locked" in record.message for record in caplog.records)
    assert 0 < waits * LOCK_TIMEOUT_SECONDS < 1, f"the sweep, and with it its worker, waited {waits} times"


def test_i6_callers_at_repeatable_read_enqueue_and_cancel(observer: Observer) -> None:
    with repeatable_read(), transaction.atomic():
        jobs.quick.enqueue("acme", "inside", observer.path)
    with repeatable_read():
        outside = jobs.quick.enqueue("acme", "outside", observer.path)
        assert outside.cancel()
    work("imports")
    assert observer.started() == ["inside"]
    assert counters_match()


def test_i3_i6_a_repeatable_read_transaction_older_than_a_release_still_admits_on_commit(observer: Observer) -> None:
    row = tenant_queue("acme")
    waiting_job(row)
    (first,) = admit(row)
    with repeatable_read(), transaction.atomic():
        assert TenantQueue.objects.get().current_job == 1
        with ThreadPoolExecutor(1) as other:
            other.submit(in_own_session(lambda: slots.release(first, state=State.FINISHED))).result()
        job = jobs.quick.enqueue("acme", "late", observer.path)
    assert fresh(job).state == State.QUEUED
    assert counters_match()


def in_own_session(action: Any) -> Any:
    def run() -> Any:
        try:
            return action()
        finally:
            connection.close()

    return run


@contextmanager
def repeatable_read() -> Iterator[None]:
    connection.ensure_connection()
    connection.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    try:
        yield
    finally:
        connection.close()


def test_i3_a_stale_connection_in_a_simple_worker(
    postgres: Postgres, workers: FaultWorkers, observer: Observer
) -> None:
    """It keeps its session from job to job; a restart ends that between two jobs."""
    workers.start(1, worker_class=SIMPLE)
    jobs.quick.enqueue("acme", "before", observer.path)
    observer.wait_for_all()
    postgres.restart("fast")
    connection.close()
    jobs.quick.enqueue("acme", "after", observer.path)
    observer.wait_for_all()
    assert observer.started() == ["before", "after"]
    assert fresh(TenantJob.objects.get(args__1="after")).attempt == 1


def test_i3_i8_a_session_that_gets_no_answer_when_it_is_put_back_does_not_hold_up_the_next_job(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """As after a failover whose network says nothing. New sessions are answered."""
    workers.start(1, worker_class="tenant_slots.workers.TenantPreforkWorker")
    jobs.hold_with_session.enqueue("acme", "first", observer.path, str(door))
    observer.process_of("first")
    postgres.proxy.forget()
    connection.close()
    door.touch()
    job = jobs.quick.enqueue("other", "next", observer.path)
    observer.wait_for_all(timeout=20)
    assert (fresh(job).state, job.attempt) == (State.FINISHED, 1)


def test_i1_i4_a_finished_job_whose_end_cannot_be_recorded_for_longer_than_a_lease_runs_once(
    workers: FaultWorkers, observer: Observer
) -> None:
    """Somebody's transaction has the tenant's row meanwhile. The worker lives, waits, and keeps sending heartbeats."""
    patient = {**SHORT, "LEASE_TTL": 8}
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps(patient)
    row = tenant_queue("acme")
    workers.start(2)
    job = jobs.quick.enqueue("acme", "done", observer.path, 0.5)
    observer.process_of("done")
    with idle_transaction_on(row):
        wait_until(lambda: observer.ended("done"))
        sentinel = jobs.quick.enqueue("sentinel", "sentinel", observer.path, 14.0)
        wait_until(lambda: fresh(sentinel).has_ended)
    observer.wait_for_all()
    assert all(process.poll() is None for process in workers.processes)
    assert observer.started().count("done") == 1
    assert (fresh(job).state, job.crashes, job.interruptions) == (State.FINISHED, 0, 0)


@pytest.mark.parametrize(
    ("name", "goes_on"), [("KeepingSessionWorker", True), pytest.param("ClosingWorker", False, id="control")]
)
def test_i2_a_fork_with_an_open_connection_does_not_end_its_parents_session(
    workers: FaultWorkers, observer: Observer, name: str, goes_on: bool
) -> None:
    """A horse that dies or ends must leave alone the session through which its worker records starts and ends."""
    url = database_url()
    workers.variables["DATABASE_URL"] = f"{url}{'&' if '?' in url else '?'}application_name=forks"
    workers.start(worker_class=f"tests.faults.workers.{name}")
    jobs.quick.enqueue("acme", "before", observer.path)
    observer.wait_for_all()
    before = sessions_of("forks")
    jobs.die.enqueue("b", "dies", observer.path, "os._exit(1)")
    for n in range(5):
        jobs.quick.enqueue("acme", f"job{n}", observer.path)
    observer.wait_for_all()
    began = time.monotonic()
    wait_until(lambda: not before & sessions_of("forks") or time.monotonic() - began > SHORT["LEASE_TTL"])
    assert bool(before & sessions_of("forks")) is goes_on, "a sweep's, which may be one of them, does not last so long"


def sessions_of(name: str) -> set[int]:
    with connection.cursor() as cursor:
        sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()"
        cursor.execute(sessions, [name])
        return {pid for (pid,) in cursor.fetchall()}


@pytest.mark.parametrize("error", [OperationalError, InterfaceError, InternalError])
def test_i3_no_kind_of_database_error_ends_a_worker_that_sends_heartbeats(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """InterfaceError: psycopg2 when the session is gone. InternalError: a failover that left us on a standby."""
    ended: list[object] = []
    job = running_job(tenant_queue(), owner())
    runs = {(job.pk, job.token): 0}
    heartbeats = Heartbeats(lambda: runs, ended.append, lambda: None)

    def broken(*_: Any) -> bool:
        raise error("the session is gone")

    monkeypatch.setattr(slots, "beat", broken)
    heartbeats.beat(runs)
    assert not ended


@pytest.mark.parametrize("error", [OperationalError, InterfaceError, InternalError])
def test_i2_i4_the_end_of_a_job_is_recorded_after_any_kind_of_database_error(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    row = tenant_queue()
    waiting_job(row)
    (job,) = admit(row)
    slots.start(job, owner())
    original, failures = slots.release, [error("the first time"), error("the second time")]

    def release(*args: Any, **changes: Any) -> Release:
        if failures:
            raise failures.pop()
        return original(*args, **changes)

    monkeypatch.setattr(slots, "release", release)
    end_run(job, state=State.FINISHED)
    assert fresh(job).state == State.FINISHED


@contextmanager
def frozen_log_writer(postgres: Postgres) -> Iterator[None]:
    """Nobody brings a commit to the disk but who waits for it. PostgreSQL's immediate end kills a frozen process."""
    ((pid,),) = postgres.run("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(int(str(pid)), signal.SIGSTOP)
    yield
    postgres.restart("immediate")
    connection.close()


def release_after_waiting_for_the_row(postgres: Postgres, job: TenantJob) -> None:
    def release() -> None:
        try:
            slots.release(job, state=State.FINISHED)
        finally:
            connection.close()

    thread = threading.Thread(target=release)
    with psycopg.connect(postgres.direct_url) as session:
        session.execute("SELECT 1 FROM tenant_slots_tenantqueue FOR NO KEY UPDATE")
        thread.start()
        wait_until(somebody_waits_for_a_lock)
        session.rollback()
    thread.join(20)


def test_i10_an_end_is_on_the_disk_when_its_release_has_returned_although_others_had_the_row_before(
    postgres: Postgres,
) -> None:
    row = tenant_queue("acme", max_job=1)
    job = running_job(row, owner())
    with frozen_log_writer(postgres):
        release_after_waiting_for_the_row(postgres, job)
    assert fresh(job).state == State.FINISHED
    assert counters_match()


def test_control_a_release_that_does_not_wait_for_the_disk_is_lost(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WAIT_FOR_DISK", "SELECT 1")
    row = tenant_queue("acme", max_job=1)
    job = running_job(row, owner())
    with frozen_log_writer(postgres):
        release_after_waiting_for_the_row(postgres, job)
    assert fresh(job).state == State.RUNNING
