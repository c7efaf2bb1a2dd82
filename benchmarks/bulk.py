"""How fast are many jobs enqueued in one call, beside RQ's own `Queue.enqueue_many`?"""

from __future__ import annotations

from argparse import Namespace
from statistics import median

from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import phase
from benchmarks.report import Bar, Result
from benchmarks.sides import PlainDjangoRQ, Side

BARS = (1.5, 1.2, 1.0)
"""For one tenant, many tenants, and many new ones."""

PLAIN = "RQ's Queue.enqueue_many"


def measure(options: Namespace) -> Result:
    known = [f"tenant{n}" for n in range(options.tenants)]
    new = [f"tenant{n}" for n in range(options.new_tenants)]
    loads: dict[str, tuple[Side, list[str], bool]] = {
        PLAIN: (PlainDjangoRQ(), known[:1], True),
        "one tenant": (options.side, known[:1], True),
        f"{options.tenants} tenants": (options.side, known, True),
        f"{options.new_tenants} new tenants": (options.side, new, False),
    }
    rates: dict[str, list[float]] = {name: [] for name in loads}
    for _ in range(options.rounds):
        for name, (side, tenants, are_known) in loads.items():
            rates[name].append(_jobs_per_second(side, tenants, options.jobs, are_known))
    plain = rates[PLAIN]
    _, one, *_ = ours = list(loads)
    return Result(
        [
            Bar("enqueue_many for one tenant, median", median(rates[one]), ">=", 5000, "jobs/s"),
            *(
                Bar(f"enqueue_many for {name} / RQ's, median of rounds", _ratio(rates[name], plain), ">=", bar, "x")
                for name, bar in zip(ours[1:], BARS, strict=True)
            ),
        ],
        {f"{name}, jobs/s": _numbers(values) for name, values in rates.items()},
    )


def _jobs_per_second(side: Side, tenants: list[str], jobs: int, are_known: bool) -> float:
    with phase(side) as current:
        if are_known:
            current.side.set_limits(dict.fromkeys(tenants, 1))
        calls = [(tenants[n % len(tenants)], f"job{n}", 0.0) for n in range(jobs)]
        return jobs / current.enqueue_many("sleep", calls)


def _ratio(ours: list[float], plain: list[float]) -> float:
    return median(mine / theirs for mine, theirs in zip(ours, plain, strict=True))


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)


BENCHMARK = Benchmark(
    name="bulk",
    question="How fast does enqueue_many store jobs?",
    sizes={
        "jobs": Size(10_000, "jobs in one call", smoke=1000),
        "tenants": Size(200, "known tenants of the call with many", smoke=20),
        "new_tenants": Size(500, "tenants of the call with new ones", smoke=50),
        "rounds": Size(5, "rounds of each, by turns", smoke=2),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
