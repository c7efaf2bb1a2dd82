"""An exception handler of RQ, as a project may have one."""

from __future__ import annotations

import os
from typing import Any

from tenant_slots.models import TenantJob
from tests.jobs import note


def note_error(rq_job: Any, kind: type[BaseException], *_: Any) -> None:
    job = TenantJob.objects.get()
    tenant, name, history, *_ = job.args
    note(history, kind.__name__, tenant, name)


def note_message(rq_job: Any, kind: type[BaseException], error: BaseException, stack: Any) -> None:
    """With the function that has raised it, as an error tracker shows it."""
    while stack.tb_next is not None:
        stack = stack.tb_next
    note(os.environ["NOTES"], kind.__name__, error, stack.tb_frame.f_code.co_name)
