"""One tenant's change in a sweep: what is wrong with its row, or who holds that, is not the others' concern."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from tenant_slots import logs
from tenant_slots.db.transactions import waiting_at_most
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.repair import faults
from tenant_slots.repair.turns import fitting_lease

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")

LOCK_TIMEOUT_SECONDS = 0.2
"""How long one tenant's locked row may hold up a sweep."""

SHARE_OF_ONE = 1 / 8
"""Of the time that is left for all that are locked, how long the next one is waited for."""

SECONDS_FOR_ALL = LOCK_TIMEOUT_SECONDS / SHARE_OF_ONE
"""How long all of them may: there may be hundreds, and what comes after them in a sweep is others'."""

SHORTEST_LOOK = 0.001
"""How long one is waited for when that time is over. It is had if nobody holds it in this moment."""

_waited: ContextVar[float | None] = ContextVar("tenant_slots_sweep_waited", default=None)
"""Seconds for what was held all the same; None outside of a sweep."""


@contextmanager
def waiting_together() -> Iterator[None]:
    """In the block all rows that are locked hold it up for `SECONDS_FOR_ALL`, and each for ever shorter."""
    token = _waited.set(0.0)
    try:
        yield
    finally:
        _waited.reset(token)


def seconds_to_wait() -> float:
    """For the next row."""
    left = fitting_lease(SECONDS_FOR_ALL) - (_waited.get() or 0.0)
    return max(SHORTEST_LOOK, round(left * SHARE_OF_ONE, 3))


def note_held(seconds: float) -> None:
    """That long a row was waited for, in vain."""
    if (waited := _waited.get()) is not None:
        _waited.set(waited + seconds)


def unless_locked(change: Callable[..., T], *given: Any, **named: Any) -> T | None:
    """What the change gives; None when somebody holds the row. The next sweep comes to it, the others do not wait.

    None too when the row was deleted since the sweep read it, and when there is something wrong with this very row.
    """
    try:
        with waiting_at_most(seconds_to_wait()):
            return change(*given, **named)
    except TenantQueueLocked as error:
        note_held(error.seconds)
        logger.warning("the sweep leaves out one tenant queue, which is locked: %s", error, extra=_about(given))
    except TenantQueue.DoesNotExist:
        pass
    except Exception as error:
        if faults.ends_the_step(error):
            raise
        logger.exception("the sweep leaves out one row", extra=_about(given))
    return None


def _about(given: tuple[Any, ...]) -> dict[str, Any]:
    """Of the row that would have been changed, where more of it was given than the key."""
    for row in given:
        if isinstance(row, TenantJob):
            return logs.about(row)
        if isinstance(row, TenantQueue):
            return logs.about_named(tenant=row.tenant, queue=row.queue)
    return logs.about()
