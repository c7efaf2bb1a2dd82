"""Whether anybody sweeps."""

from __future__ import annotations

from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.models import EVERYWHERE, SweepClaim

MISSED = 3
"""Sweeps that have to be overdue: one may take longer than the time between two."""


def seconds_overdue() -> float | None:
    """Since when nobody has swept although it was due, roughly; None while somebody does. One query.

    Where nobody has ever swept nothing is known of that time, and it is 0.
    """
    until = SweepClaim.objects.filter(name=EVERYWHERE).values_list("until", flat=True).first()
    if until is None:
        return 0.0
    seconds: float = (clock.now() - until).total_seconds()
    return seconds if seconds > MISSED * app_settings.SWEEP_INTERVAL else None
