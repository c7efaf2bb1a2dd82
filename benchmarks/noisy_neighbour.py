"""How much longer do small tenants wait because a big one has enqueued a mountain of work, whatever its limit?"""

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
WHALE_LIMITS = (1, 4, 50, 10_000)
JOB_SECONDS = 0.05
JOBS_PER_TENANT = 3

TIMES_AS_LONG = 1.5
"""Beside a whale whose limit leaves the other workers to the small tenants."""

MILLISECONDS_LONGER = 75
"""Beside one that may use every worker: about one of its jobs has to end first."""


def measure(options: Namespace) -> Result:
    quiet: list[list[float]] = []
    loud: dict[int, list[list[float]]] = {limit: [] for limit in WHALE_LIMITS}
    for number in range(options.rounds):
        quiet.append(_waits(options, options.side, number))
        for limit, rounds in loud.items():
            rounds.append(_waits(options, options.side, number, limit))
    plain = percentile(_waits(options, PlainDjangoRQ(), 0, whale_limit=1), 95)
    without = percentile([*chain(*quiet)], 95)
    beside = {limit: percentile([*chain(*rounds)], 95) for limit, rounds in loud.items()}
    lowest, *others = WHALE_LIMITS
    return Result(
        [
            Bar(_what(lowest, "/ without it"), beside[lowest] / without, "<=", TIMES_AS_LONG, "x"),
            *(
                Bar(
                    _what(limit, "- without it"), milliseconds(beside[limit] - without), "<=", MILLISECONDS_LONGER, "ms"
                )
                for limit in others
            ),
            Bar("their p95 wait on plain django-rq / with tenant_slots", plain / beside[lowest], ">=", 100, "x"),
        ],
        {
            "p95 wait without the whale, ms": _text(without, quiet),
            **{
                f"p95 wait beside a whale with limit {limit:,}, ms": _text(beside[limit], loud[limit]) for limit in loud
            },
            "p95 wait on plain django-rq, ms": milliseconds(plain),
        },
    )


def _what(limit: int, compared: str) -> str:
    return f"small tenants' p95 wait beside a whale with limit {limit:,} {compared}"


def _waits(options: Namespace, side: Side, number: int, whale_limit: int | None = None) -> list[float]:
    """The small tenants' waits in seconds. Rounds of the same number have the same arrivals on every side."""
    with phase(side) as current:
        current.start_workers(options.workers)
        if whale_limit is not None:
            current.side.set_limits({WHALE: whale_limit})
            current.enqueue_many("sleep", [(WHALE, f"whale{n}", JOB_SECONDS) for n in range(options.whale_jobs)])
        _arrive(current, options, random.Random(number))
        current.wait_for_ends(options.tenants * JOBS_PER_TENANT, of=_is_small)
        if side is options.side and whale_limit is not None and not _whale_is_there(current, options):
            raise SystemExit("The whale's jobs were all started before the small tenants' were: give it more.")
        return current.waits(_is_small)


def _whale_is_there(current: Phase, options: Namespace) -> bool:
    return bool(sum(run.tenant == WHALE for run in current.runs()) < options.whale_jobs)


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


def _text(value: float, rounds: list[list[float]]) -> str:
    return f"{milliseconds(value)}, by round {_p95s(rounds)}"


def _p95s(rounds: list[list[float]]) -> str:
    return ", ".join(str(milliseconds(percentile(waits, 95))) for waits in rounds)


BENCHMARK = Benchmark(
    name="noisy_neighbour",
    question="How much longer do small tenants wait beside a tenant with a mountain of work?",
    sizes={
        "workers": Size(4, "worker processes"),
        "whale_jobs": Size(2000, "jobs of 50 ms that the whale enqueues at once", smoke=400),
        "tenants": Size(20, "small tenants with 3 jobs each", smoke=8),
        "seconds": Size(8.0, "time over which the small tenants' jobs arrive", smoke=2.0),
        "rounds": Size(3, "rounds without the whale and beside it with each limit", smoke=1),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
