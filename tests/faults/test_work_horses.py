"""Work-horses that cannot be forked, are killed around the end of a job, or are to be ended; and what jobs fork."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import django_rq
import pytest
from django.db import connection
from rq.job import JobStatus

from tenant_slots.models import State, TenantJob, rq_id_of
from tests.factories import counters_match, fresh, tenant_queue
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer, is_gone
from tests.faults.supervised import NO_PROMISE, all_live, leases_pass, of_tests, ours, ran_once
from tests.processes import is_announced, wait_until
from tests.processes import test_database_url as database_url

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


UNHEARD = {**SHORT, "BEAT_INTERVAL": 60, "LEASE_TTL": 180}
"""No heartbeat comes as long as the test lasts, which would find a cancel too."""


def test_i3_a_cancel_that_comes_before_rq_knows_of_the_run_ends_it_at_once(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, door: Path, kind: str
) -> None:
    job, horse = canceled_before_it_is_announced(workers, observer, tmp_path, door, f"Sabotaged{kind}")
    wait_until(lambda: fresh(job).state == State.CANCELED, 10)
    assert is_gone(horse)
    assert all_live(workers)


def test_control_where_nobody_looks_for_it_then_it_goes_on(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, door: Path
) -> None:
    job, horse = canceled_before_it_is_announced(workers, observer, tmp_path, door, "BlindWorker")
    wait_until(lambda: is_announced(job))
    leases_pass(1)
    assert not is_gone(horse)
    assert fresh(job).state == State.RUNNING


def canceled_before_it_is_announced(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, door: Path, worker_class: str
) -> tuple[TenantJob, int]:
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps(UNHEARD)
    with standing_still(workers, tmp_path, "Supervisor.announce", worker_class) as stands:
        job = jobs.hold.enqueue("acme", "promised", observer.path, str(door))
        horse = observer.process_of("promised")
        stands()
        assert job.cancel()
        assert not is_gone(horse), "somebody has ended it before, nothing was tested"
    return job, horse


def test_i3_a_cancel_that_was_promised_when_the_function_has_ended_already_is_kept(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, kind: str
) -> None:
    job = canceled_before_its_end_is_recorded(workers, observer, tmp_path, f"Sabotaged{kind}")
    assert job.state == State.CANCELED
    assert observer.ended("promised")
    assert all_live(workers)


def test_control_where_an_end_is_recorded_without_asking_for_it_it_is_not(
    workers: FaultWorkers, observer: Observer, tmp_path: Path
) -> None:
    job = canceled_before_its_end_is_recorded(workers, observer, tmp_path, "HeedlessWorker")
    assert job.state == State.FINISHED


def canceled_before_its_end_is_recorded(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str
) -> TenantJob:
    with standing_still(workers, tmp_path, "Supervisor._take_back", worker_class) as stands:
        job = jobs.quick.enqueue("acme", "promised", observer.path)
        stands()
        assert job.cancel()
    observer.wait_for_all()
    return fresh(job)  # type: ignore[no-any-return]


@contextmanager
def standing_still(workers: FaultWorkers, tmp_path: Path, step: str, worker_class: str) -> Iterator[Callable[[], None]]:
    """A worker that stands still before this step, for the rest of the block once it has been waited for."""
    armed = tmp_path / "armed"
    armed.touch()
    plan = f"tenant_slots.workers.supervisor:{step} before pause"
    workers.start(1, worker_class=workers.with_sabotage(plan, armed, worker_class))
    yield lambda: wait_until(armed.with_suffix(".done").exists, message="the worker has not come there")
    armed.with_suffix(".go").touch()


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


NAME = "inherited"
"""Of the database sessions of a test's workers."""

WAYS = list(jobs.HEIRS)


@pytest.mark.parametrize("kind", ["Worker", "PreforkWorker", "SimpleWorker"])
def test_i2_what_a_job_has_started_keeps_no_database_session_of_ours_open(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    """Nor the locks of its transaction, when worker and work-horse are dead."""
    with outlived_by_children(workers, observer, door, ours(kind), WAYS):
        wait_until(lambda: not sessions(), 10, "a child of a job keeps a session")


@pytest.mark.parametrize("way", [way for way in WAYS if way != "subprocess"])  # libpq has them closed in a new program
def test_control_a_child_that_forgets_nothing_does(
    workers: FaultWorkers, observer: Observer, door: Path, way: str
) -> None:
    with outlived_by_children(workers, observer, door, of_tests("Bequeathing"), [way]):
        leases_pass(1)
        assert sessions()


@contextmanager
def outlived_by_children(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str, ways: list[str]
) -> Iterator[None]:
    """In the block the worker of a job is dead, and so is its work-horse. What the job has started lives on."""
    observer.promise = NO_PROMISE
    url = database_url()
    workers.variables["DATABASE_URL"] = f"{url}{'&' if '?' in url else '?'}application_name={NAME}"
    workers.start(1, worker_class=worker_class)
    jobs.hold_with_heirs.enqueue("acme", "testator", observer.path, str(door), ways)
    horse = observer.process_of("testator")
    wait_until(lambda: len(jobs.children_of(observer.path)) == len(ways))
    children = jobs.children_of(observer.path)
    try:
        assert sessions()
        workers.kill()
        wait_until(lambda: is_gone(horse))
        yield
        assert not any(map(is_gone, children)), "they have died along, nothing was tested"
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()", [NAME]
        )
        return int(cursor.fetchone()[0])


def test_i4_i8_a_child_that_one_tenants_job_has_forked_says_nothing_of_anothers_whose_work_horse_was_killed(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, door: Path
) -> None:
    with outlived_by_the_child_of_another_job(workers, observer, tmp_path, door, ours("PreforkWorker")) as (job, child):
        wait_until(lambda: is_gone(child), message="it goes on")
    observer.process_of("killed", run=2)
    door.touch()
    observer.wait_for_all()
    assert (fresh(job).state, job.attempt, job.crashes, job.result) == (State.FINISHED, 2, 1, None)
    first = django_rq.get_queue("imports").fetch_job(first_rq_id(job))
    assert (first.get_status(), first.return_value()) == (JobStatus.FAILED, None)
    assert all_live(workers)


def test_control_where_nobody_tells_them_apart_it_delivers_its_own_end_as_the_others(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, door: Path
) -> None:
    armed = tmp_path / "armed"
    plan = "tenant_slots.workers.horses:Reins.report after SIGCONT"
    worker_class = workers.with_sabotage(plan, armed, "UnguardedPreforkWorker")
    with outlived_by_the_child_of_another_job(workers, observer, tmp_path, door, worker_class) as (job, _):
        armed.touch()
        wait_until(armed.with_suffix(".done").exists, message="the child has reported nothing")
    queue = django_rq.get_queue("imports")
    wait_until(lambda: queue.fetch_job(first_rq_id(job)).return_value() == jobs.OF_CHILD)
    door.touch()
    observer.wait_for_all()


def first_rq_id(job: TenantJob) -> str:
    return rq_id_of(job.uuid, 1, "")


@contextmanager
def outlived_by_the_child_of_another_job(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, door: Path, worker_class: str
) -> Iterator[tuple[TenantJob, int]]:
    """In the block a work-horse is dead, and its worker, which stands still, does not know it yet.

    Gives the job that has run there, and a child of the job before, of another tenant, which comes to the end of its
    function then: a daemon, for which no work-horse is replaced, and that has all that the work-horse had.
    """
    gate = tmp_path / "gate"
    workers.start(1, worker_class=worker_class)
    jobs.leave_a_child.enqueue("a", "parent", observer.path, str(gate))
    observer.wait_for_all()
    wait_until(lambda: jobs.children_of(observer.path))
    (child,) = jobs.children_of(observer.path)
    job = jobs.hold.enqueue("b", "killed", observer.path, str(door))
    try:
        horse = observer.process_of("killed")
        assert horse == observer.process_of("parent"), "each has run in a process of its own, nothing was tested"
        wait_until(lambda: is_announced(job))
        workers.kill(0, signal.SIGSTOP)
        os.kill(horse, signal.SIGKILL)
        gate.touch()
        yield job, child
    finally:
        workers.kill(0, signal.SIGCONT)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_i4_of_a_plain_job_whose_work_horse_died_before_it_began_nothing_is_left_for_rq_to_run_again(
    workers: FaultWorkers, tmp_path: Path, kind: str
) -> None:
    """It fails what it finds in its intermediate list for a minute, or has it run again, though it may have ended."""
    armed = tmp_path / "armed"
    plan = "tenant_slots.workers.riding:RidingWorker._perform_as_rq before SIGKILL"
    workers.start(1, worker_class=workers.with_sabotage(plan, armed, f"Sabotaged{kind}"))
    armed.touch()
    queue = django_rq.get_queue("imports")
    rq_job = queue.enqueue(jobs.quick, "acme", "killed", str(tmp_path / "history"))
    wait_until(lambda: rq_job.get_status() == JobStatus.FAILED)
    assert not queue.intermediate_queue.get_job_ids()
