"""What do slots cost when nobody is held back?"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND, ends
from benchmarks.phase import phase
from benchmarks.report import Bar, Result
from benchmarks.sides import PlainDjangoRQ, Side

BARS = {"TenantWorker": 0.9, "TenantPreforkWorker": 3.5}
"""By worker class. One that runs jobs in its own process forks as little as the latter does."""

FORKS_FOR_EVERY_JOB = "TenantWorker"
"""Against a worker of RQ's that never forks it would show what forks cost."""

NO_OP_BAR = 0.9


@dataclass(frozen=True)
class Comparison:
    """Of one kind of job, on plain django-rq and with tenant_slots."""

    function: str
    plain: PlainDjangoRQ
    what: str
    bar: float


def measure(options: Namespace) -> Result:
    bars: list[Bar] = []
    facts: dict[str, object] = {}
    for comparison in _comparisons(options.side.kind):
        result = _compared(comparison, options)
        bars += result.bars
        facts |= result.facts
    return Result(bars, facts)


def _comparisons(kind: str) -> Iterator[Comparison]:
    plain = PlainDjangoRQ()
    bar = BARS.get(kind, BARS["TenantPreforkWorker"])
    yield Comparison("query", plain, f"jobs/s with tenant_slots / {plain.label}", bar)
    if kind != FORKS_FOR_EVERY_JOB:
        simple = PlainDjangoRQ("rq.SimpleWorker")
        yield Comparison("nothing", simple, f"no-op jobs/s with tenant_slots / {simple.label}", NO_OP_BAR)


def _compared(comparison: Comparison, options: Namespace) -> Result:
    """By turns, so that both have the same hour of the machine."""
    ours: list[float] = []
    plain: list[float] = []
    for _ in range(options.rounds):
        plain.append(_jobs_per_second(comparison.plain, comparison.function, options))
        ours.append(_jobs_per_second(options.side, comparison.function, options))
    ratios = [mine / theirs for mine, theirs in zip(ours, plain, strict=True)]
    job = comparison.function
    return Result(
        [Bar(f"{comparison.what}, median of rounds", median(ratios), ">=", comparison.bar, "x")],
        {
            f"{job}, ratio by round": ", ".join(f"{ratio:.3f}" for ratio in ratios),
            f"{job}, jobs/s, {options.side.label}": _numbers(ours),
            f"{job}, jobs/s, {comparison.plain.label}": _numbers(plain),
            f"{job}, one worker's ms per job": f"{_per_job(ours, options):.1f}, plain {_per_job(plain, options):.1f}",
        },
    )


def _jobs_per_second(side: Side, function: str, options: Namespace) -> float:
    """From the first start to the last end, all jobs enqueued before."""
    with phase(side) as current:
        current.close_gate(options.workers)
        current.enqueue_many(function, [(f"tenant{n % options.tenants}", f"job{n}") for n in range(options.jobs)])
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
    question="What do slots cost when nobody is held back? The job is one SQL query, and then nothing at all.",
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
