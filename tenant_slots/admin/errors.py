"""What a job's error tells viewers who may not see arguments: its class. Its text may quote any of them."""

from __future__ import annotations

from tenant_slots.models import TenantJob
from tenant_slots.tasks import attempts


def class_of(job: TenantJob) -> str:
    """Of the last one of its runs that raised; empty where none has, or nobody knows it.

    Never read from the text, as any other text could stand there.
    """
    raised = [run for run in attempts.ended_runs(job) if run["error"] not in attempts.NOT_RAISED]
    return attempts.class_raised(raised[-1]) if raised else ""
