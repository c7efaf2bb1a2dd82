"""A change that was not taken: somebody keeps the row, or the database or a rule of the project refuses it.

Whoever asked for it is told why; nothing of it is a server error.
"""

from __future__ import annotations

from textwrap import shorten
from typing import NamedTuple

from django.db import DatabaseError
from django.db.models import ProtectedError, RestrictedError
from django.utils.translation import gettext

from tenant_slots.admin.changes import CONFLICT
from tenant_slots.exceptions import TenantQueueLocked, TenantSlotsError
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.refusals import is_refusal

GONE_MEANWHILE = (TenantQueue.DoesNotExist, TenantJob.DoesNotExist)
"""Of what was deleted after it was read."""

NOT_TAKEN = (TenantSlotsError, DatabaseError, *GONE_MEANWHILE)
"""What may be a refusal; see `refusal`."""

LONGEST_REASON = 500
"""Characters."""

NOT_FOUND, UNAVAILABLE = 404, 503


class Refusal(NamedTuple):
    text: str
    status: int
    """Of the answer: to try again may help, or nothing does."""


def refusal(error: Exception) -> Refusal:
    """What to answer to whoever asked for the change. Raises the error if it is about more than what was to be changed.

    Args:
        error: one of `NOT_TAKEN`.
    """
    if isinstance(error, GONE_MEANWHILE):
        return Refusal(gettext("It was deleted in the meantime."), NOT_FOUND)
    if not fails_alone(error):
        raise error
    return Refusal(_reason(error), UNAVAILABLE if isinstance(error, TenantQueueLocked) else CONFLICT)


def fails_alone(error: Exception) -> bool:
    """Whether a change of some rows may fail by it, and that of others need not: projects have rules of their own."""
    return isinstance(error, TenantSlotsError) or is_refusal(error)


def problem(name: object, error: Exception) -> str:
    """Why a change of this has failed."""
    return f"{name}: {_reason(error)}"


def _reason(error: Exception) -> str:
    """What a database says in further lines is the row, which not all may see; nor are the rows of the project that
    Django names where these protect another one.
    """
    if isinstance(error, TenantQueueLocked):
        return gettext("Another transaction keeps the tenant queue locked, so that nothing was changed. Try again.")
    text = error.args[0] if isinstance(error, (ProtectedError, RestrictedError)) else error
    return shorten(str(text).partition("\n")[0], LONGEST_REASON, placeholder="…")
