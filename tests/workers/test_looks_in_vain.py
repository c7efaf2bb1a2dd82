"""A worker whose looks at tenants come to nothing, as somebody holds the rows of many, has other things to do too."""

from __future__ import annotations

from typing import Any

import django_rq
import pytest
from rq.exceptions import DequeueTimeout

from tenant_slots.fair_order import Turn
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker

pytestmark = pytest.mark.django_db(transaction=True)

CLASSES = [TenantPreforkWorker, TenantWorker, TenantSimpleWorker]

MANY = 50


@pytest.mark.parametrize("timeout", [1, None])
@pytest.mark.parametrize("worker_class", CLASSES)
def test_it_sweeps_when_that_is_due(worker_class: Any, timeout: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = django_rq.get_queue("imports")
    worker = worker_class([queue], connection=queue.connection)
    looks: list[object] = []

    def held(turn: Turn) -> None:
        looks.append(turn)
        assert len(looks) < 2 * MANY, "it never ends"

    monkeypatch.setattr(worker, "_next_turn", lambda names, waits: Turn("imports", 1, jobs=1, offers=1))
    monkeypatch.setattr(worker, "_take", held)
    is_due = property(lambda worker: len(looks) >= MANY)
    monkeypatch.setattr(worker_class, "should_run_maintenance_tasks", is_due)
    with pytest.raises(DequeueTimeout):
        worker._found([queue], timeout, {})
    assert len(looks) == MANY
