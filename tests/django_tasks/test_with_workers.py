"""Tasks on real workers: limits hold, all entry ways mixed, results outlive Redis, and what a crash leaves is told."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import django_rq
import pytest
from rq.suspension import resume, suspend

from tenant_slots import signals
from tenant_slots.models import ENDED, TenantJob, TenantQueue
from tenant_slots.workers import TenantPreforkWorker, TenantWorker
from tenant_slots.workers.horses import Reins
from tests import jobs
from tests.django_tasks import tasks
from tests.django_tasks.api import TaskResultStatus, task_backends, task_finished
from tests.history import History
from tests.processes import Workers, wait_until

CALLS = int(os.environ.get("TASKS_CALLS", "100"))
"""Of Tasks; one environment of tox makes 1,000 of them, which take minutes on two busy processors."""

WORKERS = [f"tenant_slots.workers.{name}" for name in ("TenantPreforkWorker", "TenantWorker", "TenantSimpleWorker")]
RQS_OWN = ""
"""Without any setting of ours."""

TENANTS = 20
SECONDS = 0.02


def all_ended() -> bool:
    return not TenantJob.objects.exclude(state__in=ENDED).exists()


def test_limits_hold_with_all_entry_ways_and_workers_mixed_and_all_results_outlive_redis(
    workers: Workers, history: History
) -> None:
    limits = {f"tenant{number}": 1 + number % 3 for number in range(TENANTS)}
    for tenant, limit in limits.items():
        TenantQueue.objects.create(tenant=tenant, queue="imports", max_job=limit)
    began = time.monotonic()
    calls, others = _enqueue_all_ways(list(limits), history)
    enqueued_in = time.monotonic() - began
    suspend(django_rq.get_connection("default"))  # else the first one ends all before the next one is there
    for worker_class in WORKERS:
        workers.start(1, worker_class=worker_class)
    workers.start(1, "--with-scheduler", worker_class=RQS_OWN)
    resume(django_rq.get_connection("default"))
    began = time.monotonic()
    everything = sorted([*calls, *others])
    wait_until(lambda: TenantJob.objects.filter(state__in=ENDED).count() == len(everything), timeout=600)
    ran_in = time.monotonic() - began
    django_rq.get_connection("default").flushall()

    backend = task_backends["default"]
    for name, result_id in calls.items():
        result = backend.get_result(result_id)
        assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, name, 1)
        assert len(result.worker_ids[0]) > 5
    assert sorted(TenantJob.objects.values_list("result", flat=True)) == everything
    assert sorted(history.started()) == everything, "each once"
    overlap = history.highest_overlap()
    assert {tenant: highest for tenant, highest in overlap.items() if highest > limits[tenant]} == {}
    assert max(overlap.values()) > 1, "nothing ran side by side, so that no limit was tried"
    assert not TenantQueue.objects.exclude(current_job=0).exists()
    print(f"{CALLS} Tasks of {len(everything)} jobs: enqueued in {enqueued_in:.1f} s, ran in {ran_in:.1f} s")  # noqa: T201


def _enqueue_all_ways(tenants: list[str], history: History) -> tuple[dict[str, str], list[str]]:
    """The ids of the calls of a Task by the name that each returns, and the names of what came by the other ways.

    Two tenants have more than the others, so that in the end all workers are there for these.
    """
    queue = django_rq.get_queue("imports")
    calls, others = {}, []
    for number in range(CALLS):
        tenant, name = random.choice(tenants if number % 3 else tenants[:2]), f"call{number}"
        calls[name] = tasks.record.enqueue(tenant, name, history.path, seconds=SECONDS).id
        if number % 8 == 0:
            jobs.record.enqueue(tenant, f"ours{number}", history.path, SECONDS)
            others.append(f"ours{number}")
        if number % 8 == 4:
            queue.enqueue(jobs.record, tenant, f"plain{number}", history.path, SECONDS)
            others.append(f"plain{number}")
    for number in range(3):  # as many as its limit, each long enough to meet the others
        calls[f"long{number}"] = tasks.record.enqueue(tenants[2], f"long{number}", history.path, seconds=1).id
    return calls, others


@pytest.mark.parametrize("worker_class", ["TenantWorker", "TenantPreforkWorker", ""])
def test_every_worker_class_runs_tasks_and_names_itself(workers: Workers, worker_class: str) -> None:
    path = f"tenant_slots.workers.{worker_class}" if worker_class else ""
    results = [
        tasks.add.enqueue("acme", 1),
        tasks.add_slowly.enqueue("acme", 2),
        tasks.who_am_i.enqueue("acme"),
        tasks.flaky.enqueue("acme", "ann", 2),
        tasks.fail.enqueue("acme"),
        tasks.exit_at_once.enqueue("acme"),
    ]
    workers.start(1, worker_class=path)
    wait_until(all_ended, timeout=60)
    for result in results:
        result.refresh()
    added, slowly, who, flaky, failed, exited = results
    assert (added.return_value, slowly.return_value, flaky.return_value) == (2, 3, 2)
    (name,) = added.worker_ids
    assert who.return_value == [who.id, "RUNNING", 1, [name], ["acme"]]
    assert (flaky.attempts, flaky.worker_ids, len(flaky.errors)) == (2, [name, name], 1)
    assert flaky.started_at < flaky.last_attempted_at
    assert [result.errors[-1].exception_class for result in (flaky, failed, exited)] == [
        ConnectionError,
        ValueError,
        SystemExit,
    ]


def test_a_run_whose_process_dies_is_an_attempt_with_an_error(workers: Workers, history: History) -> None:
    result = tasks.kill_me.enqueue("acme", history.path, 1)
    workers.start(1, worker_class="tenant_slots.workers.TenantPreforkWorker")
    wait_until(all_ended, timeout=60)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2), result
    assert result.return_value == "survived"
    assert [error.exception_class.__name__ for error in result.errors] == ["TaskRunLost"]
    assert result.started_at < result.last_attempted_at


def test_a_canceled_run_was_an_attempt(workers: Workers, history: History, tmp_path: Any) -> None:
    result = tasks.record.enqueue("acme", "one", history.path, str(tmp_path / "door"))
    workers.start(1, worker_class="tenant_slots.workers.TenantPreforkWorker")
    wait_until(history.started)
    TenantJob.objects.get(uuid=result.id).cancel()
    wait_until(all_ended, timeout=60)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    assert result.errors[-1].exception_class.__name__ == "TaskCanceled"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])
@pytest.mark.parametrize("says_so", [True, False], ids=["", "as it dies"])
def test_the_end_is_told_outside_of_the_worker(
    worker_class: type[TenantPreforkWorker], says_so: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tells of it imports the Task's module, and calls the receivers of Django's signal."""
    told_in = tmp_path / "told_in"

    def hear(**_: Any) -> None:
        with told_in.open("a") as file:
            print(os.getpid(), file=file)

    if not says_so:
        monkeypatch.setattr(Reins, "report", lambda self, report: os._exit(1))
    task_finished.connect(hear)
    try:
        tasks.add.enqueue("acme", 1)
        queue = django_rq.get_queue("imports")
        worker_class([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")
    finally:
        task_finished.disconnect(hear)
    (told,) = told_in.read_text().split()
    assert int(told) != os.getpid()


@pytest.mark.parametrize("signal", ["job_ended", "job_put_back", "jobs_admitted"])
def test_to_have_tasks_costs_other_jobs_nothing(signal: str) -> None:
    """A worker hands its slot on, and begins its next job at once, where no receiver of the project is to hear."""
    assert not signals.heard_by_project(signal)
