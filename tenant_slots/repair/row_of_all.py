"""A change in a sweep of a row that is all tenants': who holds that does not stop the sweep."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError

from tenant_slots import logs
from tenant_slots.conf import app_settings
from tenant_slots.db.transactions import is_locked_out, send, waiting_at_most, within_patience
from tenant_slots.repair.one_row import note_held, seconds_to_wait

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")


def unless_held(what: str, change: Callable[[], T], **about: str) -> T | None:
    """What the change gives, in a transaction; None where somebody holds a row of it.

    Args:
        what: is not done then, for the log.
        change: of such rows.
        about: whom or what it belongs to, as in `logs.about_named`.
    """
    seconds = seconds_to_wait()
    try:
        with waiting_at_most(seconds), within_patience(app_settings.DATABASE) as rules:
            send(app_settings.DATABASE, rules)
            return change()
    except OperationalError as error:
        if not is_locked_out(error):
            raise
        note_held(seconds)
        logger.warning("%s, somebody holds the row: %s", what, error, extra=logs.about_named(**about))
    return None
