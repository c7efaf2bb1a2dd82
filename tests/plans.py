"""How PostgreSQL would answer a query."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction


def explained(rows: Any, *, bitmaps: bool = False) -> str:
    """The plan with sequential scans forbidden, so that a few rows are planned like a million, and like pages that are
    visible to everybody: whether they already are is decided by every session that is open.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"SET LOCAL enable_bitmapscan = {'on' if bitmaps else 'off'}")
        plan: str = rows.explain()
        cursor.execute("SET LOCAL enable_seqscan = on")
        cursor.execute("SET LOCAL enable_bitmapscan = on")
    return plan
