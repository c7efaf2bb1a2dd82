"""How much longer do small tenants wait because a big one has enqueued a mountain of work?"""

from __future__ import annotations

import random
import time
from argparse import Namespace
from itertools import chain

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import Run
from benchmarks.phase import Phase, phase
from benchmarks.report import Bar, Result, milliseconds, percentile
from benchmarks.sides import PlainDjangoRQ, Side

WHALE = "whale"
JOB_SECONDS = 0.05
JOBS_PER_TENANT = 3


def measure(options: Namespace) -> Result:
    quiet: list[list[float]] = []
    loud: list[list[float]] = []
    for number in range(options.rounds):
        quiet.append(_waits(options, options.side, number, whale_jobs=0))
        loud.append(_waits(options, options.side, number, whale_jobs=options.whale_jobs))
    plain = percentile(_waits(options, PlainDjangoRQ(), 0, whale_jobs=options.whale_jobs), 95)
    without, beside = percentile([*chain(*quiet)], 95), percentile([*chain(*loud)], 95)
    return Result(
        [
            Bar("small tenants' p95 wait beside the whale / without it", beside / without, "<=", 1.5, "x"),
            Bar("their p95 wait on plain django-rq / with tenant_slots", plain / beside, ">=", 100, "x"),
        ],
        {
            "p95 wait without the whale, ms": f"{milliseconds(without)}, by round {_p95s(quiet)}",
            "p95 wait beside the whale, ms": f"{milliseconds(beside)}, by round {_p95s(loud)}",
            "p95 wait on plain django-rq, ms": milliseconds(plain),
        },
    )


def _waits(options: Namespace, side: Side, number: int, whale_jobs: int) -> list[float]:
    """The small tenants' waits in seconds. Rounds of the same number have the same arrivals on every side."""
    with phase(side) as current:
        current.start_workers(options.workers)
        if whale_jobs:
            current.enqueue_many("sleep", [(WHALE, f"whale{n}", JOB_SECONDS) for n in range(whale_jobs)])
        _arrive(current, options, random.Random(number))
        current.wait_for_ends(options.tenants * JOBS_PER_TENANT, of=_is_small)
        return current.waits(_is_small)


def _arrive(current: Phase, options: Namespace, chance: random.Random) -> None:
    """Enqueue the small tenants' jobs one by one at random moments."""
    arrivals = sorted(
        (chance.uniform(0, options.seconds), f"small{tenant}", f"small{tenant}-{n}")
        for tenant in range(options.tenants)
        for n in range(JOBS_PER_TENANT)
    )
    began = time.monotonic()
    for moment, tenant, name in arrivals:
        time.sleep(max(0.0, began + moment - time.monotonic()))
        current.enqueue_many("sleep", [(tenant, name, JOB_SECONDS)])


def _is_small(run: Run) -> bool:
    return run.tenant != WHALE


def _p95s(rounds: list[list[float]]) -> str:
    return ", ".join(str(milliseconds(percentile(waits, 95))) for waits in rounds)


BENCHMARK = Benchmark(
    name="noisy_neighbour",
    question="How much longer do small tenants wait beside a tenant with a mountain of work?",
    sizes={
        "workers": Size(4, "worker processes"),
        "whale_jobs": Size(2000, "jobs of 50 ms that the whale enqueues at once", smoke=1000),
        "tenants": Size(20, "small tenants with 3 jobs each", smoke=8),
        "seconds": Size(8.0, "time over which the small tenants' jobs arrive", smoke=2.0),
        "rounds": Size(3, "rounds without and beside the whale", smoke=1),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
