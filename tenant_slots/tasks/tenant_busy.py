"""What a job raises that meets a partner who wants nothing more of its tenant for a while."""

from __future__ import annotations

import copyreg
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from tenant_slots import logs
from tenant_slots.exceptions import InvalidOption, InvalidTime
from tenant_slots.rests import LONGEST, SHORTEST
from tenant_slots.validation import is_number, shown, time_problem, type_problem

logger = logging.getLogger("tenant_slots")


class TenantBusy(Exception):
    """The job goes back to its place in the backlog, without a failure, and its tenant queue rests.

    A partner's answer is passed on as it is: a rest that it wants shorter than a second lasts one, and one that it
    wants longer than a day lasts a day.

    Args:
        reason: why, in a few words; staff see it.
        seconds: for how long.
        until: or until when.

    Raises:
        InvalidOption: neither `seconds` nor `until` is given, or both, or one of the values is of the wrong type.
        InvalidTime: `until` is no time, or has no time zone.
    """

    def __init__(self, reason: str = "", *, seconds: float | None = None, until: datetime | None = None) -> None:
        super().__init__(reason)
        self.reason, self.seconds, self.until = reason, seconds, until
        if problem := type_problem(reason, str):
            self._refuse("reason", reason, problem)
        if until is not None and seconds is None:
            self.until = _possible_time(until)
        elif until is not None:
            self._refuse("until", until, "give it or seconds, not both")
        elif seconds is None:
            self._refuse("seconds", None, "give seconds= or until=")
        elif not is_number(seconds):
            self._refuse("seconds", seconds, "give a number of seconds")
        else:
            self.seconds = _possible_seconds(seconds)

    def __reduce__(self) -> Any:
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]

    def _refuse(self, option: str, value: object, problem: str) -> None:
        raise InvalidOption(option=option, value=value, task="TenantBusy", problem=problem)


def rest_of(error: TenantBusy) -> dict[str, Any]:
    """What the tenant queue is told: a text, a number and a text of Python's own types, whatever a class of the project
    has made of them. Its worker computes with them.

    Raises:
        InvalidOption, InvalidTime: as the constructor, of what was set since.
        Exception: whatever the class raises, such as AttributeError where it has not called the constructor.
    """
    meant = TenantBusy(error.reason, seconds=error.seconds, until=error.until)
    until = None if meant.until is None else _plain_time(meant.until)
    seconds = None if meant.seconds is None else _possible_seconds(_plain_number(meant.seconds))
    return {"reason": str.__str__(meant.reason), "seconds": seconds, "until": until}


def seconds_left(error: TenantBusy) -> float:
    """By this host's clock, until the rest is over. Raises as `rest_of`."""
    rest = rest_of(error)
    if rest["until"] is None:
        return float(rest["seconds"])
    left = datetime.fromisoformat(rest["until"]) - timezone.now()
    return min(max(0.0, left.total_seconds()), LONGEST.total_seconds())


def _plain_number(number: float) -> float:
    return int.__int__(number) if isinstance(number, int) else float.__float__(number)


def _plain_time(time: datetime) -> str:
    return datetime.isoformat(datetime.astimezone(time, UTC) if settings.USE_TZ else time)


@contextmanager
def possible() -> Iterator[None]:
    """Of a `TenantBusy` from the block the tenant queue can be told. Raises as `rest_of`."""
    try:
        yield
    except TenantBusy as error:
        rest_of(error)
        raise


def _possible_seconds(wanted: float) -> float:
    seconds = min(max(wanted, SHORTEST.total_seconds()), LONGEST.total_seconds())
    if seconds != wanted:
        text = "a rest lasts from a second to a day, and not as long as was asked for: %s"
        logger.info(text, shown(wanted), extra=logs.about_here())
    return seconds


def _possible_time(wanted: datetime) -> datetime:
    """One that has passed by this host's clock, or is more than a day ahead, may be neither by the database's, which
    decides.
    """
    if problem := time_problem(wanted, aware=settings.USE_TZ):
        raise InvalidTime(value=wanted, problem=problem)
    return wanted
