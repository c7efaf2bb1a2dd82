"""What a sweeping process may conclude from what it sees, and how far it got."""

from __future__ import annotations

import logging
import time
from datetime import datetime

from tenant_slots.conf import app_settings
from tenant_slots.models import TenantJob
from tenant_slots.repair.bookmark import Bookmark

logger = logging.getLogger("tenant_slots")


class Contact:
    """Since when this process has had unbroken contact with the database.

    After an outage every lease looks expired, because nobody could renew one. So an owner is called stale only by a
    sweeper that could have seen its heartbeats for the whole time.
    """

    def __init__(self) -> None:
        self._since = self._last = time.monotonic()
        self.breaks = 0
        """How often it was broken."""
        self._absent: dict[tuple[int, int], float] = {}
        self.pruned = Bookmark()
        self.clock: tuple[float, float] | None = None
        """What this process' monotonic clock and the database's said at the same moment."""

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

    def sees(self, now: datetime) -> None:
        """The database's clock. One that was set forward lets every lease look expired, as an outage does."""
        here, there = time.monotonic(), now.timestamp()
        if self.clock is not None and (there - self.clock[1]) - (here - self.clock[0]) > app_settings.LEASE_TTL / 4:
            logger.warning("the database's clock was set forward; nobody is called stale for a lease")
            self.broken()
        self.clock = here, there

    def broken(self) -> None:
        self.breaks += 1
        self._since = self._last = time.monotonic()

    def covers_a_lease(self) -> bool:
        return time.monotonic() - self._since >= app_settings.LEASE_TTL
