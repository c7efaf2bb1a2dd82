"""How fast are many jobs enqueued in one call?"""

from __future__ import annotations

from argparse import Namespace
from statistics import median

from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import phase
from benchmarks.report import Bar, Result
from benchmarks.sides import PlainDjangoRQ, Side


def measure(options: Namespace) -> Result:
    sides: dict[str, tuple[Side, int]] = {
        "one tenant": (options.side, 1),
        "many tenants": (options.side, options.tenants),
        "plain django-rq": (PlainDjangoRQ(), 1),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, (side, tenants) in sides.items():
            rates[name].append(_jobs_per_second(side, tenants, options.jobs))
    one, many, plain = rates.values()
    return Result(
        [Bar("enqueue_many for one tenant, median", median(one), ">=", 5000, "jobs/s")],
        {
            "by round, jobs/s": _numbers(one),
            f"for {options.tenants} new tenants, jobs/s": _numbers(many),
            "plain django-rq's Queue.enqueue_many, jobs/s": _numbers(plain),
        },
    )


def _jobs_per_second(side: Side, tenants: int, jobs: int) -> float:
    with phase(side) as current:
        return jobs / current.enqueue_many("sleep", [(f"tenant{n % tenants}", f"job{n}", 0.0) for n in range(jobs)])


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)


BENCHMARK = Benchmark(
    name="bulk",
    question="How fast does enqueue_many store jobs?",
    sizes={
        "jobs": Size(10_000, "jobs in one call", smoke=1000),
        "tenants": Size(200, "tenants of the call with many", smoke=20),
        "rounds": Size(5, "rounds of each, by turns", smoke=2),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
