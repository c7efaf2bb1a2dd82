"""Short ways to the rows that tests need."""

from __future__ import annotations

from typing import Any

import django_rq
from rq import SimpleWorker

from tenant_slots.models import TenantJob, TenantQueue

TASK = "tests.jobs.add"


def tenant_queue(tenant: str = "acme", max_job: int = 1, **values: Any) -> TenantQueue:
    row: TenantQueue = TenantQueue.objects.create(
        tenant=tenant, queue=values.pop("queue", "imports"), max_job=max_job, **values
    )
    return row


def waiting_job(row: TenantQueue, **values: Any) -> TenantJob:
    """A job in line that nobody has tried to admit."""
    job: TenantJob = TenantJob.objects.create(tenant_queue=row, task=TASK, args=[1, 2], **values)
    return job


def fresh(row: Any) -> Any:
    row.refresh_from_db()
    return row


def in_rq(queue: str = "imports") -> int:
    """How many jobs wait for a worker in Redis."""
    return len(django_rq.get_queue(queue))


def work(*queues: str) -> None:
    """Run everything that is in RQ, in this process."""
    names = queues or ("imports", "reports")
    SimpleWorker([django_rq.get_queue(name) for name in names]).work(burst=True, logging_level="ERROR")


def counters_match() -> bool:
    """Rule 2: what is counted is what holds."""
    return all(row.current_job == row.jobs.holding().count() for row in TenantQueue.objects.all())
