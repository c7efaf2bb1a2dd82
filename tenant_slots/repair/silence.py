"""Whether jobs that nobody has heard of are silent, or only not let in.

Heartbeats are writes. A lock may keep them out, of the row or of all jobs, or what a trigger of the project does, while
everything can be read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from django.db import connections, transaction
from django.db.models import QuerySet

from tenant_slots import slots
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.sessions import close_if_ended
from tenant_slots.db.transactions import bounded_at_once, check_deferred, patience, waiting_at_most
from tenant_slots.models import TenantJob
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.one_row import unless_locked
from tenant_slots.repair.turns import for_seconds

LEASE_BETWEEN_LOOKS = 1 / 10
"""Share of a lease between two looks. A heartbeat that has failed, or that a lock has kept out, is tried meanwhile."""

SECONDS_TO_LOOK = 1
"""At all that may be silent. After the loss of a fleet these are as many as it had workers."""


def silent(jobs: Iterable[TenantJob], stale: QuerySet[TenantJob], contact: Contact) -> list[TenantJob]:
    """Those of the jobs that may be silent, once their owners have had time to say otherwise.

    As many as there is time for; each is to be looked at once more before it is judged.

    Args:
        jobs: that have not been heard of.
        stale: among which they were found.
        contact: of the sweeper that judges.
    """
    found = list(jobs)
    if found:
        contact.sees(clock.now())  # after they were found: it may have been set forward since the sweep began
    if not contact.covers_a_lease():
        return []
    found = [job for job in for_seconds(SECONDS_TO_LOOK, found) if unless_locked(is_silent, job, stale)]
    if found:
        time.sleep(app_settings.LEASE_TTL * LEASE_BETWEEN_LOOKS)
        close_if_ended(connections[app_settings.DATABASE])  # by a limit for idle ones: no outage
    return found


def is_silent(job: TenantJob, stale: QuerySet[TenantJob]) -> bool:
    """Whether it is among these still, though a heartbeat of it can be written: one is, and taken back.

    Raises:
        TenantQueueLocked: it could not be written, as something is locked. Its own function may hold the row.
        Error: or for another reason.
    """
    alias = app_settings.DATABASE
    with (
        waiting_at_most(min(patience.get(), slots.HEARTBEAT_SECONDS)),
        bounded_at_once(alias, job.tenant_queue_id),
        transaction.atomic(using=alias),  # for that of a caller, which goes on
    ):
        found = bool(stale.filter(pk=job.pk, attempt=job.attempt, token=job.token).update(beat_at=DatabaseNow()))
        check_deferred(alias)
        transaction.set_rollback(True, using=alias)
    return found
