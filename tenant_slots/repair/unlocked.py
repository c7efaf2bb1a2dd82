"""Changing many rows without waiting for anybody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db.models import QuerySet

from tenant_slots.conf import app_settings
from tenant_slots.db.transactions import patience, send, waiting_at_most, within_patience
from tenant_slots.models import TenantJob
from tenant_slots.repair.one_row import LOCK_TIMEOUT_SECONDS


@contextmanager
def unlocked(jobs: QuerySet[TenantJob], *, to_delete: bool = False) -> Iterator[QuerySet[TenantJob]]:
    """Those of the jobs that no other transaction has locked, to change them in this one.

    Somebody's open transaction may have canceled one of them; the next sweep comes to it, the others do not wait. Nor
    do they for one whose change has a trigger of the project wait for what somebody holds: `in_halves` finds it.

    Args:
        to_delete: without those that another transaction is about to refer to.

    Raises:
        OperationalError: such a wait took longer than a sweep has patience. Nothing of the block was done.
    """
    alias, seconds = app_settings.DATABASE, min(patience.get(), LOCK_TIMEOUT_SECONDS)
    with waiting_at_most(seconds), within_patience(alias) as rules:
        send(alias, rules)
        pks = list(jobs.select_for_update(skip_locked=True, no_key=not to_delete).values_list("pk", flat=True))
        yield TenantJob.objects.filter(pk__in=pks)
