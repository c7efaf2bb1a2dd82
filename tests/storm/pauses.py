"""No job of a tenant starts while that is paused, by the database's clock."""

from __future__ import annotations

from datetime import datetime, timedelta

from tenant_slots.db import clock
from tenant_slots.models import TenantJob

UNDER_WAY = timedelta(seconds=1)
"""A start that the database had begun with before the pause was committed may be noted so long after it."""


class Pauses:
    def __init__(self) -> None:
        self.breaches: list[str] = []
        self._since: dict[str, datetime] = {}

    def began(self, tenant: str) -> None:
        """After the pause has been committed."""
        self._since[tenant] = clock.now()

    def is_to_end(self, tenant: str) -> None:
        """Before anybody resumes the tenant: what has started until now was not to. Later calls do nothing."""
        if tenant in self._since:
            started = TenantJob.objects.filter(
                tenant_queue__tenant=tenant, started_at__gt=self._since[tenant] + UNDER_WAY
            )
            self.breaches += [f"{job} of {tenant} started while that was paused" for job in started]
            del self._since[tenant]
