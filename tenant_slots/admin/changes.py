"""A tenant queue is changed in the name of whoever is signed in, unless somebody else was quicker."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext

from tenant_slots.admin.words import NOTHING
from tenant_slots.models import Change, TenantQueue

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
    row: TenantQueue, *, max_job: int, until: datetime | None, share: int | None, **facts: Any
) -> list[Change]:
    """Where only the share differs from what is stored, the limit keeps its source and its override."""
    if share is None or share == row.share:
        return set_limit(row, max_job=max_job, until=until, **facts)
    changes: list[Change] = []
    if max_job != row.max_job or (until is not None and until != _shown(row.override_until)):
        changes += set_limit(row, max_job=max_job, until=until, **facts)
        facts["version"] = row.version
    return changes + row.set_share(share, **facts)


def _shown(time: datetime | None) -> datetime | None:
    """A time as its input has it: without seconds."""
    return time and time.replace(second=0, microsecond=0)


def conflict_text(theirs: int, yours: int | None) -> str:
    return gettext(
        "Somebody else has changed this tenant queue in the meantime. Their limit: %(theirs)s. Yours: %(yours)s. "
        "Nothing was saved."
    ) % {"theirs": theirs, "yours": NOTHING if yours is None else yours}
