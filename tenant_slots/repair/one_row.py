"""One tenant's change in a sweep: what is wrong with its row, or who holds that, is not the others' concern."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from tenant_slots import logs
from tenant_slots.db.transactions import waiting_at_most
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.repair import faults

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")

LOCK_TIMEOUT_SECONDS = 0.2
"""How long one tenant's locked row may hold up a sweep."""


def unless_locked(change: Callable[..., T], *given: Any, **named: Any) -> T | None:
    """What the change gives; None when somebody holds the row. The next sweep comes to it, the others do not wait.

    None too when the row was deleted since the sweep read it, and when there is something wrong with this very row.
    """
    try:
        with waiting_at_most(LOCK_TIMEOUT_SECONDS):
            return change(*given, **named)
    except TenantQueueLocked as error:
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
