"""Tasks of decorated functions. Import it where ``TASKS`` has the backend that is meant."""

from __future__ import annotations

from tenant_slots import tenant_job
from tests.django_tasks.api import task
from tests.jobs import note


@task
@tenant_job("imports", tenant="tenant_id")
def record(tenant_id: str, history: str) -> str:
    note(history, "start", tenant_id, "foreign")
    return "done"


@task
@tenant_job("imports", tenant="tenant_id")
async def record_slowly(tenant_id: str, history: str) -> str:
    return record.func(tenant_id, history)
