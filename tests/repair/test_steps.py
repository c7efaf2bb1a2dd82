"""Each step of a sweep repairs one kind of damage and touches nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import django_rq
import pytest
from django.conf import settings
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone
from rq.executions import Execution
from rq.job import Job

from tenant_slots import fair_order, owners, slots, transitions
from tenant_slots.db.clock import in_seconds
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.fair_order import Freed, Turn
from tenant_slots.models import Kind, State, TenantJob, TenantQueue
from tenant_slots.repair import doctor, findings, lost_runs, silence, steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tests import jobs
from tests.factories import (
    admit,
    age,
    another_process,
    counters_match,
    dead_process,
    fresh,
    in_rq,
    in_thread,
    many_waiting,
    owner,
    pretend_idle,
    redis_forgets,
    running_job,
    tenant_queue,
    waiting_job,
    work,
)
from tests.locks import KEEPS_CHANGES_OUT, kept_out
from tests.order_records import records
from tests.repair.sweeps import LongContact, sweep_now

pytestmark = pytest.mark.django_db(transaction=True)

BULK = "imports_bulk"


def test_the_slot_of_an_owner_whose_process_is_gone_is_reclaimed_at_once() -> None:
    row = tenant_queue()
    lost = running_job(row, dead_process())
    assert sweep_now(Contact()).reclaimed == 1
    assert (fresh(lost).state, lost.attempt, lost.crashes, lost.interruptions) == (State.QUEUED, 2, 0, 1)
    assert "process" in lost.error
    assert counters_match()


def test_a_reused_pid_does_not_hide_a_death() -> None:
    row = tenant_queue()
    lost = running_job(row, dead_process(pid=os.getpid()))
    assert sweep_now().reclaimed == 1
    assert fresh(lost).interruptions == 1


def test_a_living_owner_that_sends_heartbeats_is_left_alone() -> None:
    row = tenant_queue()
    job = running_job(row, another_process())
    assert sweep_now().reclaimed == 0
    assert fresh(job).state == State.RUNNING


def test_the_slot_of_a_stale_owner_on_another_host_is_reclaimed_after_its_lease() -> None:
    row = tenant_queue()
    job = running_job(row, owner("far", host="elsewhere"))
    age(job, beat_at=19)
    assert sweep_now().reclaimed == 0
    age(job, beat_at=21)
    assert sweep_now().reclaimed == 1


WORKER = """
import os, sys, time
from tenant_slots.witness import Witness

in_horse = sys.argv[1] == "horse"
witness = Witness.shared()
horse = os.fork() if in_horse else 0
if in_horse and not horse:
    os.setpgrp()
for line in sys.stdin if not horse else []:
    witness.taking(0, int(line), os.getpid())
    witness.holding()
    print(os.getpid(), flush=True)
time.sleep(600)
"""


class OtherWorker:
    """A worker process that notes, like one of ours, which run it executes: itself, or in a work-horse."""

    def __init__(self, where: str = "itself") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, token: int) -> int:
        """It executes this run from now on; returns the process that does."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(token, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def stale_job(self) -> TenantJob:
        pid = self.process.pid
        job = running_job(tenant_queue(), owner("stale", pid=pid, pid_started=owners._started(pid)))
        age(job, beat_at=21)
        return job

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def other_worker() -> Iterator[OtherWorker]:
    worker = OtherWorker()
    yield worker
    worker.end()


def test_a_stale_but_living_process_on_this_host_is_killed_first(other_worker: OtherWorker) -> None:
    job = other_worker.stale_job()
    other_worker.run(job.token)
    os.kill(other_worker.process.pid, signal.SIGSTOP)
    assert sweep_now().reclaimed == 1
    assert other_worker.process.wait(5) == -signal.SIGKILL
    assert fresh(job).attempt == 2


def test_of_a_stale_forking_worker_only_the_work_horse_is_killed() -> None:
    worker = OtherWorker("horse")
    try:
        horse = worker.run(worker.stale_job().token)
        os.kill(worker.process.pid, signal.SIGSTOP)
        assert sweep_now().reclaimed == 1
        assert owners._started(horse) is None
        assert worker.process.poll() is None
    finally:
        worker.end()


def test_a_process_that_runs_something_else_by_now_is_not_killed(other_worker: OtherWorker) -> None:
    """Its worker keeps the end of the stale run, and cannot record it; the slot is taken, and nobody is hurt."""
    job = other_worker.stale_job()
    other_worker.run(job.token + 1)
    assert sweep_now().reclaimed == 1
    assert other_worker.process.poll() is None


def test_a_process_that_turns_to_another_run_at_the_last_moment_is_not_killed(
    other_worker: OtherWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped before the last look. The control above: one that does not turn is killed."""
    job = other_worker.stale_job()
    other_worker.run(job.token)
    original = os.kill

    def kill(pid: int, number: int) -> None:
        if number == signal.SIGSTOP:
            other_worker.run(job.token + 1)
        original(pid, number)

    monkeypatch.setattr(os, "kill", kill)
    assert sweep_now().reclaimed == 1
    assert other_worker.run(7) == other_worker.process.pid, "it goes on"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
def test_a_stale_run_whose_row_somebody_holds_is_left_alone(other_worker: OtherWorker) -> None:
    """The job itself may hold it, which keeps its heartbeats out."""
    job = other_worker.stale_job()
    other_worker.run(job.token)
    with transaction.atomic():
        TenantJob.objects.select_for_update().get()
        assert in_thread(sweep_now).reclaimed == 0
    assert other_worker.process.poll() is None
    assert sweep_now().reclaimed == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")
@pytest.mark.parametrize("mode", KEEPS_CHANGES_OUT)
def test_nobody_is_stale_while_no_heartbeat_is_let_in(other_worker: OtherWorker, mode: str) -> None:
    job = other_worker.stale_job()
    other_worker.run(job.token)
    with kept_out(mode):
        assert in_thread(sweep_now).reclaimed == 0
        with pytest.raises(TenantQueueLocked):
            in_thread(lambda: lost_runs.release_by_hand(job, "by hand"))
    assert other_worker.process.poll() is None
    assert sweep_now().reclaimed == 1, "the control"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")
def test_a_run_is_not_stale_whose_heartbeat_comes_when_it_is_let_in(
    other_worker: OtherWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is gone at the first look, and the owner has not tried again by then."""
    job = other_worker.stale_job()
    other_worker.run(job.token)
    monkeypatch.setattr(silence.time, "sleep", lambda seconds: slots.beat(job.pk, job.token))
    assert sweep_now().reclaimed == 0
    assert other_worker.process.poll() is None


def test_a_stale_owner_that_may_not_be_killed_is_reported_and_left(
    other_worker: OtherWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = other_worker.stale_job()
    other_worker.run(job.token)

    def forbidden(*_: Any) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", forbidden)
        report = sweep_now()
    assert report.reclaimed == 0
    assert str(job.uuid) in report.left[0]
    assert other_worker.process.poll() is None
    assert fresh(job).state == State.RUNNING


def test_a_stock_workers_job_lives_as_long_as_rq_knows_its_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = tenant_queue()
    job = running_job(row, owner("stock", host="elsewhere", beats=False))
    age(job, beat_at=21)
    redis = django_rq.get_connection("imports")
    redis.hset("rq:worker:stock", mapping={"state": "busy", "current_job": job.rq_id, "queues": "imports"})
    assert sweep_now().reclaimed == 0
    redis.delete("rq:worker:stock")
    assert sweep_now().reclaimed == 0, "a FLUSHALL took the record, and the worker writes it again"
    monkeypatch.setattr(steps, "ABSENCE_SECONDS", 0)
    assert sweep_now().reclaimed == 1


OTHERWISE = [{"state": "idle"}, {"state": "busy", "current_job": "another"}]


def job_of_a_stock_worker(record: dict[str, str]) -> TenantJob:
    job = running_job(tenant_queue(), owner("stock", host="elsewhere", beats=False))
    age(job, beat_at=21)
    django_rq.get_connection("imports").hset("rq:worker:stock", mapping={**record, "queues": "imports"})
    return job


@pytest.mark.parametrize("record", OTHERWISE)
def test_a_stock_worker_that_has_long_turned_to_something_else_has_lost_its_job(record: dict[str, str]) -> None:
    job = job_of_a_stock_worker(record)
    contact = LongContact()
    assert sweep_now(contact).reclaimed == 0, "a replica that was promoted may lack the write that named the job"
    watched_for_long(contact)
    assert sweep_now(contact).reclaimed == 1
    assert (fresh(job).crashes, job.interruptions) == (1, 0), "the worker lives, only its work-horse died"


@pytest.mark.parametrize("record", OTHERWISE)
def test_a_stock_worker_whose_job_still_gets_heartbeats_runs_it_whatever_its_record_says(
    record: dict[str, str],
) -> None:
    job = job_of_a_stock_worker(record)
    contact = LongContact()
    sweep_now(contact)
    watched_for_long(contact)
    django_rq.get_connection("imports").hset(f"rq:job:{job.rq_id}", "last_heartbeat", "a moment ago")
    assert sweep_now(contact).reclaimed == 0
    watched_for_long(contact)
    assert sweep_now(contact).reclaimed == 1, "the control: there was no further heartbeat"


def test_heartbeats_of_another_delivery_say_nothing_about_the_first() -> None:
    """A plain job that is delivered again while it runs looks in every minute."""
    job = job_of_a_stock_worker({"state": "idle"})
    contact, redis = LongContact(), django_rq.get_connection("imports")
    redis.hset(f"rq:job:{job.rq_id}", mapping={"worker_name": "another", "last_heartbeat": "one"})
    assert sweep_now(contact).reclaimed == 0
    watched_for_long(contact)
    redis.hset(f"rq:job:{job.rq_id}", "last_heartbeat", "two")
    assert sweep_now(contact).reclaimed == 1


def test_a_record_that_names_the_job_again_ends_the_doubt() -> None:
    job = job_of_a_stock_worker({"state": "idle"})
    contact, redis = LongContact(), django_rq.get_connection("imports")
    sweep_now(contact)
    watched_for_long(contact)
    redis.hset("rq:worker:stock", mapping={"state": "busy", "current_job": job.rq_id})
    assert sweep_now(contact).reclaimed == 0
    redis.hset("rq:worker:stock", mapping={"state": "idle", "current_job": ""})
    assert sweep_now(contact).reclaimed == 0, "the doubt begins anew"


def watched_for_long(contact: Contact) -> None:
    contact._doubted = {run: (since - steps.ABSENCE_SECONDS, sign) for run, (since, sign) in contact._doubted.items()}


def lost_with_its_worker(times: int) -> TenantJob:
    job = running_job(tenant_queue(), dead_process())
    for _ in range(times - 1):
        sweep_now()
        assert slots.start(fresh(job), dead_process())
    sweep_now()
    return fresh(job)  # type: ignore[no-any-return]


def test_a_job_outlives_more_deploys_than_it_may_crash() -> None:
    job = lost_with_its_worker(times=5)
    assert (job.state, job.attempt, job.crashes, job.interruptions) == (State.QUEUED, 6, 0, 5)


def test_a_job_that_takes_its_worker_down_each_time_fails_in_the_end() -> None:
    with override_settings(TENANT_SLOTS={"MAX_INTERRUPTIONS": 2}):
        job = lost_with_its_worker(times=3)
    assert (job.state, job.crashes, job.interruptions) == (State.FAILED, 0, 3)
    assert [line.split(":")[0] for line in job.error.splitlines()] == ["attempt 1", "attempt 2", "attempt 3"]
    assert counters_match()


@pytest.mark.parametrize(("record", "crashes"), [({"state": "idle"}, 1), ({"state": "busy"}, 0), (None, 0)])
def test_a_stock_workers_dead_horse_is_a_crash_only_if_the_worker_went_on(
    record: dict[str, str] | None, crashes: int
) -> None:
    job = running_job(tenant_queue(), dead_process("stock", beats=False))
    if record:
        mapping = {"queues": "imports", "current_job": job.rq_id, **record}
        django_rq.get_connection("imports").hset("rq:worker:stock", mapping=mapping)
    assert sweep_now().reclaimed == 1
    assert (fresh(job).crashes, job.interruptions) == (crashes, 1 - crashes)


def test_a_lost_job_whose_cancel_was_asked_for_is_canceled() -> None:
    row = tenant_queue()
    job = running_job(row, dead_process())
    assert job.cancel()
    sweep_now()
    assert fresh(job).state == State.CANCELED


def test_jobs_that_redis_lost_are_pushed_again() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    django_rq.get_connection("reports").flushall()
    age(job, admitted_at=6)
    assert sweep_now().repushed == 1
    assert sweep_now().repushed == 0
    work()
    assert (fresh(job).state, job.attempt) == (State.FINISHED, 1)


def test_a_job_that_was_admitted_a_moment_ago_is_not_pushed_again() -> None:
    jobs.add.enqueue(1, 2, tenant="acme")
    django_rq.get_connection("reports").flushall()
    assert sweep_now().repushed == 0


def test_a_plain_job_that_redis_lost_with_its_arguments_fails_and_frees_its_slot() -> None:
    row = tenant_queue(queue="reports", max_job=0)
    django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    django_rq.get_connection("reports").flushall()
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    admit(row)
    job = TenantJob.objects.get()
    age(job, admitted_at=6)
    sweep_now()
    assert fresh(job).state == State.FAILED
    assert fresh(row).current_job == 0


def taken_and_not_begun() -> Job:
    """A plain job that was deferred and brought forward, and that a worker has taken from RQ's list a moment ago."""
    row = tenant_queue(queue="reports", max_job=0)
    queue = django_rq.get_queue("reports")
    rq_job = queue.enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    row.set_limit(1)
    age(TenantJob.objects.get(), admitted_at=6)
    assert queue.connection.lpop(queue.key) == rq_job.id.encode()
    return rq_job


def begins_execution(rq_job: Job, seconds: int = 60) -> None:
    """As its worker does before it forks or spawns a work-horse, and with each heartbeat of that."""
    with rq_job.connection.pipeline() as pipeline:
        Execution.create(rq_job, seconds, pipeline)
        pipeline.execute()


def test_a_plain_job_that_a_worker_has_taken_and_not_yet_begun_is_not_pushed_again() -> None:
    begins_execution(taken_and_not_begun())
    assert (sweep_now().repushed, sweep_now().repushed, in_rq("reports")) == (0, 0, 0)
    assert not list(doctor.findings("redis"))


@pytest.mark.parametrize("has_begun_execution", [False, True])
def test_a_plain_job_whose_worker_was_killed_before_it_began_is_pushed_again(has_begun_execution: bool) -> None:
    """At once, or when RQ has heard nothing of the execution for so long that it takes it for abandoned."""
    rq_job = taken_and_not_begun()
    if has_begun_execution:
        begins_execution(rq_job, seconds=-2)
    assert [finding.kind for finding in doctor.findings("redis")] == ["lost in Redis"]
    assert sweep_now().repushed == 1
    assert (sweep_now().repushed, in_rq("reports")) == (0, 1)
    work()
    assert rq_job.return_value(refresh=True) == 3
    assert TenantJob.objects.get().state == State.FINISHED


def test_an_execution_of_another_job_keeps_no_plain_job_from_being_pushed_again() -> None:
    taken_and_not_begun()
    begins_execution(django_rq.get_queue("reports").enqueue(jobs.add, 1, 2))
    assert sweep_now().repushed == 1


def test_scheduled_jobs_are_promoted_when_they_are_due() -> None:
    job = jobs.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 2, tenant="acme")
    assert sweep_now().promoted == 0
    age(job, run_after=1)
    assert sweep_now().promoted == 1
    assert fresh(job).state == State.QUEUED


def test_a_tenant_with_very_many_due_jobs_does_not_hold_up_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "ROWS_PER_STEP", 10)
    monkeypatch.setattr(steps, "ROWS_TO_PROMOTE", 25)
    due = timezone.now() - timedelta(minutes=1)
    many_waiting(tenant_queue("greedy", max_job=0), 50, state=State.SCHEDULED, run_after=due)
    others = [tenant_queue(f"other {number}") for number in range(15)]
    late = [waiting_job(row, state=State.SCHEDULED, run_after=due + timedelta(seconds=30)) for row in others]
    assert sweep_now().promoted == 25
    assert {fresh(job).state for job in late} == {State.QUEUED}


def test_a_tenant_has_what_others_leave_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "ROWS_PER_STEP", 10)
    due = timezone.now() - timedelta(minutes=1)
    many_waiting(tenant_queue("alone", max_job=0), 50, state=State.SCHEDULED, run_after=due)
    assert sweep_now().promoted == 50


def test_a_job_with_retries_left_waits_for_its_interval_without_a_slot() -> None:
    job = jobs.flaky.enqueue("acme")
    other = jobs.add.using(queue="imports").enqueue(1, 2, tenant="acme")
    work()
    assert fresh(job).state == State.SCHEDULED
    assert fresh(other).state == State.FINISHED
    age(job, run_after=1)
    sweep_now()
    work()
    assert (fresh(job).state, job.failures, job.attempt) == (State.FAILED, 3, 3)
    assert "flaky" in job.error


def test_a_waiting_job_beside_a_free_slot_is_admitted() -> None:
    row = tenant_queue()
    job = waiting_job(row)
    assert sweep_now().admitted == 1
    assert fresh(job).state == State.QUEUED
    assert in_rq() == 1


@pytest.mark.parametrize("wrong", [0, 3])
def test_a_wrong_counter_is_repaired_and_logged_as_an_error(wrong: int, caplog: pytest.LogCaptureFixture) -> None:
    row = tenant_queue(max_job=1)
    running_job(row, another_process())
    TenantQueue.objects.filter(pk=row.pk).update(current_job=wrong)
    assert sweep_now().repaired == 1
    assert fresh(row).current_job == 1
    assert [record.levelname for record in caplog.records if "repaired" in record.message] == ["ERROR"]


def test_a_counter_without_any_job_that_holds_a_slot_is_repaired() -> None:
    row = tenant_queue(max_job=1, current_job=1)
    job = waiting_job(row)
    assert sweep_now().repaired == 1
    assert fresh(job).state == State.QUEUED


def test_ended_jobs_are_kept_for_the_retention_and_then_pruned() -> None:
    row = tenant_queue()
    old, young = (waiting_job(row, state=State.FINISHED, ended_at=timezone.now()) for _ in range(2))
    age(old, ended_at=8 * 24 * 3600)
    assert sweep_now().pruned == 1
    assert list(TenantJob.objects.all()) == [young]


def test_a_process_that_proc_hides_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    job = running_job(tenant_queue(), another_process())

    def not_permitted(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(owners, "_started", lambda pid: None)
    monkeypatch.setattr(os, "kill", not_permitted)
    assert owners.liveness(job) is owners.Liveness.UNKNOWN
    assert sweep_now().reclaimed == 0


def test_more_jobs_than_one_step_changes_are_all_pushed_again_in_one_sweep() -> None:
    row = tenant_queue(max_job=1200)
    many_waiting(row, 1200)
    admitted = admit(row, 1200)
    TenantJob.objects.update(admitted_at=in_seconds(-60))
    assert len(admitted) == 1200 > steps.ROWS_PER_STEP
    assert sweep_now().repushed == 1200
    assert in_rq() == 1200


def test_a_sweep_offers_who_is_not_in_the_order_and_leaves_the_others_as_they_are() -> None:
    redis_forgets()
    rows = [tenant_queue(f"tenant{number}") for number in range(3)]
    for row in rows:
        waiting_job(row)
    fair_order.offer("imports", [(rows[0].pk, 0)])
    sweep_now()
    turns = [fair_order.take("rq:worker:one of ours", ["imports"], waits=False)[0] for _ in rows]
    assert {(turn.tenant_queue_id, turn.offers) for turn in turns if isinstance(turn, Turn)} == {
        (row.pk, 1) for row in rows
    }


@pytest.mark.parametrize(("held_in", "waits_in"), [("", BULK), (BULK, ""), (BULK, "imports_slow")])
def test_a_sweep_offers_where_else_a_tenant_waits_for_a_slot_that_it_has_in_use(held_in: str, waits_in: str) -> None:
    """It need not be free at any sweep: where it is known it goes from job to job."""
    row = tenant_queue()
    running = running_job(row, another_process(), rq_queue=held_in)
    waiting_job(row, rq_queue=held_in), waiting_job(row, rq_queue=waits_in)
    redis_forgets()
    sweep_now()
    there = waits_in or "imports"
    turn, _ = fair_order.take("rq:worker:another", [there], waits=True)
    assert isinstance(turn, Turn)
    assert turn.tenant_queue_id == row.pk
    fair_order.drop(turn, is_full=True, is_shut=True)
    sweep_now()
    assert fair_order.take("rq:worker:another", [there], waits=True)[0] is None, "it is known to be full"
    assert there in fair_order.freed(Freed(row.pk, 1.0, running.rq_queue_name))


def test_a_sweep_offers_nobody_beside_the_queue_of_its_slot_who_is_paused_or_waits_there_only() -> None:
    paused, waits_there = tenant_queue("paused", paused=True, current_job=1), tenant_queue("waits there")
    waiting_job(paused, state=State.QUEUED, admitted_at=in_seconds(0), attempt=1)
    waiting_job(paused, rq_queue=BULK)
    running_job(waits_there, another_process(), rq_queue=BULK)
    waiting_job(waits_there, rq_queue=BULK)
    redis_forgets()
    sweep_now()
    assert fair_order.tenants_in(BULK) == fair_order.tenants_in("imports") == 0


def test_a_sweep_fills_the_window_for_tenants_that_are_in_the_order() -> None:
    """Whoever was to do it may have died."""
    redis_forgets()
    job = waiting_job(tenant_queue())
    fair_order.offer("imports", [(job.tenant_queue_id, 0)])
    pretend_idle(1)
    assert sweep_now().admitted == 1
    assert fresh(job).state == State.QUEUED


def queues_with_one_good(wrong: dict[str, str]) -> Any:
    """Others before it and after it lead to no server."""
    return override_settings(
        RQ_QUEUES={**dict.fromkeys(settings.RQ_QUEUES, wrong), "imports": settings.RQ_QUEUES["imports"]}
    )


OUT_OF_REACH = [{"URL": "bogus://x"}, {"URL": "redis://127.0.0.1:1/0"}]


@pytest.mark.parametrize("wrong", OUT_OF_REACH)
def test_a_queue_out_of_reach_keeps_no_sweep_from_those_of_others(wrong: dict[str, str]) -> None:
    for queue in ("default", "imports", "reports"):
        waiting_job(tenant_queue(queue=queue))
    with queues_with_one_good(wrong):
        report = sweep_now()
    assert (report.failed, report.admitted) == ([], 1)


@pytest.mark.parametrize("wrong", OUT_OF_REACH)
def test_what_runs_is_charged_where_it_can_be(wrong: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    charged = []
    charge = fair_order.charge

    def noted(rq_queue: str, *found: Any) -> None:
        charge(rq_queue, *found)
        charged.append(rq_queue)

    monkeypatch.setattr(fair_order, "charge", noted)
    with queues_with_one_good(wrong):
        assert sweep_now().failed == []
    assert charged == ["imports"]


@pytest.mark.parametrize("ends", ["meanwhile", pytest.param("later", id="control")])
def test_a_job_that_ends_while_a_sweep_charges_what_runs_is_charged_once(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_forgets()
    job = running_job(tenant_queue(), another_process())
    age(job, started_at=600)
    sweep_now()
    ask = findings.under_way

    def ended_since() -> Any:
        found = ask()
        assert transitions.release(job, seconds=600.0, state=State.FINISHED)
        return found

    if ends == "meanwhile":
        monkeypatch.setattr(findings, "under_way", ended_since)
    sweep_now()
    known = records(job.tenant_queue_id)["imports"]
    expected = (0, 0.0, 600) if ends == "meanwhile" else (1, 600, 0.0)
    assert (known.jobs, known.ahead, known.done) == (expected[0], *(pytest.approx(s, abs=20) for s in expected[1:]))


@pytest.mark.parametrize("listeners", [0, pytest.param(1, id="control")])
def test_what_was_admitted_for_workers_of_an_overflow_queue_that_are_gone_gives_its_slots_back(listeners: int) -> None:
    row = tenant_queue(max_job=1)
    redis_forgets()
    pretend_idle(1)
    waiting_job(row, rq_queue="reports")
    (job,) = transitions.offer(row.pk, "reports")
    assert in_rq("reports") == 1
    age(job, admitted_at=6)
    redis_forgets() if listeners else django_rq.get_connection("reports").flushall()
    sweep_now()
    assert fresh(job).state == (State.QUEUED if listeners else State.WAITING)
    assert in_rq("reports") == listeners
    assert fresh(row).current_job == listeners


@pytest.mark.parametrize(
    ("elsewhere", "idle_there", "idle_here", "stays"),
    [(1, 1, 0, False), (0, 1, 0, True), (1, 1, 1, True), (1, 0, 0, True)],
    ids=["", "nothing else waits", "another worker is idle here", "nobody is idle there"],
)
def test_what_was_admitted_for_a_worker_that_turned_to_another_queue_gives_its_slot_back_for_who_is_idle_there(
    elsewhere: int, idle_there: int, idle_here: int, *, stays: bool
) -> None:
    """Whoever was idle in two queues has a job ahead in each."""
    row = tenant_queue(max_job=1)
    redis_forgets()
    pretend_idle(1)
    waiting_job(row, rq_queue="reports")
    (job,) = transitions.offer(row.pk, "reports")
    age(job, admitted_at=6)
    fair_order.leave("worker 0", ["imports", "reports"])
    for queue, idle in (("imports", idle_there), ("reports", idle_here)):
        if idle:
            django_rq.get_connection(queue).zadd(f"tenant_slots:idle:{queue}", {"another worker": time.time() + 60})
    others = [waiting_job(row) for _ in range(elsewhere)]
    sweep_now()
    assert fresh(job).state == (State.QUEUED if stays else State.WAITING)
    assert in_rq("reports") == stays
    transitions.feed("imports")
    assert [fresh(other).state for other in others] == [State.WAITING if stays else State.QUEUED] * elsewhere


def stale_elsewhere(row: TenantQueue) -> None:
    age(running_job(row, owner("gone", host="elsewhere")), beat_at=3600)


def given_up_by_a_stock_worker(row: TenantQueue) -> None:
    age(running_job(row, owner("gone", host="elsewhere", beats=False)), beat_at=3600)


def dead_here(row: TenantQueue) -> None:
    running_job(row, dead_process())


def that_waits_for_nobody(row: TenantQueue) -> None:
    gone = owner("gone", host="elsewhere").as_fields()
    waiting_job(row, kind=Kind.RESERVATION, beat_at=in_seconds(-3600), **gone)


def dead_here_that_waits(row: TenantQueue) -> None:
    waiting_job(row, kind=Kind.RESERVATION, beat_at=in_seconds(0), **dead_process().as_fields())


@pytest.mark.parametrize(
    ("step", "have_one", "bound"),
    [
        (steps.reclaim_stale, stale_elsewhere, (silence, "SECONDS_TO_LOOK")),
        (steps.reclaim_stale, stale_elsewhere, (steps, "SECONDS_TO_RECLAIM")),
        (steps.reclaim_stale, given_up_by_a_stock_worker, (steps, "SECONDS_TO_RECLAIM")),
        (steps.reclaim_local, dead_here, (steps, "SECONDS_TO_RECLAIM")),
        (steps.end_abandoned_reservations, that_waits_for_nobody, (silence, "SECONDS_TO_LOOK")),
        (steps.end_abandoned_reservations, that_waits_for_nobody, (steps, "SECONDS_TO_RECLAIM")),
        (steps.end_abandoned_reservations, dead_here_that_waits, (steps, "SECONDS_TO_RECLAIM")),
    ],
)
def test_what_a_whole_fleet_has_left_is_reclaimed_by_several_sweeps(
    step: steps.Step, have_one: Callable[[TenantQueue], None], bound: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the look at all of it would take as long as each of them may last, and none would reclaim any."""
    monkeypatch.setattr(*bound, -1)
    monkeypatch.setattr(steps, "ABSENCE_SECONDS", 0)
    monkeypatch.setattr(silence.time, "sleep", lambda seconds: None)
    for number in range(3):
        have_one(tenant_queue(f"tenant {number}"))
    contact = LongContact()
    reports = [Report() for _ in range(4)]
    for report in reports:
        step(report, contact)
    assert [report.reclaimed for report in reports] == [1, 1, 1, 0]


def test_pauses_of_all_tenants_that_end_at_once_are_ended_by_several_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SECONDS_TO_END", -1)
    for number in range(3):
        tenant_queue(f"tenant {number}")
    TenantQueue.objects.update(paused=True, resume_at=in_seconds(-1))
    for left in (2, 1, 0):
        report = Report()
        steps.end_what_is_over(report, Contact())
        assert (report.resumed, TenantQueue.objects.filter(paused=True).count()) == (1, left)
