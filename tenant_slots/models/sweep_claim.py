"""Who sweeps."""

from __future__ import annotations

from django.db import models

from tenant_slots.models.fields import Moment
from tenant_slots.models.manager import InConfiguredDatabase

EVERYWHERE = "everywhere"
"""The name of the sweep of all tenant queues; each host has one of its own besides."""


class SweepClaim(models.Model):
    """Who sweeps now: a row per kind of sweep, taken by a conditional UPDATE until a time of the database's clock.

    `sweeps` and, in the row of `EVERYWHERE`, `reclaimed` count what was done so far; `swept_at` is when the
    last one began.
    """

    name = models.CharField(max_length=120, primary_key=True)
    sweeper = models.TextField(default="")
    until = Moment()
    swept_at = Moment(null=True)
    sweeps = models.PositiveBigIntegerField(default=0)
    reclaimed = models.PositiveBigIntegerField(default=0)

    objects = InConfiguredDatabase()

    class Meta:
        base_manager_name = "objects"

    def __str__(self) -> str:
        return self.name
