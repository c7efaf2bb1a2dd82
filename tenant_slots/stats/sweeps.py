"""Whether anybody sweeps."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from django.db.models import Subquery

from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.models import EVERYWHERE, SweepClaim

MISSED = 3
"""Sweeps that have to be overdue: one may take longer than the time between two."""


class Look(NamedTuple):
    """The database's clock, and until when it is somebody's to sweep; None where nobody has ever done so."""

    now: datetime
    claimed_until: datetime | None


def claimed_until() -> Subquery:
    """As of a `Look`, to be read along with something else."""
    return Subquery(SweepClaim.objects.filter(name=EVERYWHERE).values("until")[:1])


def _look() -> Look | None:
    """One query. None where nobody has ever swept."""
    claims = SweepClaim.objects.filter(name=EVERYWHERE).annotate(now=DatabaseNow())
    claim = claims.values_list("now", "until").first()
    return Look(*claim) if claim else None


def seconds_overdue(at: Look | None = None) -> float | None:
    """Since when nobody has swept although it was due, roughly; None while somebody does.

    Where nobody has ever swept nothing is known of that time, and it is 0.

    Args:
        at: as it was then; else it is looked at.
    """
    at = at or _look()
    if at is None or at.claimed_until is None:
        return 0.0
    seconds = (at.now - at.claimed_until).total_seconds()
    return seconds if seconds > MISSED * app_settings.SWEEP_INTERVAL else None
