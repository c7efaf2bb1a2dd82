"""Idle workers start jobs that wait for a token, or for the end of a rest, although somebody else was told when."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import django_rq
import pytest

from tenant_slots.models import State, TenantJob
from tests import jobs
from tests.factories import fresh, tenant_queue
from tests.history import History
from tests.processes import Workers, wait_until

OURS = [f"tenant_slots.workers.{name}" for name in ("TenantWorker", "TenantPreforkWorker", "TenantSimpleWorker")]
NO_SWEEPS = json.dumps({"SWEEP_INTERVAL": 600})

BARELY_A_SECOND = timedelta(seconds=0.8)
"""Between two tokens is a whole one. Each is taken before its job's admission is noted, by however long a moment."""
LATE = timedelta(seconds=5)
"""On a loaded machine. Without somebody who is told when a token comes it is as long as a worker waits for a job."""


@pytest.fixture
def idle(workers: Workers) -> Workers:
    """Their workers wait at RQ's lists for much longer than a test takes."""
    workers.variables["TEST_TENANT_SLOTS"] = NO_SWEEPS
    return workers


def start(workers: Workers, number: int, worker_class: str) -> None:
    workers.start(number, worker_class=worker_class)
    redis = django_rq.get_connection("imports")
    wait_until(lambda: redis.zcard("tenant_slots:idle:imports") == number)


def all_run(expected: list[TenantJob]) -> bool:
    return all(fresh(job).state == State.RUNNING for job in expected)


@pytest.mark.parametrize("worker_class", OURS)
def test_a_job_that_waits_for_a_token_starts_on_an_idle_worker_while_the_one_before_runs(
    idle: Workers, history: History, tmp_path: Path, worker_class: str
) -> None:
    """They went to wait before there was anything to wait for."""
    row, door = tenant_queue(max_job=10), tmp_path / "door"
    row.set_rate(1, per=timedelta(seconds=1))
    start(idle, 4, worker_class)
    expected = [jobs.wait_for_file.enqueue("acme", name, history.path, str(door)) for name in "abc"]
    wait_until(lambda: all_run(expected))
    door.touch()
    admissions = sorted(job.admitted_at for job in expected)
    assert all(BARELY_A_SECOND <= later - earlier <= LATE for earlier, later in pairwise(admissions))


@pytest.mark.parametrize("worker_class", OURS)
def test_all_idle_workers_go_on_when_a_rest_is_over(
    idle: Workers, history: History, tmp_path: Path, worker_class: str
) -> None:
    row, door = tenant_queue(max_job=10), tmp_path / "door"
    start(idle, 3, worker_class)
    busy = jobs.ask_partner.enqueue("acme", history.path, seconds=1)
    wait_until(lambda: fresh(busy).attempt == 1 and busy.state == State.WAITING)
    assert fresh(row).rests_until is not None
    busy.cancel()
    expected = [jobs.wait_for_file.enqueue("acme", name, history.path, str(door)) for name in "abc"]
    wait_until(lambda: all_run(expected))
    door.touch()


def test_many_queues_are_watched_by_whoever_is_idle(idle: Workers, history: History, tmp_path: Path) -> None:
    """The worker that knows when the second queue goes on takes a job of the first one."""
    door = tmp_path / "door"
    for queue in ("imports", "reports"):
        tenant_queue(queue=queue, max_job=10).set_rate(1, per=timedelta(seconds=1))
    idle.start(5, queues=("imports", "reports"), worker_class=OURS[1])
    redis = django_rq.get_connection("imports")
    wait_until(lambda: redis.zcard("tenant_slots:idle:reports") == 5)
    expected = [
        jobs.wait_for_file.using(queue=queue).enqueue("acme", name, history.path, str(door))
        for name in "ab"
        for queue in ("reports", "imports")
    ]
    wait_until(lambda: all_run(expected))
    door.touch()
