"""Real workers: a tenant queue rests until it is over, and its job starts then without anybody's help."""

from __future__ import annotations

import json
from pathlib import Path

import django_rq
import pytest
from django.utils import timezone

from tenant_slots import rests
from tenant_slots.models import State, TenantQueue
from tests import jobs
from tests.factories import counters_match, fresh
from tests.processes import Workers, wait_until

OURS = [f"tenant_slots.workers.{name}" for name in ("TenantWorker", "TenantPreforkWorker", "TenantSimpleWorker")]
NO_SWEEPS = json.dumps({"SWEEP_INTERVAL": 600})


def kinds(history: Path) -> list[str]:
    return [line.split()[2] for line in history.read_text().splitlines()] if history.exists() else []


@pytest.mark.parametrize("worker_class", [*OURS, "rq.Worker", "rq.SimpleWorker", "rq.worker.SpawnWorker"])
def test_a_tenant_queue_rests_under_any_worker_class(workers: Workers, tmp_path: Path, worker_class: str) -> None:
    history, door = tmp_path / "history", tmp_path / "door"
    workers.start(2, worker_class=worker_class)
    job = jobs.ask_partner.enqueue("acme", str(history), str(door))
    wait_until(lambda: (fresh(job).state, job.attempt) == (State.WAITING, 1))
    after = jobs.add.using(tenant="acme", queue="imports").enqueue(1, 2)
    other = jobs.add.using(tenant="other", queue="imports").enqueue(1, 2)
    wait_until(lambda: fresh(other).state == State.FINISHED)
    assert (fresh(job).state, fresh(after).state, kinds(history)) == (State.WAITING, State.WAITING, ["busy"])
    assert (job.failures, job.crashes, job.interruptions) == (0, 0, 0)
    row = TenantQueue.objects.get(tenant="acme")
    assert rests.seconds_left(row)
    assert django_rq.get_queue("imports").failed_job_registry.count == 0
    door.touch()
    row.end_rest()
    wait_until(lambda: fresh(after).state == State.FINISHED)
    assert (fresh(job).state, kinds(history)) == (State.FINISHED, ["busy", "answered"])
    assert counters_match()


@pytest.mark.parametrize("worker_class", OURS)
def test_an_idle_worker_starts_it_when_the_rest_is_over(tmp_path: Path, workers: Workers, worker_class: str) -> None:
    """No sweep comes, nor anything else that would wake it."""
    workers.variables["TEST_TENANT_SLOTS"] = NO_SWEEPS
    history, door = tmp_path / "history", tmp_path / "door"
    workers.start(1, worker_class=worker_class)
    job = jobs.ask_partner.enqueue("acme", str(history), str(door), seconds=3)
    wait_until(lambda: fresh(job).attempt == 1 and job.state == State.WAITING)
    until = TenantQueue.objects.get().rests_until
    door.touch()
    wait_until(lambda: fresh(job).state == State.FINISHED)
    assert kinds(history) == ["busy", "answered"]
    assert until <= job.started_at <= timezone.now()
