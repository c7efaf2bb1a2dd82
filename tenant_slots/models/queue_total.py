"""What has become of the jobs of each queue of RQ since the first minute that was counted: counters for metrics."""

from __future__ import annotations

from django.db import models

from tenant_slots.models.manager import InConfiguredDatabase
from tenant_slots.models.queue_minute import COUNTED

LOST_RUNS = ("crashes", "interruptions")
"""Runs whose process died, as a job counts them; these are added as they are found."""


class QueueTotal(models.Model):
    """All minutes of a queue of RQ, those too that are kept no longer. None of its counters ever falls.

    The row of ``ALL_QUEUES`` is locked by whoever counts minutes.
    """

    queue = models.CharField(max_length=100, primary_key=True)
    crashes = models.PositiveBigIntegerField(default=0)
    interruptions = models.PositiveBigIntegerField(default=0)

    objects = InConfiguredDatabase()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()

    def __str__(self) -> str:
        return self.queue or "all queues"


for name in COUNTED:
    QueueTotal.add_to_class(name, models.PositiveBigIntegerField(default=0))
