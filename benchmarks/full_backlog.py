"""How far beyond its `max_waiting` does a backlog grow when many processes fill it at the same moment?"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter

from benchmarks.harness import Benchmark, Size, main
from benchmarks.many_processes import at_once
from benchmarks.phase import phase
from benchmarks.report import Bar, Result

TENANT = "tenant"


def measure(options: Namespace) -> Result:
    from tenant_slots.models import TenantJob, TenantQueue

    with phase(options.side) as current:
        current.side.set_limits({TENANT: 0})
        TenantQueue.objects.get().set_max_waiting(options.max_waiting)
        did = sum(at_once(options.processes, _fill, options.seconds, seconds=options.seconds), Counter())
        waiting = TenantJob.objects.waiting().count()
    refused = did.pop("TenantQueueFull", 0)
    stored = did.pop("stored")
    return Result(
        [
            Bar("jobs that wait beyond `max_waiting`", waiting - options.max_waiting, "<=", options.processes - 1),
            Bar("calls that were refused", refused, ">=", 1),
            Bar("stored jobs that do not wait", stored - waiting, "==", 0),
            Bar("errors but TenantQueueFull", sum(did.values()), "==", 0),
        ],
        {"jobs stored": stored},
    )


def _fill(number: int, seconds: float) -> Counter[str]:
    """Enqueue one by one, also when the backlog is full."""
    from benchmarks import jobs

    did: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            jobs.nothing.enqueue(TENANT, f"job{number}")
            did["stored"] += 1
        except Exception as error:
            did[type(error).__name__] += 1
    return did


BENCHMARK = Benchmark(
    name="full_backlog",
    question="How far beyond its `max_waiting` does a backlog grow when many processes fill it at the same moment?",
    sizes={
        "processes": Size(50, "processes that enqueue", smoke=4),
        "max_waiting": Size(200, "jobs that may wait", smoke=20),
        "seconds": Size(20.0, "for which they do so", smoke=2.0),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
