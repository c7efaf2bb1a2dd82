"""Jobs that find no free slot are asked what to do once their transaction commits: that of a `TestCase` never does."""

from __future__ import annotations

from django.db.models import Max

from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.models import TenantJob
from tenant_slots.running.asking import ask


class Asking:
    """Does so in an open transaction: each job once, in the order of their enqueueing."""

    def __init__(self) -> None:
        self._latest = 0

    def ask_new_ones(self) -> None:
        """Not those that are scheduled as yet: they are asked when they are promoted."""
        if not transactions.is_open(app_settings.DATABASE):
            return
        before, self._latest = self._latest, TenantJob.objects.aggregate(latest=Max("pk"))["latest"] or 0
        ask(TenantJob.objects.waiting().jobs().filter(pk__gt=before, rq_job_id="", asks=False).order_by("pk"))
