"""What becomes of a job whose tenant has no free slot for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asgiref.sync import iscoroutinefunction

from tenant_slots.exceptions import InvalidOption
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.validation import call_problem, is_number, is_positive

WAIT, DISCARD = "wait", "discard"

LONGEST = 366 * 24 * 3600
"""Seconds of a `Reschedule`; a job that is deferred for longer is deferred by mistake."""


@dataclass(frozen=True)
class Reschedule:
    """Leave the backlog and ask for a slot again later.

    Args:
        seconds: until the next try.
        jitter: the share of `seconds` by which a try may come earlier or later, so that jobs which were enqueued
            together do not come back together.

    Raises:
        InvalidOption: a value has the wrong type or is out of range.
    """

    seconds: float
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if not is_positive(self.seconds, LONGEST):
            self._refuse("seconds", f"it must be a number of seconds above 0, at most {LONGEST}")
        if not is_number(self.jitter, 0, 1):
            self._refuse("jitter", "it must be from 0 to 1")

    def _refuse(self, option: str, problem: str) -> None:
        raise InvalidOption(option=option, value=getattr(self, option), task="Reschedule", problem=problem)


Policy = str | Reschedule
OnBusy = Policy | Callable[[TenantJob, TenantQueue], Policy]


def on_busy_problem(value: object) -> str:
    if iscoroutinefunction(value):
        return "it is async; give a plain function"
    if is_policy(value):
        return ""
    if callable(value):
        return call_problem(value, "job", "tenant_queue")
    return f'give "{WAIT}", "{DISCARD}", a Reschedule or a callable'


def is_policy(value: object) -> bool:
    return value in (WAIT, DISCARD) if isinstance(value, str) else isinstance(value, Reschedule)
