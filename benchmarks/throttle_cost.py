"""Does enqueueing cost more under a high threshold than under a low one?"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import replace
from datetime import timedelta
from statistics import median
from typing import Any

from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, milliseconds

OVERFLOW_QUEUE = "bench_slow"


def measure(options: Namespace) -> Result:
    from benchmarks import jobs
    from tenant_slots.enqueueing.ways import WaysToEnqueue

    seconds: dict[str, list[float]] = {"low": [], "high": [], "unthrottled": []}
    with phase(options.side) as current:
        current.side.set_limits(dict.fromkeys(seconds, 0))
        ways_of = {
            "low": _with_full_window("low", options.low),
            "high": _with_full_window("high", options.high),
            "unthrottled": WaysToEnqueue(jobs.query.tenant_task),
        }
        for number in range(options.jobs):
            for tenant, ways in ways_of.items():
                seconds[tenant].append(_seconds_to_enqueue(ways, tenant, f"job{number}"))
    low, high, unthrottled = (median(values) for values in seconds.values())
    return Result(
        [Bar(f"enqueue under threshold {options.high:,} / {options.low:,}, medians", high / low, "<=", 1.3, "x")],
        {
            f"ms per enqueue, threshold {options.low:,}": milliseconds(low),
            f"ms per enqueue, threshold {options.high:,}": milliseconds(high),
            "ms per enqueue, no throttle": milliseconds(unthrottled),
        },
    )


def _with_full_window(tenant: str, threshold: int) -> Any:
    """Enqueues under a rule whose threshold this tenant has reached. Those jobs are counted but not stored."""
    from benchmarks import jobs
    from tenant_slots import Throttle
    from tenant_slots.enqueueing import overflow
    from tenant_slots.enqueueing.new_job import NewJob
    from tenant_slots.enqueueing.ways import WaysToEnqueue
    from tenant_slots.models import TenantJob

    task = replace(jobs.query.tenant_task, throttle=[Throttle(threshold, timedelta(hours=1), OVERFLOW_QUEUE)])
    counted = [TenantJob() for _ in range(threshold + 1)]
    overflow.choose(task, [NewJob(tenant, job) for job in counted])
    if [job.rq_queue for job in counted[-2:]] != ["", OVERFLOW_QUEUE]:
        raise SystemExit(f"The window under threshold {threshold} is not just full.")
    return WaysToEnqueue(task)


def _seconds_to_enqueue(ways: Any, tenant: str, name: str) -> float:
    began = time.perf_counter()
    ways.enqueue(tenant, name)
    return time.perf_counter() - began


BENCHMARK = Benchmark(
    name="throttle_cost",
    question="Does enqueueing cost more under a high threshold than under a low one?",
    sizes={
        "low": Size(10, "the low threshold"),
        "high": Size(100_000, "the high threshold", smoke=1000),
        "jobs": Size(2000, "jobs of each, enqueued one by one and by turns", smoke=60),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
