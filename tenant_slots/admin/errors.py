"""What a job's error tells viewers who may not see arguments: its class. Its text may quote any of them."""

from __future__ import annotations

import re

from tenant_slots.models import TenantJob
from tenant_slots.tasks import attempts

STACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*", re.MULTILINE)
CLASS = re.compile(r"((?:\w+\.)*\w+)(?=:|$)", re.MULTILINE)

NOT_RAISED = (attempts.NO_ERROR, attempts.RUN_LOST, attempts.CANCELED)


def class_of(job: TenantJob) -> str:
    """Of the last one of its runs that raised; empty where none has, or nobody knows it.

    Where no run is kept it is read from the text.
    """
    if runs := attempts.ended_runs(job):
        raised = [run["error"] for run in runs if run["error"] not in NOT_RAISED]
        return raised[-1].removeprefix("builtins.") if raised else ""
    return _read_from(job)


def _read_from(job: TenantJob) -> str:
    """From behind the last stack of the traceback; empty where there is none, as any text could stand there.

    The error of a reservation is its last line, which begins with the class.
    """
    *_, last = [0 if job.is_reservation else -1, *(stack.end() for stack in STACK.finditer(job.error))]
    found = CLASS.match(job.error, last) if last >= 0 else None
    return found[1] if found else ""
