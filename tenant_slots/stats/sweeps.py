"""Whether anybody sweeps."""

from __future__ import annotations

from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.models import EVERYWHERE, SweepClaim

MISSED = 3
"""Sweeps that have to be overdue: one may take longer than the time between two."""


def seconds_overdue() -> float | None:
    """Since when nobody has swept although it was due, roughly; None while somebody does. One query.

    Where nobody has ever swept nothing is known of that time, and it is 0.
    """
    claims = SweepClaim.objects.filter(name=EVERYWHERE).annotate(now=DatabaseNow())
    claim = claims.values_list("until", "now").first()
    if claim is None:
        return 0.0
    until, now = claim
    seconds: float = (now - until).total_seconds()
    return seconds if seconds > MISSED * app_settings.SWEEP_INTERVAL else None
