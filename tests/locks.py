"""Locks on the whole table of jobs, as a migration takes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

from tenant_slots.models import TenantJob

KEEPS_CHANGES_OUT = ["SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE"]
"""What creates an index takes the first one, a foreign key to jobs the second. All of them let rows be read."""


@contextmanager
def kept_out(mode: str) -> Iterator[None]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {TenantJob._meta.db_table} IN {mode} MODE")
        yield
