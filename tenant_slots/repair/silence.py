"""Whether jobs that nobody has heard of are silent, or only not let in: heartbeats are writes, and others' locks keep
them out while everything can be read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from django.db.models import QuerySet

from tenant_slots import slots
from tenant_slots.conf import app_settings
from tenant_slots.models import TenantJob
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.one_row import unless_locked
from tenant_slots.repair.unlocked import unlocked

logger = logging.getLogger("tenant_slots")

LEASE_BETWEEN_LOOKS = 1 / 20
"""Share of a lease between two looks. A heartbeat that a lock kept out is tried five times meanwhile."""


def silent(jobs: Iterable[TenantJob], stale: QuerySet[TenantJob], contact: Contact) -> list[TenantJob]:
    """Those of the jobs that stay stale while their heartbeats are let in; each is to be looked at once more.

    A row that somebody holds may be held by the job itself, so it is left alone.

    Args:
        stale: among which they were found.
    """
    found = list(jobs)
    if not found or not contact.covers_a_lease() or not _are_let_in(contact):
        return []
    found = [job for job in found if unless_locked(is_silent, job, stale)]
    if not found:
        return []
    time.sleep(app_settings.LEASE_TTL * LEASE_BETWEEN_LOOKS)
    return found if _are_let_in(contact) else []


def is_silent(job: TenantJob, stale: QuerySet[TenantJob]) -> bool:
    """Whether it is among these still, and nobody holds its row."""
    with unlocked(stale.filter(pk=job.pk, attempt=job.attempt, token=job.token)) as found:
        return found.exists()


def _are_let_in(contact: Contact) -> bool:
    if slots.lets_heartbeats_in():
        return True
    contact.broken()
    logger.warning("a lock on all jobs keeps heartbeats out; nobody is called stale for a lease")
    return False
