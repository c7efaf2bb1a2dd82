"""Overflow queues and weights with real workers."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenant_slots import Throttle
from tenant_slots.enqueueing.ways import WaysToEnqueue
from tenant_slots.models import State, TenantQueue
from tests import jobs
from tests.acceptance.test_workers import all_ended, gone, horse_of
from tests.factories import fresh
from tests.history import History
from tests.processes import Workers, wait_until

SLOW = "imports_slow"
BUSY = 60
"""Jobs of the fast queue: enough that an overflow queue without a turn of its own would stall for long."""


def in_slow_queue(function: Any) -> WaysToEnqueue[..., Any]:
    return WaysToEnqueue(replace(function.tenant_task, throttle=[Throttle(0, timedelta(hours=1), SLOW)]))


@pytest.mark.parametrize(("weights", "stalls"), [({"imports": 6, SLOW: 2}, False), ({}, True)])
def test_an_overflow_queue_does_not_stall_beside_a_full_queue_and_the_limit_of_its_own_queue_holds(
    workers: Workers, history: History, weights: dict[str, int], stalls: bool
) -> None:
    """Without weights, the control, the order of the queues is strict, and the overflow queue waits for the others."""
    TenantQueue.objects.create(tenant="busy", queue="imports", max_job=BUSY)
    TenantQueue.objects.create(tenant="greedy", queue="imports", max_job=1)
    jobs.record.enqueue_many([(("busy", f"busy{n}", history.path, 0.01), {}) for n in range(BUSY)])
    greedy = in_slow_queue(jobs.throttled)
    greedy.enqueue_many([(("greedy", f"greedy{n}", history.path, 0.01), {}) for n in range(10)])
    workers.variables = {"TEST_TENANT_SLOTS": json.dumps({"QUEUE_WEIGHTS": weights})}
    workers.start(2, queues=("imports", SLOW))
    wait_until(all_ended, timeout=60)

    started = history.started()
    assert (started.index("greedy0") > BUSY / 2) is stalls
    assert [name for name in started if name.startswith("greedy")] == [f"greedy{n}" for n in range(10)]
    assert history.highest_overlap()["greedy"] == 1
    assert set(TenantQueue.objects.values_list("queue", "current_job")) == {("imports", 0)}


def test_a_running_job_in_an_overflow_queue_can_be_canceled(workers: Workers, history: History, tmp_path: Path) -> None:
    workers.start(1, queues=("imports", SLOW))
    job = in_slow_queue(jobs.wait_for_file).enqueue("acme", "long", history.path, str(tmp_path / "never"))
    horse = horse_of(history, "long")
    assert job.cancel()
    wait_until(all_ended)
    assert fresh(job).state == State.CANCELED
    assert gone(horse)


@pytest.mark.parametrize("worker_class", ["tenant_slots.workers.TenantWorker", "rq.Worker"])
def test_a_job_in_an_overflow_queue_whose_process_died_runs_again_there(
    workers: Workers, history: History, tmp_path: Path, worker_class: str
) -> None:
    overflow, own = workers.start(1, queues=(SLOW,), worker_class=worker_class)[0], workers.start(1)[0]
    path = tmp_path / "go on"
    job = in_slow_queue(jobs.wait_for_file).enqueue("acme", "stuck", history.path, str(path))
    os.kill(horse_of(history, "stuck"), signal.SIGKILL)
    wait_until(lambda: history.started().count("stuck") == 2)
    path.touch()
    wait_until(all_ended)
    assert (fresh(job).state, job.attempt, job.rq_queue) == (State.FINISHED, 2, SLOW)
    assert overflow.poll() is own.poll() is None
