"""An exception handler of RQ, as a project may have one."""

from __future__ import annotations

from typing import Any

from tenant_slots.models import TenantJob
from tests.jobs import note


def note_error(rq_job: Any, kind: type[BaseException], *_: Any) -> None:
    job = TenantJob.objects.get()
    tenant, name, history, *_ = job.args
    note(history, kind.__name__, tenant, name)
