"""Django's language and time zone: a job has those of whoever enqueued it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.utils import timezone, translation

from tenant_slots.models import TenantJob


def capture() -> dict[str, Any]:
    """For ``CAPTURE_CONTEXT``. A time zone without a name, such as one that is an offset only, is left out."""
    named = {"language": translation.get_language(), "time_zone": getattr(timezone.get_current_timezone(), "key", None)}
    return {name: value for name, value in named.items() if value}


@contextmanager
def job_context(job: TenantJob) -> Iterator[None]:
    """For ``JOB_CONTEXT``. What was not captured stays as the process has it."""
    language = job.context.get("language") or translation.get_language()
    zone = job.context.get("time_zone") or timezone.get_current_timezone()
    with translation.override(language), timezone.override(zone):
        yield
