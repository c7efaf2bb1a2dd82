"""Work-horses that cannot be forked, are killed around the end of a job, or are to be ended; and what jobs fork."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from django.db import connection

from tenant_slots.models import State, TenantJob
from tests.factories import counters_match, fresh, tenant_queue
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer
from tests.faults.supervised import NO_PROMISE, all_live, leases_pass, of_tests, ours, ran_once
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about sessions of PostgreSQL, and many at once"),
]


def test_i2_i3_a_job_for_which_no_work_horse_can_be_forked_goes_back_and_nothing_is_counted(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, kind: str
) -> None:
    job, no_room = put_to_a_crowded_worker(workers, observer, tmp_path, of_tests("Crowded", kind))
    wait_until(lambda: fresh(job).attempt >= 2, message="it was not put back")
    assert observer.started() == []
    no_room.unlink()
    observer.wait_for_all()
    assert (fresh(job).state, job.crashes, job.interruptions, job.failures) == (State.FINISHED, 0, 0, 0)
    assert observer.started() == ["patient"]
    assert all_live(workers)


def test_control_taken_for_the_death_of_a_work_horse_it_counts_as_a_crash(
    workers: FaultWorkers, observer: Observer, tmp_path: Path
) -> None:
    job, no_room = put_to_a_crowded_worker(workers, observer, tmp_path, of_tests("CountingCrowded"))
    no_room.unlink()
    observer.wait_for_all()
    assert fresh(job).crashes == 1


def test_i3_a_worker_that_could_fork_no_work_horse_takes_no_other_job_for_a_while(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, kind: str
) -> None:
    put_to_a_crowded_worker(workers, observer, tmp_path, of_tests("Crowded", kind), seconds=60)
    other = jobs.quick.enqueue("other", "other", observer.path)
    leases_pass(1)
    assert fresh(other).attempt == 0


def test_control_one_that_does_not_wait_takes_it_time_and_again(
    workers: FaultWorkers, observer: Observer, tmp_path: Path
) -> None:
    put_to_a_crowded_worker(workers, observer, tmp_path, of_tests("Crowded"), seconds=0)
    other = jobs.quick.enqueue("other", "other", observer.path)
    wait_until(lambda: fresh(other).attempt > 2)


def put_to_a_crowded_worker(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str, seconds: int = 1
) -> tuple[TenantJob, Path]:
    """A job for which it could fork no work-horse, and will not be able to as long as this file exists."""
    observer.promise = NO_PROMISE
    no_room = tmp_path / "no_room"
    no_room.touch()
    workers.variables |= {"TEST_NO_ROOM": str(no_room), "TEST_SECONDS_WITHOUT_HORSE": str(seconds)}
    workers.start(1, worker_class=worker_class)
    job = jobs.quick.enqueue("acme", "patient", observer.path)
    wait_until(no_room.with_suffix(".met").exists)
    return job, no_room


def test_i3_a_cancel_right_after_the_start_that_was_promised_is_kept(
    workers: FaultWorkers, observer: Observer, kind: str
) -> None:
    tenant_queue("acme", max_job=2)
    workers.start(2, worker_class=ours(kind))
    promised = []
    for n in range(60):
        job = jobs.quick.enqueue("acme", f"job{n}", observer.path, 0.05)
        wait_until(lambda job=job: fresh(job).state not in (State.WAITING, State.QUEUED))
        promised += [job] if job.cancel() else []
    observer.wait_for_all()
    assert promised, "all had ended before, nothing was tested"
    assert {fresh(job).state for job in promised} == {State.CANCELED}
    assert all_live(workers)
    assert counters_match()


@pytest.mark.parametrize(
    ("moment", "runs"),
    [
        ("tenant_slots.running.outbox:Outbox.put before", 2),
        ("tenant_slots.running.outbox:zlib.crc32 before", 2),  # the outcome is there, its header is not
        ("tenant_slots.running.outbox:Outbox.put after", 1),
        ("tenant_slots.workers.horses:Reins.report before", 1),
    ],
    ids=["before it says how", "while it says how", "after it said how", "before it reports"],
)
def test_i3_i4_a_work_horse_that_is_killed_around_the_end_of_its_job(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, kind: str, moment: str, runs: int
) -> None:
    armed = tmp_path / "armed"
    armed.touch()
    workers.start(1, worker_class=workers.with_sabotage(f"{moment} SIGKILL", armed, f"Sabotaged{kind}"))
    job = jobs.quick.enqueue("acme", "unlucky", observer.path)
    observer.wait_for_all()
    assert not armed.exists(), "nobody was killed"
    assert observer.started() == ["unlucky"] * runs
    assert (fresh(job).state, job.crashes) == (State.FINISHED, runs - 1)
    assert all_live(workers)


def test_control_a_worker_that_reads_what_is_not_whole_ends(
    workers: FaultWorkers, observer: Observer, tmp_path: Path
) -> None:
    observer.promise = NO_PROMISE
    armed = tmp_path / "armed"
    armed.touch()
    plan = "tests.faults.workers:put_content before SIGKILL"
    (worker,) = workers.start(1, worker_class=workers.with_sabotage(plan, armed, "GullibleWorker"))
    jobs.quick.enqueue("acme", "unlucky", observer.path)
    assert worker.wait(20) == 1


def test_i4_cancels_within_milliseconds_end_neither_a_worker_nor_a_job_that_nobody_meant(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    """Two jobs at a time, each of them canceled twice at once; the next ones of their tenants are to live."""
    workers.start(2, worker_class=ours(kind))
    meant, spared = [], []
    for n in range(25):
        victims = [jobs.hold.enqueue(tenant, f"{tenant}{n}", observer.path, str(door)) for tenant in "ab"]
        spared += [jobs.quick.enqueue(tenant, f"spared-{tenant}{n}", observer.path, 0.02) for tenant in "ab"]
        wait_until(lambda victims=victims: {fresh(job).state for job in victims} == {State.RUNNING})
        cancel_at_once(victims * 2)
        meant += victims
    observer.wait_for_all()
    assert {fresh(job).state for job in meant} == {State.CANCELED}
    assert all(map(ran_once, spared))
    assert all_live(workers)
    assert counters_match()


def cancel_at_once(wanted: list[TenantJob]) -> None:
    together = threading.Barrier(len(wanted))

    def cancel(pk: int) -> None:
        job = TenantJob.objects.get(pk=pk)
        together.wait()
        job.cancel()
        connection.close()

    threads = [threading.Thread(target=cancel, args=[job.pk]) for job in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
