"""What OpenTelemetry and Sentry are told of a job alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone

from tenant_slots.conf import app_settings
from tenant_slots.exact_json import size_of
from tenant_slots.logs import fields_of
from tenant_slots.models import ENDED, State, TenantJob
from tenant_slots.validation import text_problem

SHORT = 100
"""Bytes, with the header's name: the ids of a trace take fewer."""


def headers(found: Mapping[str, str], of_trace: Collection[str]) -> dict[str, str]:
    """What the job's row is to keep of them: the shortest ones as far as there is room, and only texts that a database
    takes, none of them empty.

    Whoever sends the project a request says how long its ``baggage`` is, and what is in it, which for some propagators
    is a header for each item. That must not keep the request from enqueueing. An eighth of what a context may take is
    as much as the standard asks for. However many there are, those of the trace itself go before them: the short ones
    `of_trace`.
    """
    kept: dict[str, str] = {}
    room = max(SHORT, app_settings.MAX_ARGS_BYTES // 8)
    texts = {name: value for name, value in texts_in(found).items() if value and not text_problem(name + value)}
    sizes = {name: size_of({name: value}) for name, value in texts.items()}
    for name in sorted(sizes, key=lambda name: (sizes[name] > SHORT or name not in of_trace, sizes[name])):
        if sizes[name] <= room:
            room -= sizes[name]
            kept[name] = found[name]
    return kept


def headers_of(job: TenantJob, key: str) -> dict[str, str]:
    """What was kept of them. Other programs and SQL may have written anything there, and no job fails for its trace."""
    return texts_in(job.context.get(key))


def texts_in(found: object) -> dict[str, str]:
    return {name: value for name, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def is_run(job: TenantJob) -> bool:
    """Whether a context is entered for the function, and not for a callable ``on_busy`` or for ``on_success``."""
    return job._state.adding or (job.attempt > 0 and job.state not in (*ENDED, State.SCHEDULED))


def attributes_of(job: TenantJob) -> dict[str, Any]:
    """As the log has them, with the seconds from when it could start to its start; without what is not known."""
    known = {**fields_of(job), "wait": None if job._state.adding else _wait(job)}
    return {name: value for name, value in known.items() if value is not None}


def _wait(job: TenantJob) -> float:
    """Of a stored one: a plain RQ job without a tenant has no row, and so no times."""
    ready: datetime = max(job.enqueued_at, job.run_after or job.enqueued_at)
    return max(0.0, ((job.started_at or timezone.now()) - ready).total_seconds())
