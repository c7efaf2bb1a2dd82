"""Changing many rows without waiting for anybody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction
from django.db.models import QuerySet

from tenant_slots.conf import app_settings
from tenant_slots.models import TenantJob


@contextmanager
def unlocked(jobs: QuerySet[TenantJob], *, to_delete: bool = False) -> Iterator[QuerySet[TenantJob]]:
    """Those of the jobs that no other transaction has locked, to change them in this one.

    Somebody's open transaction may have canceled one of them; the next sweep comes to it, the others do not wait.

    Args:
        to_delete: without those that another transaction is about to refer to.
    """
    with transaction.atomic(using=app_settings.DATABASE):
        pks = list(jobs.select_for_update(skip_locked=True, no_key=not to_delete).values_list("pk", flat=True))
        yield TenantJob.objects.filter(pk__in=pks)
