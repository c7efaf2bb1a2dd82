"""What became of the jobs of each queue of RQ, minute by minute: kept when the jobs themselves are gone."""

from __future__ import annotations

from django.db import models

from tenant_slots.models.fields import Moment
from tenant_slots.models.manager import InConfiguredDatabase

ALL_QUEUES = ""
"""The queue of the rows that add up all of them. Each minute that was counted has one, so that its gaps can be told
from minutes in which nothing happened."""

DELAY_BOUNDS = (0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1800, 2 * 3600, 12 * 3600)
"""Seconds. A start delay is counted with those up to the first of these that it does not exceed, or as the longest."""

DELAYS = tuple(f"delays_{place}" for place in range(len(DELAY_BOUNDS) + 1))
"""Columns of the first starts by their start delay, the shortest first."""

COUNTS = ("started", "finished", "failed", "canceled", *DELAYS)
"""What happened in the minute."""

RUN_BOUNDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600)
"""Seconds, as `DELAY_BOUNDS`, of a job's last run."""

RUNS = tuple(f"runs_{place}" for place in range(len(RUN_BOUNDS) + 1))
"""Columns of the finished and failed jobs by the time of their last run, the shortest first."""

SUMS = ("delay_ms", "run_ms")
"""All start delays of `DELAYS` and all run times of `RUNS` together, in milliseconds."""

COUNTED = (*COUNTS, *RUNS, *SUMS)
"""All that is counted of a minute, the part for metrics among it."""

GAUGES = ("running", "runnable", "held_back", "workers")
"""What was at its end; NULL where nobody looked then, or Redis could not be asked."""


VERSION_LENGTH = 100


class QueueMinute(models.Model):
    """One minute of a queue of RQ, without reservations. A queue in which nothing happened has no row.

    The delays are columns, so that the database adds up a week of them in some milliseconds.
    """

    queue = models.CharField(max_length=100)
    minute = Moment()
    started = models.PositiveIntegerField(default=0)
    finished = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    canceled = models.PositiveIntegerField(default=0)
    running = models.PositiveIntegerField(null=True)
    runnable = models.PositiveIntegerField(null=True)
    held_back = models.PositiveIntegerField(null=True)
    workers = models.PositiveIntegerField(null=True)
    version = models.CharField(max_length=VERSION_LENGTH, default="", db_default="")
    """``PROJECT_VERSION`` of who looked at its end, in the rows of `ALL_QUEUES`."""

    objects = InConfiguredDatabase()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["queue", "minute"], name="tenant_slots_queue_minute")]

    def __str__(self) -> str:
        return f"{self.queue or 'all queues'} at {self.minute}"


for name in (*DELAYS, *RUNS):
    QueueMinute.add_to_class(name, models.PositiveIntegerField(default=0))
for name in SUMS:
    QueueMinute.add_to_class(name, models.PositiveBigIntegerField(default=0))
