"""How long does a new tenant wait when very many others have a backlog and may use every worker?"""

from __future__ import annotations

import random
import time
from argparse import Namespace

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import Run
from benchmarks.phase import Phase, phase
from benchmarks.report import Bar, Result, milliseconds, percentile

JOB_SECONDS = 0.05
NEWCOMER = "newcomer"

JOBS_LONGER = 3
"""A newcomer stands behind nobody's backlog: a running job ends, and others' turns that were taken just before."""


def measure(options: Namespace) -> Result:
    alone: list[float] = []
    beside: list[float] = []
    for number in range(options.rounds):
        alone += _waits(options, number, backlogged=0)
        beside += _waits(options, number, backlogged=options.backlogged)
    longer = percentile(beside, 95) - percentile(alone, 95)
    bar = milliseconds(JOBS_LONGER * JOB_SECONDS)
    return Result(
        [Bar("a newcomer's p95 wait beside the backlogs - alone", milliseconds(longer), "<=", bar, "ms")],
        {
            "p50 / p95 wait alone, ms": _text(alone),
            "p50 / p95 wait beside the backlogs, ms": _text(beside),
        },
    )


def _waits(options: Namespace, number: int, backlogged: int) -> list[float]:
    """Those who had never run a job were newcomers themselves, so each has its first turn before others come."""
    with phase(options.side) as current:
        tenants = [f"tenant{n}" for n in range(backlogged)]
        current.side.set_limits(dict.fromkeys(tenants, options.limit))
        calls = [(tenant, f"{tenant}-{n}", JOB_SECONDS) for n in range(options.jobs) for tenant in tenants]
        current.enqueue_many("sleep", calls)
        current.start_workers(options.workers)
        if tenants:
            current.wait_until(lambda: len({run.tenant for run in current.runs()}) == backlogged, pause=0.1)
        _arrive(current, options, random.Random(number))
        current.wait_for_ends(options.newcomers, of=_is_newcomer)
        if tenants and len(current.runs()) >= len(calls):
            raise SystemExit("The backlogs were used up, so newcomers met idle workers: give them more jobs.")
        return current.waits(_is_newcomer)


def _arrive(current: Phase, options: Namespace, chance: random.Random) -> None:
    """Each newcomer is a tenant that nobody has heard of, with one job."""
    moments = sorted(chance.uniform(0, options.seconds) for _ in range(options.newcomers))
    began = time.monotonic()
    for number, moment in enumerate(moments):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        name = f"{NEWCOMER}{number}"
        current.enqueue_many("sleep", [(name, name, JOB_SECONDS)])


def _is_newcomer(run: Run) -> bool:
    return run.tenant.startswith(NEWCOMER)


def _text(waits: list[float]) -> str:
    return f"{milliseconds(percentile(waits, 50))} / {milliseconds(percentile(waits, 95))}"


BENCHMARK = Benchmark(
    name="newcomer",
    question="How long does a new tenant wait when many others have a backlog and may use every worker?",
    sizes={
        "workers": Size(4, "worker processes"),
        "backlogged": Size(200, "tenants with a backlog", smoke=50),
        "limit": Size(5, "limit of each of them"),
        "jobs": Size(10, "jobs of 50 ms of each of them", smoke=6),
        "newcomers": Size(40, "new tenants with one job each", smoke=8),
        "seconds": Size(15.0, "time over which they arrive", smoke=2.0),
        "rounds": Size(3, "rounds without and beside the backlogs", smoke=1),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
