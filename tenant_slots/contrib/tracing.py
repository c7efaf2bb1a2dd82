"""What OpenTelemetry and Sentry are told of a job alike."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from django.utils import timezone

from tenant_slots.logs import fields_of
from tenant_slots.models import ENDED, State, TenantJob

FLUSH_SECONDS = 2.0
"""For which a work-horse waits at most until what it has recorded is sent: it may be ended at any time."""

_loaded_by = os.getpid()


def is_run(job: TenantJob) -> bool:
    """Whether a context is entered for the function, and not for a callable ``on_busy`` or for ``on_success``."""
    return job._state.adding or (job.attempt > 0 and job.state not in (*ENDED, State.SCHEDULED))


def is_work_horse() -> bool:
    """Whether this process was forked from one that had loaded this: what sends in the background may be cut off."""
    return os.getpid() != _loaded_by


def attributes_of(job: TenantJob) -> dict[str, Any]:
    """As the log has them, with the seconds from when it could start to now; without what is not known."""
    known = {**fields_of(job), "wait": None if job._state.adding else _wait(job)}
    return {name: value for name, value in known.items() if value is not None}


def _wait(job: TenantJob) -> float:
    """Of a stored one: a plain RQ job without a tenant has no row, and so no times."""
    ready: datetime = max(job.enqueued_at, job.run_after or job.enqueued_at)
    return max(0.0, (timezone.now() - ready).total_seconds())
