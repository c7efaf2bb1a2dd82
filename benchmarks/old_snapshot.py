"""Does a tenant's backlog move as fast while somebody holds an old snapshot?"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import psycopg

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND, ends
from benchmarks.phase import phase
from benchmarks.report import Bar, Result
from benchmarks.sides import Side, TenantSlots

WORKER_CLASS = "tenant_slots.workers.TenantSimpleWorker"
"""Unless the command line names another one: a fork for every job would hide what the database takes."""

PARTS = 5


def measure(options: Namespace) -> Result:
    side = TenantSlots(options.worker_classes[0] if options.worker_classes else WORKER_CLASS)
    free = _seconds_by_part(side, options, held=False)
    held = _seconds_by_part(side, options, held=True)
    return Result(
        [Bar("jobs/s behind an old snapshot / without one", sum(free) / sum(held), ">=", 0.9, "x")],
        {
            f"jobs/s by {100 // PARTS} % of the jobs, behind an old snapshot": _rates(held, options),
            f"jobs/s by {100 // PARTS} % of the jobs, without one": _rates(free, options),
        },
    )


def _seconds_by_part(side: Side, options: Namespace, held: bool) -> list[float]:
    """How long each fifth of the jobs of one tenant took, all enqueued before."""
    with phase(side) as current:
        current.side.set_limits({"whale": options.workers})
        current.close_gate(options.workers)
        current.enqueue_many("nothing", [("whale", f"job{n}") for n in range(options.jobs)])
        with _old_snapshot() if held else nullcontext():
            current.open_gate(options.workers)
            current.wait_for_ends(options.jobs)
        runs = current.runs()
    moments = ends(runs)
    size = len(moments) // PARTS
    marks = [runs[0].start, *(moments[size * part - 1] for part in range(1, PARTS + 1))]
    return [(after - before) / SECOND for before, after in pairwise(marks)]


@contextmanager
def _old_snapshot() -> Iterator[None]:
    """Somebody's report or pg_dump: while it reads, nothing that changed since can be cleared away."""
    with psycopg.connect(os.environ["DATABASE_URL"]) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT count(*) FROM tenant_slots_tenantqueue")
        yield
        session.rollback()


def _rates(seconds: list[float], options: Namespace) -> str:
    return ", ".join(f"{options.jobs / PARTS / value:.1f}" for value in seconds)


BENCHMARK = Benchmark(
    name="old_snapshot",
    question="Does a tenant's backlog move as fast while somebody holds an old snapshot of the database?",
    sizes={
        "jobs": Size(10_000, "jobs of one tenant that do nothing, all waiting", smoke=100),
        "workers": Size(2, "worker processes, and the tenant's limit"),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
