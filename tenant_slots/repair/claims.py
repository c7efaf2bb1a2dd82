"""Who sweeps: one process at a time for each host, and one for everything."""

from __future__ import annotations

from django.db import IntegrityError, transaction
from django.db.models import Q

from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow, ago, in_seconds
from tenant_slots.db.counting import grown
from tenant_slots.models import EVERYWHERE, SweepClaim

CLAIMED_SHARE = 0.8
"""Of the interval, how long a claim lasts: a little less, so that it is free when the next sweep is due."""

REST_SHARE = 0.2
"""Of the interval, how long there is at least between two sweeps."""


def claim(name: str, sweeper: str) -> bool:
    """Become the only sweeper of this kind. The claim of one that died is free again for the next sweep.

    So is one that lies further ahead than a claim lasts: the clock has been set back since, and nobody would sweep
    until it gets there again.
    """
    until = in_seconds(app_settings.SWEEP_INTERVAL * CLAIMED_SHARE)
    is_over = Q(until__lte=ago(0)) | Q(until__gt=ago(-app_settings.SWEEP_INTERVAL))
    free = SweepClaim.objects.filter(is_over, name=name)
    if free.update(sweeper=sweeper, until=until, swept_at=DatabaseNow(), sweeps=grown("sweeps")):
        return True
    if SweepClaim.objects.filter(name=name).exists():
        return False
    try:
        with transaction.atomic(using=app_settings.DATABASE):
            SweepClaim.objects.create(name=name, sweeper=sweeper, until=until, swept_at=DatabaseNow(), sweeps=1)
            SweepClaim.objects.filter(until__lt=ago(app_settings.RETENTION)).delete()  # of hosts that are gone
    except IntegrityError:
        return False
    return True


def done(name: str, sweeper: str, seconds: float) -> None:
    """The claim ends as it would have, but not at once: what is due does not wait longer because a sweep was long.

    Args:
        seconds: for which the sweep has lasted.
    """
    if seconds > app_settings.SWEEP_INTERVAL * (CLAIMED_SHARE - REST_SHARE):
        rest = in_seconds(app_settings.SWEEP_INTERVAL * REST_SHARE)
        SweepClaim.objects.filter(name=name, sweeper=sweeper, until__lt=rest).update(until=rest)


def count_reclaimed(jobs: int) -> None:
    """For metrics. In the row that outlives the hosts."""
    if jobs:
        SweepClaim.objects.filter(name=EVERYWHERE).update(reclaimed=grown("reclaimed", jobs))
