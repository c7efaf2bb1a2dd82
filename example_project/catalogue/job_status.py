"""What a job's page shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

from example_project.catalogue.models import Import, Shop
from tenant_slots.models import State, TenantJob

TASKS = {"import_catalog": "Import", "sync_catalog": "Sync to the partner"}

LABELS = {
    State.SCHEDULED: "Waiting to be tried again",
    State.WAITING: "Waiting in line",
    State.QUEUED: "Next, waiting for a worker",
    State.RUNNING: "Running",
    State.FINISHED: "Done",
    State.FAILED: "Failed",
    State.CANCELED: "Canceled",
}


@dataclass(frozen=True)
class ShownJob:
    """A job together with its import."""

    job: TenantJob
    imported: Import | None

    @property
    def title(self) -> str:
        name = TASKS.get(self.job.task.rpartition(".")[2], self.job.task)
        return f"{name} of {self.imported.name}" if self.imported else name

    @property
    def label(self) -> str:
        return LABELS[State(self.job.state)]

    @property
    def error(self) -> str:
        """The last line of a traceback: the part that is meant for people."""
        return self.job.error.strip().rpartition("\n")[2] if self.job.state == State.FAILED else ""

    @property
    def report(self) -> dict[str, Any] | None:
        return self.job.result if isinstance(self.job.result, dict) else None


def jobs_of(shop: Shop) -> QuerySet[TenantJob]:
    jobs: QuerySet[TenantJob] = TenantJob.objects.filter(tenant_queue__tenant=shop.slug)
    return jobs


def recent(shop: Shop, count: int = 20) -> list[ShownJob]:
    jobs = list(jobs_of(shop).order_by("-pk")[:count])
    imports = Import.objects.in_bulk([job.uuid for job in jobs], field_name="job_uuid")
    return [ShownJob(job, imports.get(job.uuid)) for job in jobs]


def shown(job: TenantJob) -> ShownJob:
    return ShownJob(job, Import.objects.filter(job_uuid=job.uuid).first())


def position(job: TenantJob) -> int | None:
    """1 for the next job of the shop's line; None for a job that is not waiting."""
    if job.state != State.WAITING:
        return None
    ahead = Q(priority__gt=job.priority) | Q(priority=job.priority, pk__lt=job.pk)
    count: int = TenantJob.objects.waiting().filter(ahead, tenant_queue=job.tenant_queue_id).count()
    return count + 1


def as_json(job: TenantJob) -> dict[str, Any]:
    """What the page polls for."""
    item = shown(job)
    return {
        "state": job.state,
        "label": item.label,
        "position": position(job),
        "done": item.imported.done if item.imported else 0,
        "total": item.imported.total if item.imported else 0,
        "ended": job.has_ended,
    }
