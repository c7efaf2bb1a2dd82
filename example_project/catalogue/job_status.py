"""What a job's page shows, and who may poll for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from example_project.catalogue.models import Import, Shop
from tenant_slots.models import State, TenantJob

TASKS = {"import_catalog": "Import", "sync_catalog": "Sync to the partner"}

LABELS = {
    State.SCHEDULED: "Waiting to be tried again",
    State.WAITING: "Waiting",
    State.QUEUED: "Next, waiting for a worker",
    State.RUNNING: "Running",
    State.FINISHED: "Done",
    State.FAILED: "Failed",
    State.CANCELED: "Canceled",
}


FIGURES = {
    "import_catalog": {"rows_read": "Rows read", "rows_written": "Written", "rows_refused": "Refused"},
    "sync_catalog": {"products_sent": "Products sent", "batches": "Batches"},
}
"""Names of what the jobs report, by task."""


@dataclass(frozen=True)
class ShownJob:
    """A job together with its import."""

    job: TenantJob
    imported: Import | None

    @property
    def task(self) -> str:
        return self.job.task.rpartition(".")[2]

    @property
    def title(self) -> str:
        name = TASKS.get(self.task, self.job.task)
        return f"{name} of {self.imported.name}" if self.imported else name

    @property
    def label(self) -> str:
        return LABELS[State(self.job.state)]

    @property
    def error(self) -> str:
        """The last line of a traceback: the part that is meant for people."""
        return self.job.error.strip().rpartition("\n")[2] if self.job.state == State.FAILED else ""

    @property
    def figures(self) -> list[tuple[str, str, Any]]:
        """Name, label and value of what the job reports so far."""
        return [(name, label, self.job.stats.get(name, 0)) for name, label in FIGURES.get(self.task, {}).items()]

    @property
    def report(self) -> dict[str, Any] | None:
        return self.job.result if isinstance(self.job.result, dict) else None


def jobs_of(shop: Shop) -> QuerySet[TenantJob]:
    jobs: QuerySet[TenantJob] = TenantJob.objects.filter(tenant_queue__tenant=shop.slug)
    return jobs


def may_view(request: HttpRequest, job: TenantJob) -> bool:
    """For ``MAY_VIEW_JOB``: people see the jobs of their shop."""
    if not request.user.is_authenticated:
        return False
    return Shop.objects.filter(memberships__user=request.user, slug=job.tenant_queue.tenant).exists()


def recent(shop: Shop, count: int = 20) -> list[ShownJob]:
    jobs = list(jobs_of(shop).order_by("-pk")[:count])
    imports = Import.objects.in_bulk([job.uuid for job in jobs], field_name="job_uuid")
    return [ShownJob(job, imports.get(job.uuid)) for job in jobs]


def shown(job: TenantJob) -> ShownJob:
    return ShownJob(job, Import.objects.filter(job_uuid=job.uuid).first())
