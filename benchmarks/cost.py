"""What do slots cost when nobody is held back?"""

from __future__ import annotations

from argparse import Namespace
from statistics import median

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND, ends
from benchmarks.phase import phase
from benchmarks.report import Bar, Result
from benchmarks.sides import PlainDjangoRQ, Side

BARS = {"TenantWorker": 0.9, "TenantPreforkWorker": 3.5}
"""By worker class. One that runs jobs in its own process forks as little as the latter does."""


def measure(options: Namespace) -> Result:
    ours: list[float] = []
    plain: list[float] = []
    for _ in range(options.rounds):
        plain.append(_jobs_per_second(PlainDjangoRQ(), options))
        ours.append(_jobs_per_second(options.side, options))
    ratios = [mine / theirs for mine, theirs in zip(ours, plain, strict=True)]
    bar = BARS.get(options.side.kind, BARS["TenantPreforkWorker"])
    return Result(
        [Bar("jobs/s with tenant_slots / plain django-rq, median of rounds", median(ratios), ">=", bar, "x")],
        {
            "ratio by round": ", ".join(f"{ratio:.3f}" for ratio in ratios),
            f"jobs/s, {options.side.label}": _numbers(ours),
            "jobs/s, plain django-rq": _numbers(plain),
            "one worker's ms per job": f"{_per_job(ours, options):.1f}, plain {_per_job(plain, options):.1f}",
        },
    )


def _jobs_per_second(side: Side, options: Namespace) -> float:
    """From the first start to the last end, all jobs enqueued before."""
    with phase(side) as current:
        current.close_gate(options.workers)
        current.enqueue_many("query", [(f"tenant{n % options.tenants}", f"job{n}") for n in range(options.jobs)])
        current.open_gate(options.workers)
        current.wait_for_ends(options.jobs)
        runs = current.runs()
        return len(runs) * SECOND / (ends(runs)[-1] - runs[0].start)


def _per_job(rates: list[float], options: Namespace) -> float:
    return 1000 * float(options.workers) / median(rates)


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


BENCHMARK = Benchmark(
    name="cost",
    question="What do slots cost when nobody is held back? The job is one SQL query.",
    sizes={
        "workers": Size(2, "worker processes"),
        "tenants": Size(200, "tenants that share the jobs", smoke=50),
        "jobs": Size(600, "jobs in one round", smoke=100),
        "rounds": Size(5, "rounds of each side, by turns", smoke=2),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
