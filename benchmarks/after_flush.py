"""How soon is everything under way again when Redis has lost all that it had?"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Any

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND, ends
from benchmarks.phase import phase
from benchmarks.report import Bar, Result

TENANT = "whale"
LIMIT = 10_000
JOB_SECONDS = 0.01
QUEUE = "bench"
SWEEPS = 2


def measure(options: Namespace) -> Result:
    from tenant_slots.conf import app_settings

    back, seconds = _admitted_and_flushed(options)
    longest, done = _waiting_and_flushed(options)
    return Result(
        [
            Bar(f"of {options.jobs} admitted jobs in RQ again after {SWEEPS} sweeps", back, "==", options.jobs),
            Bar("longest time without a start, jobs waiting", longest, "<=", SWEEPS * app_settings.SWEEP_INTERVAL, "s"),
            Bar("jobs that ran exactly once, jobs waiting", done, "==", options.watched),
        ],
        {f"{SWEEPS} sweeps took, s": round(seconds, 2)},
    )


def _admitted_and_flushed(options: Namespace) -> tuple[int, float]:
    """Every job was admitted and pushed, as for a fleet of stock workers. How many are in RQ again after the sweeps."""
    from tenant_slots import slots, transitions
    from tenant_slots.models import TenantQueue

    with phase(options.side) as current:
        current.side.set_limits({TENANT: LIMIT})
        current.enqueue_many("sleep", [(TENANT, f"job{n}", JOB_SECONDS) for n in range(options.jobs)])
        row = TenantQueue.objects.get(tenant=TENANT)
        transitions.push(slots.admit(row.pk, QUEUE, options.jobs).jobs, QUEUE)
        _redis().flushall()
        began = time.perf_counter()
        for _ in range(SWEEPS):
            _sweep()
        seconds = time.perf_counter() - began
        return _redis().llen(f"rq:queue:{QUEUE}"), seconds


def _sweep() -> None:
    """One that comes an interval after what was admitted last, without waiting for it."""
    from django.db.models import F

    from tenant_slots.conf import app_settings
    from tenant_slots.models import TenantJob
    from tenant_slots.repair.sweeper import run_now

    earlier = timedelta(seconds=app_settings.SWEEP_INTERVAL)
    TenantJob.objects.queued().update(admitted_at=F("admitted_at") - earlier)
    run_now("benchmark")


def _waiting_and_flushed(options: Namespace) -> tuple[float, int]:
    """Workers run a backlog. The longest time without a start around the loss, and how many jobs ran once."""
    with phase(options.side) as current:
        current.side.set_limits({TENANT: LIMIT})
        current.enqueue_many("sleep", [(TENANT, f"job{n}", JOB_SECONDS) for n in range(options.watched)])
        current.start_workers(options.workers)
        current.wait_until(lambda: len(current.runs()) >= options.watched // 4)
        flushed = time.time_ns()
        _redis().flushall()
        current.wait_until(lambda: len(ends(current.runs())) >= options.watched, pause=0.25)
        runs = current.runs()
    starts = [flushed, *(run.start for run in runs if run.start > flushed)]
    longest = max(after - before for before, after in pairwise(starts))
    times_ran = Counter(run.name for run in runs)
    return longest / SECOND, sum(count == 1 for count in times_ran.values())


def _redis() -> Any:
    import django_rq

    return django_rq.get_connection(QUEUE)


BENCHMARK = Benchmark(
    name="after_flush",
    question="How soon is everything under way again after a FLUSHALL?",
    sizes={
        "jobs": Size(5000, "jobs that were admitted when Redis lost them", smoke=500),
        "watched": Size(1000, "jobs of 10 ms that are run around a FLUSHALL", smoke=120),
        "workers": Size(4, "worker processes"),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
