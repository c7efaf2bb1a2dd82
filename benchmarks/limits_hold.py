"""Do limits hold while many workers race for slots?"""

from __future__ import annotations

import random
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import Run, highest_overlap
from benchmarks.phase import Phase, phase
from benchmarks.report import Bar, Result
from benchmarks.sides import Arguments, PlainDjangoRQ

LIMITS = {"a": 1, "b": 1, "c": 2, "d": 2, "e": 3, "f": 8}
SHORTEST, LONGEST = 0.005, 0.05
BATCH = 50
"""Jobs per enqueue, so that enqueues race with releases."""


def measure(options: Namespace) -> Result:
    with phase(options.side) as current:
        runs = _run_all(current, options)
        current.wait_until(lambda: not _unfinished())
        left = _slots_in_use()
    with phase(PlainDjangoRQ()) as plain:
        plain_overlap = highest_overlap(_run_all(plain, options))
    overlap = highest_overlap(runs)
    times_ran = Counter(run.name for run in runs)
    return Result(
        [
            Bar("jobs above a limit", sum(max(0, overlap[tenant] - LIMITS[tenant]) for tenant in overlap), "==", 0),
            Bar("jobs that ran exactly once", sum(count == 1 for count in times_ran.values()), "==", options.jobs),
            Bar("slots in use at the end", left, "==", 0),
        ],
        {"highest overlap": _against_limits(overlap), "on plain django-rq": _against_limits(plain_overlap)},
    )


def _run_all(current: Phase, options: Namespace) -> list[Run]:
    current.side.set_limits(LIMITS)
    current.start_workers(options.workers)
    calls = _calls(options.jobs)
    for first in range(0, len(calls), BATCH):
        current.enqueue_many("sleep", calls[first : first + BATCH])
    current.wait_for_ends(options.jobs)
    return current.runs()


def _calls(jobs: int) -> list[Arguments]:
    chance = random.Random(1)
    tenants = list(LIMITS)
    return [(chance.choice(tenants), f"job{n}", chance.uniform(SHORTEST, LONGEST)) for n in range(jobs)]


def _unfinished() -> bool:
    from tenant_slots.models import ENDED, TenantJob

    return bool(TenantJob.objects.exclude(state__in=ENDED).exists())


def _slots_in_use() -> int:
    from tenant_slots.models import TenantQueue

    return sum(TenantQueue.objects.values_list("current_job", flat=True))


def _against_limits(overlap: Mapping[str, int]) -> str:
    return ", ".join(f"{tenant} {overlap.get(tenant, 0)} of {limit}" for tenant, limit in LIMITS.items())


BENCHMARK = Benchmark(
    name="limits_hold",
    question="Do limits hold while many workers race for slots?",
    sizes={"workers": Size(8, "worker processes", smoke=3), "jobs": Size(1000, "jobs in all", smoke=60)},
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
