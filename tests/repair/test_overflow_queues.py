"""A sweep asks the few that wait in an overflow queue, not the whole backlog for each of those queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import Q

from tenant_slots.models import TenantJob
from tenant_slots.repair import findings
from tests.factories import TASK, tenant_queue
from tests.plans import explained

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plans"),
]

QUESTIONS: dict[str, Callable[[], Any]] = {
    "which of them have waiting jobs": findings.overflow_queues,
    "who has something to run there": lambda: findings._free_with_waiting("imports_slow"),
    "what waits where no queue is any more": lambda: findings.in_overflow_queues(["imports_slow"]),
}


def backlog() -> None:
    """Of a hundred tenants in their own queue, and of one in another."""
    rows = [tenant_queue(f"tenant {number}") for number in range(100)]
    jobs = [TenantJob(tenant_queue=row, task=TASK) for row in rows for _ in range(40)]
    TenantJob.objects.bulk_create([*jobs, TenantJob(tenant_queue=rows[0], task=TASK, rq_queue="imports_slow")])


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("is_narrow", [True, pytest.param(False, id="control: of all that wait")])
def test_overflow_queues_are_read_from_their_own_index(
    question: str, is_narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_narrow:
        monkeypatch.setattr(findings, "IN_OVERFLOW_QUEUE", Q())
    backlog()
    assert ("using tenant_slots_overflow" in explained(QUESTIONS[question]())) is is_narrow
