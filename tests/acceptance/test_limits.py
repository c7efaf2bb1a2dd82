"""Limits hold with real workers."""

from __future__ import annotations

import random

from tenant_slots.models import ENDED, State, TenantJob, TenantQueue
from tests.history import History
from tests.jobs import record
from tests.processes import Workers, wait_until


def all_ended() -> bool:
    return not TenantJob.objects.exclude(state__in=ENDED).exists()


def test_limits_hold_on_many_workers(workers: Workers, history: History) -> None:
    limits = {"a": 1, "b": 1, "c": 2, "d": 3}
    for tenant, limit in limits.items():
        TenantQueue.objects.create(tenant=tenant, queue="imports", max_job=limit)
    workers.start(4)
    calls = [((random.choice(list(limits)), f"job{n}", history.path, 0.01), {}) for n in range(100)]
    record.enqueue_many(calls)
    wait_until(all_ended, timeout=60)
    assert sorted(history.started()) == sorted(f"job{n}" for n in range(100))
    for tenant, highest in history.highest_overlap().items():
        assert highest <= limits[tenant]
    assert TenantJob.objects.filter(state=State.FINISHED).count() == 100
    assert not TenantQueue.objects.exclude(current_job=0).exists()
