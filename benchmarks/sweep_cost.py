"""What does a sweep cost when nothing is wrong?"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, milliseconds

TABLES = ("tenantqueue", "tenantjob")


def measure(options: Namespace) -> Result:
    with phase(options.side) as current:
        tenants = [f"tenant{n}" for n in range(options.tenants)]
        for _ in range(1 + options.waiting // options.tenants):
            current.enqueue_many("query", [(tenant, "job") for tenant in tenants])
        _settle()
        sweeps = [_one_sweep() for _ in range(options.rounds)]
    in_database = [milliseconds(sum(seconds for _, seconds in statements)) for statements in sweeps]
    return Result(
        [
            Bar("database time of one sweep, median", median(in_database), "<=", 50, "ms"),
            Bar("statements that lock or change a tenant or a job", _locking(sweeps), "==", 0),
        ],
        {
            "database time by sweep, ms": ", ".join(map(str, in_database)),
            "statements in one sweep": len(sweeps[0]),
        },
    )


def _settle() -> None:
    """Make the jobs old enough to be looked for in Redis, and let PostgreSQL know its tables."""
    from django.db import connection

    from tenant_slots.db.clock import in_seconds
    from tenant_slots.models import TenantJob

    TenantJob.objects.queued().update(admitted_at=in_seconds(-60))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _one_sweep() -> list[tuple[str, float]]:
    """Each statement with the seconds that its answer took, fetching of the rows included."""
    from tenant_slots.db.clock import in_seconds
    from tenant_slots.models import SweepClaim
    from tenant_slots.repair.sweeper import Sweeper

    SweepClaim.objects.update(until=in_seconds(-1))
    with _timed() as statements:
        report = Sweeper("benchmark").sweep()
    if report:
        raise SystemExit(f"The sweep found something to do, so this is not the case to measure: {report}")
    return statements


@contextmanager
def _timed() -> Iterator[list[tuple[str, float]]]:
    from django.db import connection

    statements: list[tuple[str, float]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            statements.append((sql, time.perf_counter() - began))

    with connection.execute_wrapper(note):
        yield statements


def _locking(sweeps: list[list[tuple[str, float]]]) -> int:
    """Not the claim of the sweep itself, nor the minutes of a week ago, which one sweep an hour deletes."""
    changes = tuple(f'{how} "tenant_slots_{what}"' for how in ("UPDATE", "DELETE FROM") for what in TABLES)
    return sum("FOR NO KEY UPDATE" in sql or sql.startswith(changes) for statements in sweeps for sql, _ in statements)


BENCHMARK = Benchmark(
    name="sweep_cost",
    question="What does a sweep cost when nothing is wrong?",
    sizes={
        "tenants": Size(10_000, "tenants, each with one job in RQ", smoke=500),
        "waiting": Size(100_000, "waiting jobs", smoke=5_000),
        "rounds": Size(10, "sweeps", smoke=3),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
