"""Jobs that find no free slot are asked what to do once their transaction commits: that of a `TestCase` never does."""

from __future__ import annotations

from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.enqueueing import on_busy
from tenant_slots.models import TenantJob


class Asking:
    """Does so in an open transaction: each job once, in the order of their enqueueing."""

    def __init__(self) -> None:
        self._latest = 0

    def ask_new_ones(self) -> None:
        if not transactions.is_open(app_settings.DATABASE):
            return
        by_row: dict[int, list[TenantJob]] = {}
        for job in TenantJob.objects.waiting().jobs().filter(pk__gt=self._latest, rq_job_id="").order_by("pk"):
            by_row.setdefault(job.tenant_queue_id, []).append(job)
            self._latest = job.pk
        for tenant_queue_id, jobs in by_row.items():
            with transactions.kept_unbroken():
                on_busy.turn_away(tenant_queue_id, jobs)
