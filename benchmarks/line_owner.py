"""How fast do others' jobs run when one tenant owns nearly all waiting jobs, whatever their number and its limit?"""

from __future__ import annotations

from argparse import Namespace
from statistics import median

from benchmarks.divided import Load, percent, text, worker_time
from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND, Run, ends
from benchmarks.phase import Phase, phase
from benchmarks.report import Bar, Result
from benchmarks.sides import PlainDjangoRQ, Side

WHALE = "whale"
JOB_SECONDS = 0.02
CALLS_PER_ENQUEUE = 10_000

FORKING = 34.0
"""Others' jobs/s for a class that forks for each job."""
BARS = {"TenantPreforkWorker": 48.0}
"""Of the 50 that one of the two workers could run if it did nothing else."""

NEIGHBOUR = "neighbour"
BOTH_AT_FIFTY = {WHALE: Load(JOB_SECONDS), NEIGHBOUR: Load(JOB_SECONDS)}


def measure(options: Namespace) -> Result:
    short: list[float] = []
    long: list[float] = []
    for _ in range(options.rounds):
        short.append(_others_per_second(options, options.short))
        long.append(_others_per_second(options, options.waiting))
    on_plain = _others_on_plain(options)
    divided, _ = worker_time(options, BOTH_AT_FIFTY)
    bar = options.bar or BARS.get(options.side.kind, FORKING)
    part = percent(divided)[NEIGHBOUR]
    return Result(
        [
            Bar("others' jobs/s beside a long backlog", median(long), ">=", bar, "jobs/s"),
            Bar("long backlog / short backlog", median(long) / median(short), ">=", 0.95, "x"),
            Bar("worker time beside a whale with limit 50", round(part, 2), ">=", 50 - options.tolerance, "%"),
        ],
        {
            f"others' jobs/s with {options.waiting} waiting, by round": _numbers(long),
            f"others' jobs/s with {options.short} waiting, by round": _numbers(short),
            "worker time where both have limit 50": text(divided),
            f"others' jobs/s on plain django-rq with {options.waiting} waiting": f"{on_plain:.1f}",
        },
    )


def _others_per_second(options: Namespace, waiting: int) -> float:
    """From the first start of any job to the end of the last counted job that is not the whale's."""
    with phase(options.side) as current:
        _fill_backlogs(current, options, waiting)
        current.open_gate(options.workers)
        current.wait_for_ends(options.ends, of=_is_other)
        took = _ends_of_others(current)[options.ends - 1] - current.runs()[0].start
    return float(options.ends * SECOND / took)


def _others_on_plain(options: Namespace) -> float:
    """Nobody waits for others' jobs here: they are behind the whale's."""
    side: Side = PlainDjangoRQ()
    with phase(side) as current:
        _fill_backlogs(current, options, options.waiting)
        current.open_gate(options.workers)
        current.wait_until(lambda: bool(current.runs()))
        first = current.runs()[0].start
        current.wait_until(lambda: current.runs()[-1].start - first >= options.plain_seconds * SECOND, pause=0.25)
        return float(len(_ends_of_others(current)) / options.plain_seconds)


def _fill_backlogs(current: Phase, options: Namespace, waiting: int) -> None:
    """The whale first, then one job of each other tenant; everything waits before a worker starts."""
    current.close_gate(options.workers)
    whales = [(WHALE, f"whale{n}", JOB_SECONDS) for n in range(waiting - options.tenants)]
    for first in range(0, len(whales), CALLS_PER_ENQUEUE):
        current.enqueue_many("sleep", whales[first : first + CALLS_PER_ENQUEUE])
    current.enqueue_many("sleep", [(f"other{n}", f"other{n}", JOB_SECONDS) for n in range(options.tenants)])


def _ends_of_others(current: Phase) -> list[int]:
    return ends(filter(_is_other, current.runs()))


def _is_other(run: Run) -> bool:
    return run.tenant != WHALE


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


BENCHMARK = Benchmark(
    name="line_owner",
    question="How fast do others' jobs run when one tenant owns nearly all waiting jobs?",
    sizes={
        "workers": Size(2, "worker processes"),
        "waiting": Size(100_000, "waiting jobs with the long backlog", smoke=3000),
        "short": Size(2000, "waiting jobs with the short backlog", smoke=300),
        "tenants": Size(1000, "other tenants with one job each", smoke=150),
        "ends": Size(500, "others' jobs to measure", smoke=100),
        "rounds": Size(2, "rounds with the short and the long backlog", smoke=1),
        "plain_seconds": Size(15.0, "how long to watch plain django-rq", smoke=3.0),
        "seconds": Size(30.0, "that are counted beside a whale with limit 50", smoke=5.0),
        "tolerance": Size(3.0, "percentage points of worker time that may be missing from a half", smoke=15.0),
        "bar": Size(0.0, "jobs/s to reach; 0: 48 for TenantPreforkWorker, 34 for workers that fork"),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
