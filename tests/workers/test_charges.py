"""What a tenant is charged of runs that end badly: worker time is worker time, whoever ends a run and however."""

from __future__ import annotations

from itertools import accumulate

import django_rq
import pytest

from tenant_slots.workers import TenantPreforkWorker, TenantWorker
from tests import jobs
from tests.factories import redis_forgets, tenant_queue
from tests.history import History

pytestmark = pytest.mark.django_db(transaction=True)

Worker = type[TenantPreforkWorker] | type[TenantWorker]

CLASSES = pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])


def run(worker_class: Worker) -> None:
    queue = django_rq.get_queue("imports")
    worker = worker_class([queue], connection=django_rq.get_connection("imports"))
    worker.work(burst=True, logging_level="ERROR")


@CLASSES
def test_jobs_that_kill_their_process_gain_their_tenant_no_turns(worker_class: Worker, history: History) -> None:
    """Each of them is run four times."""
    for tenant in ("crasher", "neighbour"):
        tenant_queue(tenant, max_job=5)
    redis_forgets()
    jobs.kill_self.enqueue_many([(("crasher", history.path, 0.2), {}) for _ in range(3)])
    jobs.record.enqueue_many([(("neighbour", f"{nth}", history.path, 0.2), {}) for nth in range(12)])
    run(worker_class)
    starts = [event.tenant for event in history.events() if event.kind == "start"]
    ahead = list(accumulate(1 if tenant == "crasher" else -1 for tenant in starts))
    assert max(map(abs, ahead)) <= 3, starts
    assert len(starts) == 24
