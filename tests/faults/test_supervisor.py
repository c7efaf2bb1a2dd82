"""Workers that hand jobs to work-horses: what hangs, ends or dies around them must neither kill nor repeat a run."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django
import django_rq
import pytest
from django.contrib.auth.models import Group
from django.db import connection

from tenant_slots.models import State, TenantJob
from tests.factories import admit, counters_match, fresh, tenant_queue, waiting_job
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer, is_gone
from tests.faults.servers import Postgres
from tests.faults.supervised import (
    LEASE,
    NO_PROMISE,
    UNTIL_JUDGED,
    all_live,
    leases_pass,
    locked_by_somebody,
    of_tests,
    ours,
    ran_once,
)
from tests.processes import _children, is_announced, wait_until
from tests.processes import test_database_url as database_url

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about sessions and locks of PostgreSQL"),
]


def test_i1_i4_a_job_that_locks_its_own_row_for_leases_is_neither_killed_nor_run_again(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    job, _ = holding_its_own_row(workers, observer, door, ours(kind))
    leases_pass(3)
    assert TenantJob.objects.stale().filter(pk=job.pk).exists(), "its heartbeats were not kept out, nothing was tested"
    door.touch()
    observer.wait_for_all()
    assert ran_once(job)
    assert all_live(workers)


def test_control_where_heartbeats_alone_count_it_is_killed_and_runs_again(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    job, horse = holding_its_own_row(workers, observer, door, of_tests("Rash"))
    observer.process_of("locks", run=2)
    door.touch()
    observer.wait_for_all()
    assert is_gone(horse)
    assert fresh(job).crashes + job.interruptions


def holding_its_own_row(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str
) -> tuple[TenantJob, int]:
    """The job, and the process that runs it. Another worker has nothing to do but to sweep."""
    workers.start(2, worker_class=worker_class)
    job = jobs.hold_own_row.enqueue("acme", "locks", observer.path, str(door))
    return job, observer.process_of("locks")


def test_i1_i3_i4_away_for_longer_than_a_lease_while_jobs_of_three_workers_run_and_end(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    held = three_end_while_it_is_away(postgres, workers, observer, door, ours(kind))
    postgres.start()
    connection.close()
    observer.wait_for_all()
    assert all(map(ran_once, held))
    assert sorted(observer.started()) == ["a", "b", "c"]
    assert all_live(workers)
    assert counters_match()


@pytest.mark.parametrize("left", [0, 1])
def test_i1_i3_i4_a_job_that_ends_while_its_worker_can_open_no_more_files_is_recorded_later(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str, left: int
) -> None:
    """By a limit of its own, or as the whole host has none. With one left the driver may fail after the library."""
    (worker,) = workers.start(1, worker_class=ours(kind))
    job = jobs.hold.enqueue("acme", "held", observer.path, str(door))
    observer.process_of("held")
    wait_until(lambda: is_announced(job))
    with files_left(worker.pid, left):
        door.touch()
        wait_until(lambda: observer.ended("held"))
        leases_pass(1)
        assert left or fresh(job).state == State.RUNNING, "it could be recorded, nothing was tested"
    observer.wait_for_all()
    assert ran_once(job)
    assert all_live(workers)
    assert counters_match()


@contextmanager
def files_left(pid: int, left: int) -> Iterator[None]:
    """Those that are open stay so."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (sorted(set(range(soft)) - taken)[left], hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_control_where_sweeps_judge_right_after_it_what_has_ended_runs_again(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """One worker stands still when the database comes back, as it does on a busy machine: its heartbeats come later."""
    held = three_end_while_it_is_away(postgres, workers, observer, door, of_tests("Hasty"))
    late = workers.processes[0].pid
    (name,) = [event.name for event in observer.events() if event.kind == f"under-{late}"]
    workers.kill(0, signal.SIGSTOP)
    postgres.start()
    connection.close()
    observer.process_of(name, run=2)
    workers.kill(0, signal.SIGCONT)
    observer.wait_for_all()
    assert sum(fresh(job).interruptions for job in held) >= 1


def three_end_while_it_is_away(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, door: Path, worker_class: str
) -> list[TenantJob]:
    """Jobs of three workers, and the database is away for more than a lease before they end, and after that."""
    workers.start(3, worker_class=worker_class)
    held = [jobs.hold.enqueue(tenant, tenant, observer.path, str(door)) for tenant in "abc"]
    for tenant in "abc":
        observer.process_of(tenant)
    postgres.stop()
    leases_pass(1.5)
    door.touch()
    wait_until(lambda: all(map(observer.ended, "abc")))
    leases_pass(1.5)
    return held


def test_i3_i4_an_end_that_the_database_does_not_take_is_kept_while_the_worker_goes_on(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    """It goes on with a plain RQ job, which needs no database."""
    job = one_ends_while_it_is_away(postgres, workers, observer, door, ours(kind))
    wait_until(lambda: observer.ended("plain"), message="the worker waits for the database")
    leases_pass(2)
    postgres.start()
    connection.close()
    observer.wait_for_all()
    assert ran_once(job)
    assert observer.started() == ["kept", "plain"]
    assert all_live(workers)


def test_control_a_worker_that_waits_for_the_database_with_an_end_does_not_go_on(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    job = one_ends_while_it_is_away(postgres, workers, observer, door, of_tests("Waiting"))
    leases_pass(1.5)
    assert observer.started() == ["kept"]
    postgres.start()
    connection.close()
    wait_until(lambda: observer.ended("plain"))
    assert ran_once(job)


def test_control_an_end_that_nobody_keeps_is_that_of_a_lost_run_and_the_job_runs_again(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    job = one_ends_while_it_is_away(postgres, workers, observer, door, of_tests("Forgetting"))
    wait_until(lambda: observer.ended("plain"))
    postgres.start()
    connection.close()
    observer.wait_for_all(UNTIL_JUDGED)
    assert observer.started() == ["kept", "plain", "kept"]
    assert fresh(job).interruptions == 1


def one_ends_while_it_is_away(
    postgres: Postgres, workers: FaultWorkers, observer: Observer, door: Path, worker_class: str
) -> TenantJob:
    """A tenant's job, that is. A plain one is next, and there is one worker for both."""
    workers.start(1, worker_class=worker_class)
    job = jobs.hold.enqueue("acme", "kept", observer.path, str(door))
    observer.process_of("kept")
    postgres.stop()
    door.touch()
    wait_until(lambda: observer.ended("kept"))
    django_rq.get_queue("imports").enqueue(jobs.not_a_tenants, observer.path, "plain", str(door))
    return job


def test_i4_i8_a_locked_tenant_queue_at_the_end_of_a_job_holds_up_neither_others_nor_repeats_it(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    with two_end_behind_a_lock(workers, observer, door, ours(kind)) as stuck:
        others = [jobs.quick.enqueue("other", f"other{n}", observer.path) for n in range(5)]
        wait_until(lambda: all(fresh(job).has_ended for job in others), 10, "others wait for the lock on one tenant")
        leases_pass(3)
        assert {fresh(job).state for job in stuck} == {State.RUNNING}
    observer.wait_for_all()
    assert all(map(ran_once, [*stuck, *others]))
    assert all_live(workers)


def test_control_workers_that_wait_for_such_a_lock_hold_up_others(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    with two_end_behind_a_lock(workers, observer, door, of_tests("Waiting")):
        jobs.quick.enqueue("other", "other", observer.path)
        leases_pass(1.5)
        assert "other" not in observer.started()
    observer.wait_for_all()


def test_control_ends_that_are_not_kept_behind_such_a_lock_are_repeated(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    with two_end_behind_a_lock(workers, observer, door, of_tests("Forgetting")) as stuck:
        leases_pass(1.5)
    observer.wait_for_all(UNTIL_JUDGED)
    assert len(observer.started()) > len(stuck)
    assert {fresh(job).interruptions for job in stuck} == {1}


@contextmanager
def two_end_behind_a_lock(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str
) -> Iterator[list[TenantJob]]:
    """In the block jobs of one tenant, one of each worker, have ended, and somebody has locked its tenant queue."""
    row = tenant_queue("stuck", max_job=2)
    workers.start(2, worker_class=worker_class)
    names = ["stuck0", "stuck1"]
    stuck = [jobs.hold.enqueue("stuck", name, observer.path, str(door)) for name in names]
    for name in names:
        observer.process_of(name)
    with locked_by_somebody(row):
        door.touch()
        wait_until(lambda: all(map(observer.ended, names)))
        yield stuck


def test_i10_an_end_that_is_kept_is_recorded_before_a_worker_that_leaves_tells_redis(
    workers: FaultWorkers, observer: Observer, door: Path, tmp_path: Path, kind: str
) -> None:
    """A Redis that does not answer may take longer than a service manager waits before it kills."""
    armed = tmp_path / "armed"
    armed.touch()
    plan = "rq.worker:BaseWorker.register_death before SIGKILL"
    row = tenant_queue("stuck")
    (worker,) = workers.start(1, worker_class=workers.with_sabotage(plan, armed, f"Sabotaged{kind}"))
    job = jobs.hold.enqueue("stuck", "kept", observer.path, str(door))
    observer.process_of("kept")
    with locked_by_somebody(row):
        worker.terminate()
        door.touch()
        wait_until(lambda: observer.ended("kept"))
        with suppress(subprocess.TimeoutExpired):
            worker.wait(4)
        assert fresh(job).state == State.RUNNING, "its end was recorded before, nothing was tested"
    assert worker.wait(20) == -signal.SIGKILL
    workers.start(1, worker_class=ours(kind))
    observer.wait_for_all()
    assert ran_once(job)
    assert observer.started() == ["kept"]


def test_i3_a_module_that_exits_when_it_is_imported_fails_its_jobs_by_their_policy_and_ends_no_worker(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, kind: str
) -> None:
    module(workers, tmp_path, "exits_at_import", "import sys\nsys.exit(3)\n")
    workers.start(2, worker_class=ours(kind))
    once = admitted("once", "exits_at_import.run")
    twice = admitted("twice", "exits_at_import.run", options={"retry": {"max": 1, "intervals": [0]}})
    jobs.quick.enqueue("acme", "after", observer.path)
    observer.wait_for_all()
    assert (fresh(once).state, once.attempt, once.failures, once.crashes) == (State.FAILED, 1, 1, 0)
    assert (fresh(twice).state, twice.attempt, twice.failures, twice.crashes) == (State.FAILED, 2, 2, 0)
    assert "SystemExit: 3" in once.error
    assert all_live(workers)


def test_control_a_worker_that_imports_it_itself_ends(
    workers: FaultWorkers, observer: Observer, tmp_path: Path
) -> None:
    observer.promise = NO_PROMISE
    module(workers, tmp_path, "exits_at_import", "import sys\nsys.exit(3)\n")
    (worker,) = workers.start(1, worker_class=of_tests("Importing"))
    job = admitted("once", "exits_at_import.run")
    assert worker.wait(20) is not None
    assert fresh(job).failures == 0, "it has failed by its policy"


def module(workers: FaultWorkers, directory: Path, name: str, source: str) -> None:
    """A module that only the workers find."""
    (directory / f"{name}.py").write_text(source)
    path = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    workers.variables["PYTHONPATH"] = os.pathsep.join(path)


def admitted(tenant: str, task: str, args: tuple[Any, ...] = (), **values: Any) -> TenantJob:
    """A job of a task that this process does not know, in its slot and in RQ."""
    row = tenant_queue(tenant)
    job = waiting_job(row, **values)
    TenantJob.objects.filter(pk=job.pk).update(task=task, args=list(args))
    assert admit(row)
    return job


SLOW = """
import os, time
from tenant_slots import tenant_job
from tests.faults.observer import observed
time.sleep(float(os.environ["TEST_SECONDS_TO_IMPORT"]))

@tenant_job("imports", tenant="tenant")
def run(tenant, name, history):
    with observed(history, tenant, name):
        pass
"""


def test_i1_i4_a_module_whose_import_takes_leases_kills_nobody(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, kind: str
) -> None:
    job = imported_for_leases(workers, observer, tmp_path, ours(kind))
    observer.wait_for_all()
    assert (fresh(job).ended_at - job.started_at).total_seconds() > 2 * LEASE, "it was quick, nothing was tested"
    assert ran_once(job)
    assert all_live(workers)


def test_i1_i4_a_receiver_of_the_start_that_takes_leases_kills_nobody(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, kind: str
) -> None:
    job = heard_for_leases(workers, observer, tmp_path, of_tests("SlowToHear", kind))
    observer.wait_for_all()
    assert (fresh(job).ended_at - job.started_at).total_seconds() >= 2 * LEASE, "nobody heard, nothing was tested"
    assert ran_once(job)
    assert all_live(workers)


def imported_for_leases(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str, number: float = 2.5
) -> TenantJob:
    module(workers, tmp_path, "slow_to_import", SLOW)
    workers.variables["TEST_SECONDS_TO_IMPORT"] = str(number * LEASE)
    workers.start(2, worker_class=worker_class)
    return admitted("acme", "slow_to_import.run", ("acme", "slow", observer.path))


def heard_for_leases(
    workers: FaultWorkers, observer: Observer, _: Path, worker_class: str, number: float = 2
) -> TenantJob:
    workers.variables["TEST_SECONDS_TO_HEAR"] = str(number * LEASE)
    workers.start(2, worker_class=worker_class)
    return jobs.quick.enqueue("acme", "heard", observer.path)


@pytest.mark.parametrize(("begin", "name"), [(imported_for_leases, "Mute"), (heard_for_leases, "MuteSlowToHear")])
def test_control_without_heartbeats_before_its_function_is_called_its_work_horse_is_killed(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, begin: Callable[..., TenantJob], name: str
) -> None:
    job = begin(workers, observer, tmp_path, of_tests(name), number=UNTIL_JUDGED / LEASE)
    wait_until(lambda: fresh(job).interruptions == 1, UNTIL_JUDGED)
    assert "sent no heartbeat" in job.error
    assert observer.started() == []


def test_i2_i3_the_scheduler_of_a_worker_that_was_killed_inside_a_release_keeps_no_lock(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, kind: str
) -> None:
    with killed_inside_a_release(workers, observer, tmp_path, f"Sabotaged{kind}") as job:
        workers.start(1, worker_class=ours(kind))
        observer.wait_for_all(15)
        assert (fresh(job).state, job.interruptions) == (State.FINISHED, 1)


def test_control_a_scheduler_that_keeps_what_it_has_inherited_keeps_the_lock(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, kind: str
) -> None:
    observer.promise = NO_PROMISE
    with killed_inside_a_release(workers, observer, tmp_path, f"Inheriting{kind}") as job:
        workers.start(1, worker_class=ours(kind))
        leases_pass(2.5)
        assert fresh(job).state == State.RUNNING
    observer.wait_for_all()


@contextmanager
def killed_inside_a_release(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str
) -> Iterator[TenantJob]:
    """In the block the worker is dead, and the scheduler that it has forked lives on."""
    armed = tmp_path / "armed"
    plan = "tenant_slots.moves:leave_at_once after worker-SIGKILL"
    workers.variables["TEST_STEP_BY_STEP"] = "yes"  # one statement leaves no transaction open in between
    workers.variables["TEST_STANDSTILL"] = "yes"  # or the server would end the session half a lease later
    workers.variables["TEST_ANNOUNCED_AFTER"] = "60"  # until then the worker keeps the session that it has begun with
    (unlucky,) = workers.start(1, "--with-scheduler", worker_class=workers.with_sabotage(plan, armed, worker_class))
    scheduler = scheduler_of(unlucky.pid)
    armed.touch()
    job = jobs.quick.enqueue("acme", "unlucky", observer.path)
    try:
        unlucky.wait(20)
        assert not is_gone(scheduler), "no scheduler has outlived its worker, nothing was tested"
        yield job
    finally:
        os.kill(scheduler, signal.SIGKILL)


def scheduler_of(worker: int) -> int:
    """The child that leads no group of its own, as whatever else the worker forks does."""

    def found() -> list[int]:
        return [child for child in _children(worker) if os.getpgid(child) == os.getpgid(worker)]

    wait_until(found, message="no scheduler started")
    return found()[0]


NAME = "counted"
"""Of the sessions of a test's workers."""


def named_sessions(workers: FaultWorkers) -> None:
    url = database_url()
    workers.variables["DATABASE_URL"] = f"{url}{'&' if '?' in url else '?'}application_name={NAME}"


def lasting_sessions() -> int:
    """Those of the workers that are not a sweep's, which is given up before it is as old as a lease."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()"
            " AND backend_start < clock_timestamp() - make_interval(secs => %s)",
            [NAME, SHORT["LEASE_TTL"]],
        )
        return int(cursor.fetchone()[0])


without_pools = pytest.mark.skipif(
    find_spec("psycopg_pool") is None or django.VERSION < (5, 1), reason="needs psycopg[pool] and Django 5.1"
)
"""Not installed with every combination of versions."""


@pytest.mark.parametrize("size", [pytest.param(4, marks=without_pools, id="pool"), pytest.param(1, id="no pool")])
@pytest.mark.parametrize("leave", ["atomic", "autocommit"])
def test_i3_a_transaction_that_a_job_leaves_open_is_not_committed_by_the_next_job(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str, leave: str, size: int
) -> None:
    if size > 1:
        workers.variables["TEST_DATABASE_POOL"] = json.dumps({"min_size": size, "max_size": size})
    leave_half_a_transaction(workers, observer, ours(kind), leave)
    assert set(Group.objects.values_list("name", flat=True)) == {"first", "whole"}
    holding = jobs.hold_with_session.enqueue("a", "holding", observer.path, str(door))
    observer.process_of("holding")
    wait_until(lambda: lasting_sessions() >= size, message="the job has no pool, nothing was tested")
    leases_pass(2)
    assert lasting_sessions() <= size + 1, "the worker keeps a pool of its own"
    door.touch()
    observer.wait_for_all()
    assert fresh(holding).state == State.FINISHED
    assert all_live(workers)


@pytest.mark.parametrize("leave", ["atomic", "autocommit"])
def test_control_where_nobody_tidies_up_it_swallows_what_the_next_job_writes(
    workers: FaultWorkers, observer: Observer, leave: str
) -> None:
    leave_half_a_transaction(workers, observer, of_tests("Negligent", "PreforkWorker"), leave)
    assert set(Group.objects.values_list("name", flat=True)) == {"first"}


def leave_half_a_transaction(workers: FaultWorkers, observer: Observer, worker_class: str, leave: str) -> None:
    named_sessions(workers)
    workers.start(1, worker_class=worker_class)
    for tenant, name, left in (("a", "first", ""), ("a", "half", leave), ("b", "whole", "")):
        jobs.write.enqueue(tenant, name, observer.path, left)
        observer.wait_for_all()


KILLED = ["horse", "worker", "stopped worker"]


@pytest.mark.parametrize("killed", KILLED)
def test_i1_what_a_job_has_started_is_dead_before_it_runs_again(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str, killed: str
) -> None:
    job = run_again_when_killed(workers, observer, door, ours(kind), killed)
    assert kinds(observer, "left-") == ["left-0", "left-0"]
    door.touch()
    observer.wait_for_all()
    assert all(map(is_gone, jobs.children_of(observer.path)))
    assert fresh(job).state == State.FINISHED
    workers.kill(0, signal.SIGCONT)
    assert all_live(workers) == (killed != "worker"), "only the work-horse is to be killed"


@pytest.mark.parametrize("killed", KILLED)
def test_control_where_its_process_alone_is_killed_what_it_has_started_lives_beside_the_second_run(
    workers: FaultWorkers, observer: Observer, door: Path, killed: str
) -> None:
    run_again_when_killed(workers, observer, door, of_tests("Sparing"), killed)
    assert kinds(observer, "left-") == ["left-0", "left-2"]
    for child in jobs.children_of(observer.path):
        os.kill(child, signal.SIGKILL)


def run_again_when_killed(
    workers: FaultWorkers, observer: Observer, door: Path, worker_class: str, killed: str
) -> TenantJob:
    """A job that has started two children, one way or the other: it runs again, and has looked for them."""
    workers.start(1, worker_class=worker_class)
    job = jobs.hold_with_children.enqueue("acme", "parent", observer.path, str(door))
    horse = observer.process_of("parent")
    wait_until(lambda: "left-0" in kinds(observer))
    children = jobs.children_of(observer.path)
    assert len(children) == 2
    assert not any(map(is_gone, children))
    if killed == "horse":
        os.kill(horse, signal.SIGKILL)
    else:
        wait_until(lambda: fresh(job).horse == horse, 10, "nobody knows the group of the work-horse")
        workers.start(1, worker_class=worker_class)
        workers.kill(0, signal.SIGKILL if killed == "worker" else signal.SIGSTOP)
    observer.process_of("parent", run=2)
    wait_until(lambda: len(kinds(observer, "left-")) == 2)
    return job


def kinds(observer: Observer, start: str = "") -> list[str]:
    return [event.kind for event in observer.events() if event.kind.startswith(start)]


def test_i1_i4_a_work_horse_that_the_kernel_has_spared_is_dead_before_its_job_runs_again(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    """As it does with one whose job has changed its user or group."""
    workers.start(1, worker_class=ours(kind))
    job = jobs.hold_at_large.enqueue("acme", "spared", observer.path, str(door), "the kernel")
    horse = observer.process_of("spared")
    wait_until(lambda: fresh(job).horse == horse)
    workers.kill()
    assert not is_gone(horse)
    workers.start(1, worker_class=ours(kind))
    observer.process_of("spared", run=2)
    assert is_gone(horse)
    door.touch()
    observer.wait_for_all()
    assert (fresh(job).attempt, job.interruptions) == (2, 1)


def test_i4_a_worker_takes_along_a_warm_work_horse_that_the_kernel_would_spare_for_an_earlier_job(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """That one has changed its user for a while, so that the kernel has forgotten; this one is another tenant's."""
    workers.start(1, worker_class=ours("PreforkWorker"))
    door.touch()
    jobs.hold_at_large.enqueue("other", "spared", observer.path, str(door), "the kernel")
    observer.wait_for_all()
    door.unlink()
    jobs.hold.enqueue("acme", "next", observer.path, str(door))
    horse = observer.process_of("next")
    assert horse == observer.process_of("spared")
    workers.kill()
    wait_until(lambda: is_gone(horse), timeout=5, message="the work-horse has outlived its worker")
    workers.start(1, worker_class=ours("PreforkWorker"))
    observer.process_of("next", run=2)


def test_i2_a_canceled_job_whose_process_has_left_its_group_is_ended(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    workers.start(1, worker_class=ours(kind))
    job = jobs.hold_at_large.enqueue("acme", "apart", observer.path, str(door), "its group")
    horse = observer.process_of("apart")
    assert job.cancel()
    observer.wait_for_all()
    assert fresh(job).state == State.CANCELED
    assert is_gone(horse)
    assert all_live(workers)


def test_i2_i3_a_worker_that_was_started_by_somebody_who_ignores_the_ends_of_children_waits_for_its_own(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        workers.start(1, worker_class=ours(kind))
    finally:
        signal.signal(signal.SIGCHLD, before)
    job = jobs.hold.enqueue("acme", "killed", observer.path, str(door))
    os.kill(observer.process_of("killed"), signal.SIGKILL)
    observer.process_of("killed", run=2)
    door.touch()
    observer.wait_for_all()
    assert (fresh(job).attempt, job.crashes) == (2, 1)
    assert all_live(workers)


def test_a_worker_and_its_work_horse_have_two_database_sessions_while_a_job_lasts(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    named_sessions(workers)
    workers.start(1, worker_class=ours(kind))
    job = jobs.hold_with_session.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    seen: list[int] = []
    wait_until(lambda: seen.append(lasting_sessions()) or lasted(job) > 3 * SHORT["LEASE_TTL"])
    assert max(seen) == 2, "the heartbeats' and the job's"
    door.touch()
    observer.wait_for_all()


def test_a_worker_and_its_work_horse_have_two_database_sessions_while_jobs_are_short(
    workers: FaultWorkers, observer: Observer
) -> None:
    """Of a work-horse that keeps its session: a new one for each job is gone before anybody looks twice."""
    named_sessions(workers)
    rows = [jobs.ask_database.enqueue("acme", f"short{n}", observer.path) for n in range(20)]
    workers.start(1, worker_class=ours("PreforkWorker"))
    seen: list[int] = []
    began = time.monotonic()
    while time.monotonic() - began < 3 * SHORT["LEASE_TTL"]:
        if TenantJob.objects.waiting().count() < 20:  # no more than the worker runs, however slow it is
            rows.append(jobs.ask_database.enqueue("acme", f"short{len(rows)}", observer.path))
        seen.append(lasting_sessions())
    observer.wait_for_all()
    assert max(seen) == 2, "the worker's and the jobs'"


def lasted(job: TenantJob) -> float:
    beat_at, started_at = TenantJob.objects.filter(pk=job.pk).values_list("beat_at", "started_at").get()
    return float((beat_at - started_at).total_seconds())
