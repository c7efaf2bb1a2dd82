"""A job that has returned is not run again because its process cannot leave its end where its worker looks for it.

Each of these is what code does that builds a sandbox or a daemon. None ends the process.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from tenant_slots import tenant_job
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.factories import counters_match, fresh
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer, observed
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

FIRST_OF_OTHERS = 3
"""Descriptor after those of standard input, output and errors."""


def let_no_files_be_written(path: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def let_no_files_be_written_for_good(path: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def close_all_files(path: str) -> None:
    os.closerange(FIRST_OF_OTHERS, 4096)


def give_their_numbers_to_others(path: str) -> None:
    close_all_files(path)
    for number in range(60):
        os.open(f"{path}_{number}", os.O_CREAT | os.O_RDWR)


WAYS = {
    function.__name__: function
    for function in (
        let_no_files_be_written,
        let_no_files_be_written_for_good,
        close_all_files,
        give_their_numbers_to_others,
    )
}


def note_success(job: TenantJob, result: object) -> None:
    """Where its session is not closed."""
    TenantQueue.objects.create(tenant=f"{job.args[1]} has succeeded", queue="reports")


@tenant_job("imports", tenant="tenant", on_success=note_success)
def sandboxed(tenant: str, name: str, history: str, way: str, path: str) -> None:
    with observed(history, tenant, name):
        pass
    WAYS[way](path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["TenantWorker", "TenantPreforkWorker"])
def test_i10_a_job_that_has_returned_is_finished_after_one_run(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, name: str, way: str
) -> None:
    (worker,) = workers.start(1, worker_class=f"tenant_slots.workers.{name}")
    first = sandboxed.enqueue("acme", "once", observer.path, way, str(tmp_path / "own"))
    wait_until(lambda: fresh(first).has_ended)
    assert (first.state, first.attempt, len(observer.starts("once"))) == (State.FINISHED, 1, 1), first.error
    assert [path.name for path in tmp_path.glob("own_*") if path.stat().st_size] == [], "the job's own files"
    if "written" in way:
        wait_until(TenantQueue.objects.filter(tenant="once has succeeded").exists)
    following = sandboxed.enqueue("acme", "next", observer.path, way, str(tmp_path / "next"))
    wait_until(lambda: fresh(following).state == State.FINISHED)
    assert worker.poll() is None
    assert counters_match()


def take_two_leases(job: TenantJob, came_of_it: object) -> None:
    time.sleep(2 * SHORT["LEASE_TTL"])
    TenantQueue.objects.create(tenant=f"{job.args[1]} was told", queue="reports")


@tenant_job("imports", tenant="tenant", on_success=take_two_leases, on_failure=take_two_leases)
def sandboxed_with_slow_callbacks(tenant: str, name: str, history: str, fails: bool) -> None:
    with observed(history, tenant, name):
        pass
    let_no_files_be_written_for_good("")
    if fails:
        raise ValueError(name)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", ["TenantWorker", "TenantPreforkWorker"])
def test_i10_a_run_that_has_recorded_its_end_itself_is_not_killed_while_its_callback_takes_longer_than_a_lease(
    workers: FaultWorkers, observer: Observer, name: str, fails: bool
) -> None:
    workers.start(1, worker_class=f"tenant_slots.workers.{name}")
    job = sandboxed_with_slow_callbacks.enqueue("acme", "once", observer.path, fails)
    wait_until(TenantQueue.objects.filter(tenant="once was told").exists)
    assert fresh(job).state == (State.FAILED if fails else State.FINISHED)
    assert (job.crashes, len(observer.starts("once"))) == (0, 1)
