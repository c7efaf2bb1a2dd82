"""What a job leaves in the driver's connection, or in Django's object of it, neither its end nor the next job meets."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from django.db import connection

from tenant_slots.db import leftovers
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.factories import counters_match
from tests.processes import Workers, wait_until
from tests.workers import driver_jobs

PREFORK = "tenant_slots.workers.TenantPreforkWorker"
SIMPLE = "tenant_slots.workers.TenantSimpleWorker"
STOCK = "rq.Worker"
STOCK_SIMPLE = "rq.SimpleWorker"

pytestmark = pytest.mark.skipif(connection.vendor != "postgresql", reason="psycopg's connections")


@pytest.mark.parametrize("worker_class", [PREFORK, SIMPLE])
def test_a_job_does_not_suffer_from_what_another_one_left(workers: Workers, worker_class: str) -> None:
    kinds = [kind for kind in driver_jobs.LEFT if kind != "copy"]
    before = driver_jobs.innocent.enqueue("acme", "before")
    pairs = {
        kind: (driver_jobs.leave.enqueue("acme", kind), driver_jobs.innocent.enqueue("acme", f"after {kind}"))
        for kind in kinds
    }
    code = workers.run("--burst", worker_class=worker_class).returncode
    assert (code, _ends(before)) == (0, [(State.FINISHED, 1, "")])
    assert {kind: _ends(*pair) for kind, pair in pairs.items()} == dict.fromkeys(kinds, [(State.FINISHED, 1, "")] * 2)
    assert {kind: _isolation_level(after) for kind, (_, after) in pairs.items()} == dict.fromkeys(
        kinds, _isolation_level(before)
    )
    names = ["before", *(f"after {kind}" for kind in kinds)]
    written = set(TenantQueue.objects.filter(queue="reports").values_list("tenant", flat=True))
    assert written == {f"{how} {name}" for how in ("plain", "atomic") for name in names}
    assert counters_match()


def _ends(*jobs: TenantJob) -> list[tuple[str, int, str]]:
    ended = [TenantJob.objects.get(pk=job.pk) for job in jobs]
    return [(job.state, job.attempt, job.error[-200:]) for job in ended]


def _isolation_level(innocent: TenantJob) -> str:
    level: str = TenantJob.objects.get(pk=innocent.pk).result[1]
    return level


@pytest.mark.parametrize("worker_class", [SIMPLE, STOCK_SIMPLE, STOCK])
def test_neither_an_end_nor_the_next_start_is_recorded_in_a_block_that_a_job_left_open(
    workers: Workers, worker_class: str, capfd: Any
) -> None:
    kinds = ["pipeline", "transaction block", "two phases"]
    pairs = {
        kind: (driver_jobs.leave.enqueue("acme", kind), driver_jobs.innocent.enqueue(f"other {kind}", f"after {kind}"))
        for kind in kinds
    }
    workers.run("--burst", worker_class=worker_class)
    assert {kind: _ends(*pair) for kind, pair in pairs.items()} == dict.fromkeys(kinds, [(State.FINISHED, 1, "")] * 2)
    assert "Traceback" not in capfd.readouterr().err
    assert counters_match()


@pytest.mark.parametrize("worker_class", [SIMPLE, STOCK, PREFORK])
@pytest.mark.parametrize("how", ["copy", "stream"])
def test_a_slot_comes_back_from_a_job_that_leaves_a_copy_or_a_stream(
    workers: Workers, how: str, worker_class: str
) -> None:
    """The driver's lock is held, for which whoever records the end in the same session would wait for ever."""
    job = (
        driver_jobs.leave.enqueue("acme", "copy") if how == "copy" else driver_jobs.fail_while_streaming.enqueue("acme")
    )
    workers.start(worker_class=worker_class)
    try:
        wait_until(lambda: TenantJob.objects.get(pk=job.pk).has_ended, 20)
    finally:
        for process in workers.processes:
            process.kill()
    assert counters_match()


@pytest.mark.parametrize("worker_class", [PREFORK, SIMPLE])
@pytest.mark.parametrize("how", ["closed", "terminated"])
def test_nobody_says_that_something_was_rolled_back_which_was_not(
    workers: Workers, how: str, worker_class: str, capfd: Any
) -> None:
    job = driver_jobs.lose_session.enqueue("acme", how)
    assert workers.run("--burst", worker_class=worker_class).returncode == 0
    assert TenantJob.objects.get(pk=job.pk).state == State.FINISHED
    assert TenantQueue.objects.filter(tenant="committed").exists()
    assert "left a transaction open" not in capfd.readouterr().err


def test_an_end_is_recorded_under_a_stock_worker_whose_job_left_a_plain_begin(workers: Workers) -> None:
    job = driver_jobs.leave_begin_open.enqueue("acme")
    workers.run("--burst", worker_class=STOCK)
    assert TenantJob.objects.get(pk=job.pk).state == State.FINISHED
    assert counters_match()


def test_a_job_under_a_simple_worker_runs_once_although_it_left_a_wrapper(workers: Workers) -> None:
    job = driver_jobs.leave.enqueue("acme", "execute_wrapper")
    workers.run("--burst", worker_class=SIMPLE)
    workers.start(worker_class="tenant_slots.workers.TenantWorker")
    wait_until(lambda: TenantJob.objects.get(pk=job.pk).has_ended)
    ended = TenantJob.objects.get(pk=job.pk)
    assert (ended.state, ended.attempt, ended.interruptions) == (State.FINISHED, 1, 0)


def test_a_job_under_a_stock_worker_runs_once_although_it_left_a_begin(workers: Workers) -> None:
    job = driver_jobs.leave_begin_open.enqueue("acme")
    workers.run("--burst", worker_class=STOCK)
    workers.start(worker_class="tenant_slots.workers.TenantWorker")
    wait_until(lambda: TenantJob.objects.get(pk=job.pk).has_ended)
    ended = TenantJob.objects.get(pk=job.pk)
    assert (ended.state, ended.attempt, ended.crashes, ended.interruptions) == (State.FINISHED, 1, 0, 0)


def test_to_note_sessions_for_each_job_leaves_nothing_behind() -> None:
    """Each job has its worker do so, for as long as that lives."""
    leftovers.note_sessions()
    kept = len(weakref.finalize._registry)
    for _ in range(10):
        leftovers.note_sessions()
    assert len(weakref.finalize._registry) == kept
