"""When another version of the project came to run, by what the sweeps have noted of themselves minute by minute."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, Window
from django.db.models.functions import Lag

from tenant_slots.conf import app_settings
from tenant_slots.db.clock import ago
from tenant_slots.models import QueueMinute
from tenant_slots.models.queue_minute import ALL_QUEUES

ROLLING = timedelta(minutes=15)
"""For which two versions may run side by side, and sweep by turns: the same one again is no other deploy."""


@dataclass(frozen=True)
class Deploy:
    at: datetime
    """The minute at whose end the version was seen."""
    version: str


def last_deploys(seconds: int) -> list[Deploy]:
    """The oldest first. One query, or none where ``PROJECT_VERSION`` is empty."""
    if not app_settings.PROJECT_VERSION:
        return []
    rows = QueueMinute.objects.filter(queue=ALL_QUEUES, minute__gte=ago(seconds)).exclude(version="")
    told = rows.annotate(
        old=Window(Lag("version"), order_by="minute"), told_at=Window(Lag("minute"), order_by="minute")
    )
    changes = told.exclude(old=F("version")).filter(old__isnull=False).order_by("minute")
    found: list[Deploy] = []
    last_seen: dict[str, datetime] = {}
    for version, at, old, told_at in changes.values_list("version", "minute", "old", "told_at"):
        last_seen[old] = told_at
        if version not in last_seen or at - last_seen[version] > ROLLING:
            found.append(Deploy(at, version))
    return found
