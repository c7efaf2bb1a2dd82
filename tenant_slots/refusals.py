"""What an error of the database is about: a row, or the rows of a tenant, that it does not take, or all of them."""

from __future__ import annotations

import re

from django.db import DataError, Error, IntegrityError, connections

from tenant_slots.conf import app_settings
from tenant_slots.db.transactions import bounded_at_once, is_locked_out, sqlstate
from tenant_slots.models import TenantJob

OF_ALL = ("08", "25", "26", "28", "3D", "40", "530", "531", "532", "533", "55P03", "57P")
"""The beginnings of SQLSTATEs of the server, the session, and of others' locks and transactions, whatever the row."""

OF_OTHERS = ("40", "53", "55P03", "57P")
"""Those of others' locks and transactions, and of a server that stops, or whose disk or memory is full: a trigger meets
them as any statement does.
"""

IN_FUNCTION = re.compile("PL/|SQL|dblink")
"""In what the server has met an error if not in our own statement: in a function of the project's.

Words that PostgreSQL has in every language, as those that follow.
"""

RAISED = re.compile(r"\b(RAISE|dblink|remote SQL command)\b")
"""In what an error was raised that the server has not met itself: a function of the project has, or another server."""


def is_refusal(error: BaseException) -> bool:
    """Whether the database objects to this very row, and not to what others would have it do.

    A value is out of its column's range or against a constraint, a trigger of the project has failed in whatever way, a
    policy keeps the row from us, it takes too long, or it is corrupted. Many of these errors would be the same without
    our tables, or without the right to change them: where one may be about that, they are asked.
    """
    if isinstance(error, (DataError, IntegrityError)):
        return True
    if not isinstance(error, Error):
        return False
    state = sqlstate(error)
    if not isinstance(state, str) or (state.startswith(OF_ALL) and not _is_of_trigger(error, state)):
        return False
    return _can_change_rows()


def _is_of_trigger(error: Error, state: str) -> bool:
    """Or of another server that it has asked. Ours says in what it was met, and lives: another row has none of it."""
    words = RAISED if state.startswith(OF_OTHERS) else IN_FUNCTION
    return bool(words.search(_context_of(error)))


def is_of_one(error: BaseException) -> bool:
    """Whether it may be this row's alone, so that others' are to be tried now: the database refuses it, or a function
    of the project's has met what would be about all, as a disk that is full, and our session lives.
    """
    if not isinstance(error, Error):
        return False
    met = bool(IN_FUNCTION.search(_context_of(error)))
    return is_refusal(error) or (met and connections[app_settings.DATABASE].is_usable())


def is_outage(error: Error) -> bool:
    """Whether it keeps us from all that is asked of the database: nobody holds a row, nor may it be one row's alone.

    To be asked while the session that has met it is the one of this thread.
    """
    return not (is_locked_out(error) or is_of_one(error))


def _context_of(error: Error) -> str:
    return getattr(getattr(error.__cause__, "diag", None), "context", None) or ""


def _can_change_rows() -> bool:
    """Whether the session of this thread lives, and may change our tables, with all columns that we know of.

    To lock a row takes the right to change it, and a server that is written to.
    """
    alias = app_settings.DATABASE
    if not connections[alias].is_usable():
        return False
    try:
        with bounded_at_once(alias, 0):
            TenantJob.objects.select_related("tenant_queue").select_for_update().filter(pk=0).first()
    except Error:
        return False
    return True
