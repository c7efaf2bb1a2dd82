"""What OpenTelemetry and Sentry are told of a job alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone
from rq import get_current_job

from tenant_slots.conf import app_settings
from tenant_slots.logs import fields_of
from tenant_slots.models import ENDED, State, TenantJob
from tenant_slots.parting import before_parting

FLUSH_SECONDS = 2.0
"""For which a work-horse waits at most until what it has recorded is sent."""

SHORT = 100
"""Characters: the ids of a trace take fewer."""

_loaded_by = os.getpid()
"""A work-horse was forked from it."""


def headers(found: Mapping[str, str]) -> dict[str, str]:
    """What the job's row is to keep of them: none that is empty, or too long.

    Whoever sends the project a request says how long its ``baggage`` is, and that must not keep the request from
    enqueueing. An eighth of what a context may take is as much as the standard asks for.
    """
    longest = max(SHORT, app_settings.MAX_ARGS_BYTES // 8)
    return {name: value for name, value in found.items() if value and len(value) <= longest}


def headers_of(job: TenantJob, key: str) -> dict[str, str]:
    """What was kept of them. Other programs and SQL may have written anything there, and no job fails for its trace."""
    found = job.context.get(key)
    return {name: value for name, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def is_run(job: TenantJob) -> bool:
    """Whether a context is entered for the function, and not for a callable ``on_busy`` or for ``on_success``."""
    return job._state.adding or (job.attempt > 0 and job.state not in (*ENDED, State.SCHEDULED))


def flush_in_time(flush: Callable[[], object], *, failed: bool) -> None:
    """Have what was recorded sent before this process ends, if that is a work-horse: nothing goes on in the background.

    One that goes on to the next job need not wait for that, but when it parts, and no more need a worker without
    work-horses that a pool has forked. A failure is told at once: the next job may be the one that is killed. A web
    server that runs jobs in immediate mode lives on.
    """
    is_work_horse = os.getpid() != _loaded_by and get_current_job() is not None
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
