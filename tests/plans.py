"""How PostgreSQL would answer a query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction


def analyze() -> None:
    """Or PostgreSQL guesses by what its background process has seen last, if only the rows of an earlier test."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tenant_slots_tenantqueue, tenant_slots_tenantjob")


def empty_files() -> None:
    """For both tables and their indexes until this test's transaction is over.

    Rows of earlier tests leave room behind them when autovacuum comes by, a little in each of some hundred pages, and
    rows that are written there are not side by side. Before it does, a small table is read through all of them.
    """
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE tenant_slots_tenantqueue, tenant_slots_tenantjob CASCADE")


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
    ways = {"seqscan": False, "bitmapscan": bitmaps, "sort": sorts}
    with without(*(way for way, is_allowed in ways.items() if not is_allowed)):
        plan: str = rows.explain()
    return plan


@contextmanager
def without(*ways: str) -> Iterator[None]:
    """A transaction whose rows are read in none of these ways: a few may be that a million are not."""
    with transaction.atomic(), connection.cursor() as cursor:
        for way in ways:
            cursor.execute(f"SET LOCAL enable_{way} = off")
        yield
        for way in ways:
            cursor.execute(f"SET LOCAL enable_{way} = on")


def rows_read(plan: dict[str, Any], table: str = "tenant_slots_tenantjob") -> float:
    """How many jobs each part of a plan has read, those too that were no match; as EXPLAIN (ANALYZE, FORMAT JSON)."""
    own = 0.0
    if plan.get("Relation Name") == table:
        own = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    return own * plan["Actual Loops"] + sum(rows_read(part, table) for part in plan.get("Plans", ()))
