"""How soon does a pause or a lower limit hold, when a tenant has all workers and many jobs waiting?"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND, Run
from benchmarks.phase import Phase, phase
from benchmarks.report import Bar, Result, milliseconds

TENANT = "whale"
LIMIT = 50
JOB_SECONDS = 0.05

WATCHED_SECONDS = 1.0
"""After a pause, or after the limit was lowered."""


def measure(options: Namespace) -> Result:
    started: list[Run] = []
    under_way: list[Run] = []
    at_once: list[int] = []
    with phase(options.side) as current:
        row = _backlogged(current, options)
        for number in range(options.times):
            current.wait_until(lambda: _is_busy(current, options.workers))
            begun, returned, now = _change(row.pause if number % 2 else lambda: row.set_limit(1))
            time.sleep(WATCHED_SECONDS)
            after = [run for run in current.runs() if run.start > returned]
            late = [run for run in after if run.name not in _started_by(now)]
            under_way += [run for run in after if run not in late]
            if number % 2:
                started += late
                row.resume()
            else:
                at_once += [_running_at(run.start, current.runs()) for run in late]
                row.set_limit(LIMIT)
        _require_backlog(current, options)
    return Result(
        [
            Bar("starts after pause() had returned, those under way aside", len(started), "==", 0),
            Bar("most at once at a start after set_limit(1) had returned", max(at_once, default=0), "==", 1),
        ],
        {
            "starts after set_limit(1) had returned": len(at_once),
            "first lines of jobs that were marked as running before a change returned": len(under_way),
            "the last change took, ms": milliseconds((returned - begun) / SECOND),
        },
    )


def _backlogged(current: Phase, options: Namespace) -> Any:
    from tenant_slots.models import TenantQueue

    current.side.set_limits({TENANT: LIMIT})
    current.enqueue_many("sleep", [(TENANT, f"job{n}", JOB_SECONDS) for n in range(options.jobs)])
    current.start_workers(options.workers)
    return TenantQueue.objects.get(tenant=TENANT)


def _is_busy(current: Phase, workers: int) -> bool:
    return sum(run.end is None for run in current.runs()) >= workers


def _change(change: Callable[[], object]) -> tuple[int, int, datetime]:
    """When it began and returned, and what the database's clock said by then."""
    from tenant_slots.db import clock

    begun = time.time_ns()
    change()
    returned = time.time_ns()
    return begun, returned, clock.now()


def _started_by(now: datetime) -> set[str]:
    """The jobs that were marked as running before the change returned; a fork later they write their line."""
    from tenant_slots.models import TenantJob

    return {args[1] for args in TenantJob.objects.filter(started_at__lte=now).values_list("args", flat=True)}


def _running_at(moment: int, runs: Iterable[Run]) -> int:
    return sum(run.start <= moment and (run.end is None or run.end > moment) for run in runs)


def _require_backlog(current: Phase, options: Namespace) -> None:
    if len(current.runs()) >= options.jobs:
        raise SystemExit("The tenant had nothing left to run, so that nothing started says nothing: give it more jobs.")


BENCHMARK = Benchmark(
    name="pause_bites",
    question="How soon does a pause or a lower limit hold?",
    sizes={
        "workers": Size(4, "worker processes"),
        "jobs": Size(4000, "jobs of 50 ms of one tenant with limit 50", smoke=600),
        "times": Size(20, "changes: a lower limit and a pause by turns", smoke=4),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
