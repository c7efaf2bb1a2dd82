"""What a sweeping process may conclude from what it sees, and how far it got."""

from __future__ import annotations

import time

from tenant_slots.conf import app_settings
from tenant_slots.models import TenantJob
from tenant_slots.repair.bookmark import Bookmark


class Contact:
    """Since when this process has had unbroken contact with the database.

    After an outage every lease looks expired, because nobody could renew one. So an owner is called stale only by a
    sweeper that could have seen its heartbeats for the whole time.
    """

    def __init__(self) -> None:
        self._since = self._last = time.monotonic()
        self._absent: dict[tuple[int, int], float] = {}
        self.pruned = Bookmark()

    def absent_for(self, job: TenantJob) -> float:
        """Seconds since this process first found that RQ does not know the job's worker."""
        now = time.monotonic()
        self._absent = {key: since for key, since in self._absent.items() if now - since < 3600}
        return now - self._absent.setdefault((job.pk, job.attempt), now)

    def present(self, job: TenantJob) -> None:
        self._absent.pop((job.pk, job.attempt), None)

    def kept(self) -> None:
        """The database answered. A longer pause than the lease allows proves nothing about the time between."""
        now = time.monotonic()
        if now - self._last > max(app_settings.LEASE_TTL / 2, 2 * app_settings.SWEEP_INTERVAL):
            self._since = now
        self._last = now

    def broken(self) -> None:
        self._since = self._last = time.monotonic()

    def covers_a_lease(self) -> bool:
        return time.monotonic() - self._since >= app_settings.LEASE_TTL
