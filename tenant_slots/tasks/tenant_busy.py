"""What a job raises that meets a partner who wants nothing more of its tenant for a while."""

from __future__ import annotations

import copyreg
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from tenant_slots.exceptions import InvalidOption, InvalidTime
from tenant_slots.rests import LONGEST
from tenant_slots.validation import is_number, time_problem, type_problem


class TenantBusy(Exception):
    """The job goes back to its place in the backlog, without a failure, and its tenant queue rests.

    Args:
        reason: why, in a few words; staff see it.
        seconds: for how long, from 0 to a day.
        until: or until when; a time that has passed is no rest.

    Raises:
        InvalidOption: neither `seconds` nor `until` is given, or both, or one of the values is not possible.
        InvalidTime: `until` has no time zone, or is more than a day ahead.
    """

    def __init__(self, reason: str = "", *, seconds: float | None = None, until: datetime | None = None) -> None:
        super().__init__(reason)
        self.reason, self.seconds, self.until = reason, seconds, until
        if problem := type_problem(reason, str):
            self._refuse("reason", reason, problem)
        if until is not None and seconds is None:
            _require_soon(until)
        elif until is not None:
            self._refuse("until", until, "give it or seconds, not both")
        elif not is_number(seconds, 0, LONGEST.total_seconds()):
            self._refuse("seconds", seconds, f"give a number of seconds from 0 to {LONGEST.total_seconds():.0f}")

    def __reduce__(self) -> Any:
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]

    @property
    def seconds_left(self) -> float:
        """By this host's clock."""
        if self.until is None:
            return self.seconds or 0.0
        return max(0.0, (self.until - _now()).total_seconds())

    def _refuse(self, option: str, value: object, problem: str) -> None:
        raise InvalidOption(option=option, value=value, task="TenantBusy", problem=problem)


def _require_soon(until: datetime) -> None:
    problem = time_problem(until, aware=settings.USE_TZ)
    if not problem and until > _now() + LONGEST + timedelta(minutes=1):
        problem = "it is more than a day ahead"
    if problem:
        raise InvalidTime(value=until, problem=problem)


def _now() -> datetime:
    return timezone.now()
