"""`rq suspend`: workers learn of it while a job runs, so that no tenant loses its turn because they have to ask."""

from __future__ import annotations

from typing import Any

import django_rq
import pytest
from rq.suspension import suspend

from tenant_slots import slots
from tenant_slots.models import TenantJob
from tenant_slots.workers import TenantPreforkWorker, TenantWorker
from tests import jobs
from tests.factories import counters_match, redis_forgets, tenant_queue
from tests.history import History

pytestmark = pytest.mark.django_db(transaction=True)

Worker = type[TenantPreforkWorker] | type[TenantWorker]

CLASSES = pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])


@pytest.fixture(autouse=True)
def no_maintenance(monkeypatch: pytest.MonkeyPatch) -> None:
    for worker_class in (TenantPreforkWorker, TenantWorker):
        monkeypatch.setattr(worker_class, "should_run_maintenance_tasks", False)


def enqueue(history: History, number: int) -> None:
    tenant_queue(max_job=1)
    redis_forgets()
    jobs.record.enqueue_many([(("acme", f"acme-{nth}", history.path), {}) for nth in range(number)])


def run(worker_class: Worker) -> None:
    queue = django_rq.get_queue("imports")
    worker_class([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")


@CLASSES
def test_a_tenant_keeps_its_turn_while_a_worker_asks(
    worker_class: Worker, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    always_due = property(lambda worker: 0.0, lambda worker, at: None)
    monkeypatch.setattr(worker_class, "_next_suspension_check", always_due, raising=False)
    handed_on: list[TenantJob] = []
    real = slots.release_and_start

    def noted(job: TenantJob, *arguments: Any, **values: Any) -> Any:
        handed_on.append(job)
        return real(job, *arguments, **values)

    monkeypatch.setattr(slots, "release_and_start", noted)
    enqueue(history, 4)
    run(worker_class)
    assert len(history.started()) == 4
    assert len(handed_on) == 3


@CLASSES
@pytest.mark.parametrize("is_suspended", [True, False], ids=["suspended", "control: not"])
def test_no_job_follows_one_during_which_workers_were_suspended(
    worker_class: Worker, is_suspended: bool, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the worker knows right away here, so that it does not have to ask for a while."""
    real = worker_class._hand_out

    def then_suspended(worker: Any, *arguments: Any) -> None:
        real(worker, *arguments)
        if is_suspended:
            suspend(worker.connection)
            worker._next_suspension_check = 0.0

    monkeypatch.setattr(worker_class, "_hand_out", then_suspended)
    enqueue(history, 2)
    run(worker_class)
    assert history.started() == (["acme-0"] if is_suspended else ["acme-0", "acme-1"])
    assert TenantJob.objects.filter(state="waiting").count() == (1 if is_suspended else 0)
    assert counters_match()


@CLASSES
@pytest.mark.parametrize("during_a_job", [True, pytest.param(False, id="control: between two")])
def test_to_ask_during_a_job_does_not_make_rqs_record_of_a_worker_last(
    worker_class: Worker, during_a_job: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RQ sends a heartbeat along, for a worker that waits: one that is killed then would be on record for minutes."""
    queue = django_rq.get_queue("imports")
    worker, beats = worker_class([queue], connection=queue.connection), []
    monkeypatch.setattr(worker, "heartbeat", lambda *arguments, **options: beats.append(options))
    worker.learn_of_suspension() if during_a_job else worker.check_for_suspension(burst=True)
    assert bool(beats) is not during_a_job
