"""How PostgreSQL would answer a query."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction


def analyze() -> None:
    """Or PostgreSQL guesses by what its background process has seen last, if only the rows of an earlier test."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tenant_slots_tenantqueue, tenant_slots_tenantjob")


def explained_sql(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        return "\n".join(line for (line,) in cursor.fetchall())


def explained(rows: Any, *, bitmaps: bool = False, sorts: bool = True) -> str:
    """The plan with sequential scans forbidden, so that a few rows are planned like a million, and like pages that are
    visible to everybody: whether they already are is decided by every session that is open.

    Without `sorts`, rows are sorted only where no index has them in order: a few are as soon sorted as read in order.
    """
    analyze()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"SET LOCAL enable_bitmapscan = {'on' if bitmaps else 'off'}")
        cursor.execute(f"SET LOCAL enable_sort = {'on' if sorts else 'off'}")
        plan: str = rows.explain()
        cursor.execute("SET LOCAL enable_seqscan = on")
        cursor.execute("SET LOCAL enable_bitmapscan = on")
        cursor.execute("SET LOCAL enable_sort = on")
    return plan


def rows_read(plan: dict[str, Any], table: str = "tenant_slots_tenantjob") -> float:
    """How many jobs each part of a plan has read, those too that were no match; as EXPLAIN (ANALYZE, FORMAT JSON)."""
    own = 0.0
    if plan.get("Relation Name") == table:
        own = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    return own * plan["Actual Loops"] + sum(rows_read(part, table) for part in plan.get("Plans", ()))
