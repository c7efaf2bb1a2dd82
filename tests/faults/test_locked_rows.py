"""Somebody holds the row of a job that was admitted: the worker that finds it in RQ's list has others to run."""

from __future__ import annotations

import django_rq
import pytest
from django.db import connection, transaction

from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import counters_match, fresh, in_thread, tenant_queue
from tests.faults.conftest import FaultWorkers
from tests.history import History
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no locks on rows"),
]


@pytest.mark.parametrize(
    "worker_class",
    [*(f"tenant_slots.workers.Tenant{kind}Worker" for kind in ("Prefork", "", "Simple")), "rq.Worker"],
)
def test_i8_others_run_while_somebody_holds_the_row_of_a_job_that_is_to_start(
    workers: FaultWorkers, history: History, worker_class: str
) -> None:
    for tenant in ("whale", "acme"):
        tenant_queue(tenant, max_job=1)
    held = jobs.record.enqueue("whale", "whale", history.path)
    assert fresh(held).state == State.QUEUED
    with transaction.atomic():
        TenantJob.objects.select_for_update().get(pk=held.pk)
        workers.start(1, worker_class=worker_class)
        if worker_class == "rq.Worker":
            workers.processes.append(workers.start_sweeper())
        wait_until(lambda: not django_rq.get_queue("imports").job_ids, 20, "nobody takes it")
        other = in_thread(lambda: jobs.record.enqueue("acme", "acme", history.path))
        wait_until(lambda: fresh(other).state == State.FINISHED, 10, "it waits for the whale")
        assert history.started() == ["acme"]
    wait_until(lambda: fresh(held).state == State.FINISHED, 20, "it is not run once nobody holds it")
    assert counters_match()


@pytest.mark.parametrize("worker_class", ["tenant_slots.workers.TenantPreforkWorker", "rq.Worker"])
def test_i8_others_run_while_somebody_holds_the_tenant_queue_of_a_plain_rq_job(
    workers: FaultWorkers, history: History, worker_class: str
) -> None:
    for tenant in ("whale", "acme"):
        tenant_queue(tenant, max_job=1)
    imports = django_rq.get_queue("imports")
    imports.enqueue(jobs.record, "whale", "whale", history.path)
    with transaction.atomic():
        TenantQueue.objects.select_for_update().get(tenant="whale")
        workers.start(1, worker_class=worker_class)
        wait_until(lambda: not imports.job_ids, 20, "nobody takes it")
        other = in_thread(lambda: jobs.record.enqueue("acme", "acme", history.path))
        wait_until(lambda: fresh(other).state == State.FINISHED, 15, "it waits for the whale")
        assert history.started() == ["acme"]
    assert len(imports.scheduled_job_registry) == 1, "it comes back"
