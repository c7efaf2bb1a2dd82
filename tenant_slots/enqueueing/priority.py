"""Moving a job within its tenant's backlog."""

from __future__ import annotations

from tenant_slots.db.compiled import among
from tenant_slots.layering import implements
from tenant_slots.locks import locked
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.models.states import UNADMITTED
from tenant_slots.tasks.options import USING_OPTIONS, require_options


@implements(TenantJob.set_priority)
def set_priority(job: TenantJob, priority: int) -> bool:
    require_options(job.task, {"priority": priority}, USING_OPTIONS)
    try:
        with locked(job.tenant_queue_id):
            changed = bool(TenantJob.objects.unadmitted().filter(pk=job.pk).update(priority=priority))
        job.refresh_from_db(fields=["priority", "state"])
    except (TenantJob.DoesNotExist, TenantQueue.DoesNotExist):
        return False
    return changed


def set_priority_of_all(jobs: list[TenantJob], priority: int) -> list[TenantJob]:
    """As `TenantJob.set_priority`, of those of a tenant's jobs that are scheduled or waiting. Returns these.

    In a transaction that holds the tenant queue, and in which the jobs were read.
    """
    moved = [job for job in jobs if job.state in UNADMITTED]
    TenantJob.objects.unadmitted().filter(among([job.pk for job in moved])).update(priority=priority)
    return moved
