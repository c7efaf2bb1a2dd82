"""What a tenant is charged for a run that nobody has measured: its process died, or whoever knew is gone."""

from __future__ import annotations

from datetime import timedelta

from tenant_slots import fair_order
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.models import State, TenantJob

LONGEST = timedelta(days=1)
"""The most that a row is believed: no clock that was set forward, and no time written by SQL, costs a tenant more."""


def unmeasured(job: TenantJob) -> float:
    """Seconds for which the job has had a worker, as far as its row tells, which was read while it held its slot.

    Where heartbeats were sent it died before the next one was due, however late somebody notices. A reservation has no
    worker.
    """
    if job.is_reservation:
        return fair_order.NOTHING_CHARGED
    if job.state != State.RUNNING or job.started_at is None:
        return fair_order.NOTHING_RAN
    end = clock.now()
    if job.beats and job.beat_at is not None:
        end = min(end, job.beat_at + timedelta(seconds=app_settings.BEAT_INTERVAL))
    took: timedelta = min(end - job.started_at, LONGEST)
    return max(0.0, took.total_seconds())
