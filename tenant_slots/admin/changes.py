"""A tenant queue is changed in the name of whoever is signed in, unless somebody else was quicker."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext

from tenant_slots.admin.words import NOTHING, origin
from tenant_slots.locks import locked
from tenant_slots.models import Change, TenantQueue
from tenant_slots.rates import Rate

CONFLICT = 409
"""The status of an answer to who has not seen the latest change."""


def name_of(request: HttpRequest) -> str:
    return str(request.user.get_username())


def set_limit(row: TenantQueue, *, max_job: int, until: datetime | None, **facts: Any) -> list[Change]:
    """For good, or until a time; the facts are ``by``, ``reason`` and ``version``."""
    if until is not None:
        return row.set_override(max_job, until, **facts)
    return row.set_limit(max_job, **facts)


def set_limit_and_share(
    row: TenantQueue, *, max_job: int, until: datetime | None, share: int | None, shown_until: str | None, **facts: Any
) -> list[Change]:
    """What differs from what is stored; what does not keeps its source and its override.

    Args:
        shown_until: the end of the override as the form was filled with it: who has emptied it wants none any more, and
            who was shown none knows of none that has come meanwhile. None where the form was not filled with any.
    """
    ends_override = until is None and shown_until is not None and bool(shown_until or row.override_until)
    changes: list[Change] = []
    with locked(row.pk):  # both or none
        if max_job != row.max_job or ends_override or (until is not None and until != row.override_until):
            changes += set_limit(row, max_job=max_job, until=until, **facts)
            facts["version"] = row.version
        if share is not None and share != row.share:
            changes += row.set_share(share, **facts)
    return changes


def set_rate(row: TenantQueue, rate: Rate | None, **facts: Any) -> list[Change]:
    if rate is None:
        return row.set_rate(None, **facts)
    return row.set_rate(rate.number, per=rate.per, burst=rate.burst, **facts)


def conflict_text(row: TenantQueue, yours: int | None) -> str:
    """With what is stored now, and until when that holds: whoever sends the form again ends it."""
    theirs = f"{row.max_job} ({origin(row)})" if row.override_until else row.max_job
    return gettext(
        "Somebody else has changed this tenant queue in the meantime. Their limit: %(theirs)s. Yours: %(yours)s. "
        "Nothing was saved."
    ) % {"theirs": theirs, "yours": NOTHING if yours is None else yours}
