"""One thing that is not as it should be, as the doctor tells it."""

from __future__ import annotations

from dataclasses import dataclass

from tenant_slots.models import TenantJob, TenantQueue

REDIS = "redis"
"""The kind of a queue whose Redis cannot be asked."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be. `job` is a UUID, or empty when it concerns no single job."""

    kind: str
    tenant: str
    queue: str
    job: str
    meaning: str


def of_row(kind: str, row: TenantQueue, meaning: str) -> Finding:
    return Finding(kind, row.tenant, row.queue, "", meaning)


def of_job(kind: str, job: TenantJob, meaning: str) -> Finding:
    return Finding(kind, job.tenant_queue.tenant, job.tenant_queue.queue, str(job.uuid), meaning)
