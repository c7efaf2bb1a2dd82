"""What OpenTelemetry and Sentry are told of a job alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.utils import timezone

from tenant_slots.logs import fields_of
from tenant_slots.models import ENDED, State, TenantJob
from tenant_slots.parting import before_parting

FLUSH_SECONDS = 2.0
"""For which a work-horse waits at most until what it has recorded is sent."""

_loaded_by = os.getpid()
"""A work-horse was forked from it."""


def is_run(job: TenantJob) -> bool:
    """Whether a context is entered for the function, and not for a callable ``on_busy`` or for ``on_success``."""
    return job._state.adding or (job.attempt > 0 and job.state not in (*ENDED, State.SCHEDULED))


def flush_in_time(flush: Callable[[], object], *, failed: bool) -> None:
    """Have what was recorded sent before this process ends, if that is a work-horse: nothing goes on in the background.

    One that goes on to the next job need not wait for that, but when it parts. A failure is told at once: the next job
    may be the one that is killed.
    """
    is_work_horse = os.getpid() != _loaded_by
    if is_work_horse and (not before_parting(flush) or failed):
        flush()


def attributes_of(job: TenantJob) -> dict[str, Any]:
    """As the log has them, with the seconds from when it could start to now; without what is not known."""
    known = {**fields_of(job), "wait": None if job._state.adding else _wait(job)}
    return {name: value for name, value in known.items() if value is not None}


def _wait(job: TenantJob) -> float:
    """Of a stored one: a plain RQ job without a tenant has no row, and so no times."""
    ready: datetime = max(job.enqueued_at, job.run_after or job.enqueued_at)
    return max(0.0, (timezone.now() - ready).total_seconds())
