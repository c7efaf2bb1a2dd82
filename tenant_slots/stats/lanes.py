"""The queues of RQ that jobs go to: a tenant queue's own one, and those that jobs overflow to."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import BooleanField, Exists, ExpressionWrapper, Q

from tenant_slots.models import TenantQueue
from tenant_slots.stats.expressions import jobs_of_row


def with_jobs() -> list[str]:
    """Queues of RQ in which jobs wait for a worker. One query."""
    names = list(getattr(settings, "RQ_QUEUES", {}))
    found = TenantQueue.objects.order_by().values_list(*map(_has_jobs, names))[:1]
    return [name for row in found for name, has_jobs in zip(names, row, strict=True) if has_jobs]


def _has_jobs(name: str) -> ExpressionWrapper[Any]:
    """Asked by tenant queue, whose jobs have an index, and not of all jobs that wait."""
    rows = TenantQueue.objects.filter(paused=False, max_job__gt=0)
    jobs = jobs_of_row()
    waiting, queued = jobs.waiting().jobs(), jobs.queued().jobs()
    own = Exists(waiting.filter(rq_queue="")) | Exists(queued.filter(rq_queue=""))
    overflow = Exists(waiting.filter(rq_queue=name)) | Exists(queued.filter(rq_queue=name))
    has_jobs = Q(Exists(rows.filter(own, queue=name))) | Q(Exists(rows.filter(overflow)))
    return ExpressionWrapper(has_jobs, BooleanField())
