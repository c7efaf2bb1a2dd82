"""How a tenant queue's limit and pause are changed: one at a time, seen by its version, told to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from tenant_slots import signals, slots
from tenant_slots.conf import app_settings
from tenant_slots.exceptions import StaleVersion
from tenant_slots.models import TenantQueue

CAPS = ("max_job_per_key", "max_waiting")
"""Changed by themselves: neither an override nor the default has a say in them."""

CHANGEABLE = (
    "max_job",
    *CAPS,
    "paused",
    "resume_at",
    "limit_source",
    "limit_set_by",
    "override_until",
    "override_by",
    "limit_before_override",
)

LONGEST_NAME: int = TenantQueue._meta.get_field("limit_set_by").max_length or 0

CHANGES_KEPT = 100
"""Of `TenantQueue.limit_history`, which the charts draw the limit from."""


@dataclass(frozen=True)
class Change:
    """One change of a limit or a pause."""

    what: str
    """``"limit"``, ``"paused"``, ``"max_job_per_key"`` or ``"max_waiting"``."""
    old: int | bool | None
    new: int | bool | None
    by: str
    reason: str
    until: datetime | None
    """When the sweep takes it back, if it does."""


def change(
    tenant_queue: TenantQueue, apply: Callable[[TenantQueue], None], by: str, reason: str, version: int | None
) -> list[Change]:
    """Save what `apply` sets on the row as it is stored, locked; `tenant_queue` has the stored values afterwards.

    Raises:
        StaleVersion: the row's version is not `version`.
    """
    with slots.locked(tenant_queue.pk) as row:
        row.refresh_from_db(fields=row.get_deferred_fields())
        if version is not None and row.version != version:
            raise StaleVersion(tenant_queue=row, max_job=row.max_job, version=row.version)
        before = _values(row)
        apply(row)
        row.limit_set_by, row.override_by = row.limit_set_by[:LONGEST_NAME], row.override_by[:LONGEST_NAME]
        _save(row, before)
        changes = list(_changes(row, before, by, reason))
        for one in changes:
            transaction.on_commit(partial(_tell, row, one), using=app_settings.DATABASE, robust=True)
    _copy(row, tenant_queue)
    return changes


def _values(row: TenantQueue) -> dict[str, Any]:
    return {name: getattr(row, name) for name in CHANGEABLE}


def _save(row: TenantQueue, before: dict[str, Any]) -> None:
    changed = {name for name, value in _values(row).items() if value != before[name]}
    if "max_job" in changed:
        moment = round(timezone.now().timestamp(), 3)
        row.limit_history = [*(row.limit_history or []), [moment, before["max_job"]]][-CHANGES_KEPT:]
        changed.add("limit_history")
    if changed:
        row.save(update_fields=changed)


def _changes(row: TenantQueue, before: dict[str, Any], by: str, reason: str) -> Iterator[Change]:
    if (row.max_job, row.override_until) != (before["max_job"], before["override_until"]):
        yield Change("limit", before["max_job"], row.max_job, by, reason, row.override_until)
    if (row.paused, row.resume_at) != (before["paused"], before["resume_at"]):
        yield Change("paused", before["paused"], row.paused, by, reason, row.resume_at)
    for name in CAPS:
        if getattr(row, name) != before[name]:
            yield Change(name, before[name], getattr(row, name), by, reason, None)


def _copy(row: TenantQueue, to: TenantQueue) -> None:
    for name in (*CHANGEABLE, "version", "limit_history", "current_job"):
        setattr(to, name, getattr(row, name))


def _tell(row: TenantQueue, change: Change) -> None:
    signals.limit_changed.send_robust(sender=TenantQueue, tenant_queue=row, change=change)
