"""`rqworker --burst`: it leaves when there is nothing to run, and not before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import django_rq
import pytest
from django.test import override_settings

from tenant_slots import signals
from tenant_slots.db.clock import DatabaseNow, in_seconds
from tenant_slots.models import EVERYWHERE, State, SweepClaim, TenantJob
from tenant_slots.repair import steps
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tests import jobs
from tests.factories import age, counters_match, fresh, redis_forgets, tenant_queue
from tests.history import History

pytestmark = pytest.mark.django_db(transaction=True)

Worker = type[TenantPreforkWorker] | type[TenantWorker] | type[TenantSimpleWorker]

CLASSES = pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker])


@pytest.fixture(autouse=True)
def _somebody_has_just_swept(db: None) -> Iterator[None]:
    with override_settings(TENANT_SLOTS={"SWEEP_INTERVAL": 600}):
        SweepClaim.objects.create(name=EVERYWHERE, sweeper="another", until=in_seconds(300), swept_at=DatabaseNow())
        yield


def run(worker_class: Worker) -> None:
    connection = django_rq.get_connection("imports")
    worker_class([django_rq.get_queue("imports")], connection=connection).work(burst=True, logging_level="ERROR")


@CLASSES
def test_what_redis_has_forgotten_is_run_though_another_process_has_just_swept(
    worker_class: Worker, history: History
) -> None:
    redis_forgets()
    for tenant in ("acme", "umbrella"):
        jobs.record.enqueue_many([((tenant, f"{tenant}-{nth}", history.path), {}) for nth in range(2)])
    redis_forgets()
    run(worker_class)
    assert set(TenantJob.objects.values_list("state", flat=True)) == {State.FINISHED}
    assert counters_match()


@CLASSES
def test_so_is_what_was_admitted_a_while_ago(worker_class: Worker, history: History) -> None:
    job = jobs.record.enqueue("acme", "lost", history.path)
    assert fresh(job).state == State.QUEUED
    age(job, admitted_at=3600)
    redis_forgets()
    run(worker_class)
    assert (fresh(job).state, history.started()) == (State.FINISHED, ["lost"])


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])
def test_receivers_hear_of_that_sweep_in_a_process_of_its_own(
    worker_class: Worker, history: History, tmp_path: Path
) -> None:
    def note(**_: Any) -> None:
        (tmp_path / "heard").write_text(str(os.getpid()))

    job = jobs.record.enqueue("acme", "lost", history.path)
    age(job, admitted_at=3600)
    redis_forgets()
    signals.swept.connect(note)
    try:
        run(worker_class)
    finally:
        signals.swept.disconnect(note)
    assert fresh(job).state == State.FINISHED
    assert (tmp_path / "heard").read_text() != str(os.getpid())


def test_control_without_that_look_it_leaves_while_jobs_wait(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LOST", ())
    redis_forgets()
    job = jobs.record.enqueue("acme", "waiting", history.path)
    redis_forgets()
    run(TenantPreforkWorker)
    assert (fresh(job).state, history.started()) == (State.WAITING, [])


@CLASSES
def test_it_leaves_whom_nobody_can_admit(worker_class: Worker, history: History) -> None:
    row = tenant_queue("acme")
    row.set_rate(1, per=timedelta(days=1), burst=1)
    redis_forgets()
    waiting = jobs.record.enqueue_many([(("acme", name, history.path), {}) for name in ("first", "second")])
    redis_forgets()
    run(worker_class)
    assert [fresh(job).state for job in waiting] == [State.FINISHED, State.WAITING]
