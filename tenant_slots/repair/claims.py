"""Who sweeps: one process at a time for each host, and one for everything."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import IntegrityError, OperationalError, transaction
from django.db.models import Q, QuerySet

from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow, ago, in_seconds
from tenant_slots.db.counting import grown
from tenant_slots.db.transactions import UNDONE, sqlstate
from tenant_slots.models import EVERYWHERE, SweepClaim
from tenant_slots.repair.row_of_all import unless_held

CLAIMED_SHARE = 0.8
"""Of the interval, how long a claim lasts: a little less, so that it is free when the next sweep is due."""

REST_SHARE = 0.2
"""Of the interval, how long there is at least between two sweeps."""


def claim(name: str, sweeper: str) -> bool:
    """Become the only sweeper of this kind. The claim of one that died is free again for the next sweep.

    So is one that lies further ahead than a claim lasts: the clock has been set back since, and nobody would sweep
    until it gets there again.
    """
    if _take(name, sweeper):
        return True
    return not SweepClaim.objects.filter(name=name).exists() and _create(name, sweeper)


def claim_unless_held(name: str, sweeper: str) -> bool:
    """As `claim`, where somebody has held its row lately: a free one that is held keeps nobody from sweeping."""
    claimed = unless_held("a sweep is not claimed", partial(claim, name, sweeper))
    return _free(name).exists() if claimed is None else claimed


def _free(name: str) -> QuerySet[SweepClaim]:
    is_over = Q(until__lte=ago(0)) | Q(until__gt=ago(-app_settings.SWEEP_INTERVAL))
    return SweepClaim.objects.filter(is_over, name=name)


def _by(sweeper: str) -> dict[str, Any]:
    """What a row says whose claim begins now."""
    until = in_seconds(app_settings.SWEEP_INTERVAL * CLAIMED_SHARE)
    return {"sweeper": sweeper, "until": until, "swept_at": DatabaseNow()}


def _take(name: str, sweeper: str) -> bool:
    """At a strict isolation level PostgreSQL raises where another one takes it meanwhile, which is no outage."""
    try:
        return bool(_free(name).update(**_by(sweeper), sweeps=grown("sweeps")))
    except OperationalError as error:
        if sqlstate(error) not in UNDONE:
            raise
        return False


def _create(name: str, sweeper: str) -> bool:
    try:
        with transaction.atomic(using=app_settings.DATABASE):
            SweepClaim.objects.create(name=name, **_by(sweeper), sweeps=1)
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
        own = SweepClaim.objects.filter(name=name, sweeper=sweeper, until__lt=rest)
        unless_held("the next sweep may begin early", partial(own.update, until=rest))


def count_reclaimed(jobs: int) -> None:
    """For metrics. In the row that outlives the hosts."""
    if jobs:
        row = SweepClaim.objects.filter(name=EVERYWHERE)
        unless_held(f"{jobs} reclaimed jobs are not counted", partial(row.update, reclaimed=grown("reclaimed", jobs)))
