"""What a sweeping process may conclude from what it sees, and how far it got."""

from __future__ import annotations

import logging
import math
import time
from datetime import datetime
from typing import Any, NamedTuple

from tenant_slots.conf import app_settings
from tenant_slots.models import TenantJob
from tenant_slots.repair.bookmark import Bookmark
from tenant_slots.repair.pace import Pace

logger = logging.getLogger("tenant_slots")


class Seen(NamedTuple):
    """A worker of RQ's own classes was on record."""

    at: float
    """When it was last, by `time.monotonic`."""
    record: dict[str, Any]
    """Some of what RQ's record says of it."""


class Contact:
    """Since when this process has had unbroken contact with the database.

    After an outage every lease looks expired, because nobody could renew one. So an owner is called stale only by a
    sweeper that could have seen its heartbeats for the whole time.
    """

    def __init__(self) -> None:
        self._since = self._last = time.monotonic()
        self.breaks = 0
        """How often it was broken."""
        self.pruned = Bookmark()
        self.workers: dict[str, dict[str, Seen]] = {}
        """By a queue of their server, and RQ's key."""
        self.pace = Pace()
        self.refused: set[int] = set()
        """Due jobs that the database does not let be promoted: the others are tried first."""
        self.looked_for_forgotten_at = -math.inf
        """When it has last looked for jobs that wait for nothing, and done what it could."""
        self.waits_for_claims = True
        """Not once a sweep has not come to its claim: somebody may hold that."""
        self.clock: tuple[float, float] | None = None
        """What this process' monotonic clock and the database's said at the same moment."""
        self._doubted: dict[tuple[int, int], tuple[float, object]] = {}

    def doubts(self, job: TenantJob, sign_of_life: object) -> float:
        """Seconds for which this process has found that RQ does not name the job's worker, nor has a new sign of life.

        Args:
            sign_of_life: what changes when the run is heard of: by its changing, not by a clock of another host.
        """
        now = time.monotonic()
        self._doubted = {run: doubt for run, doubt in self._doubted.items() if now - doubt[0] < 3600}
        since, sign = self._doubted.setdefault((job.pk, job.token), (now, sign_of_life))
        if sign == sign_of_life:
            return now - since
        self._doubted[job.pk, job.token] = (now, sign_of_life)
        return 0

    def trusts(self, job: TenantJob) -> None:
        """RQ names the job's worker."""
        self._doubted.pop((job.pk, job.token), None)

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
