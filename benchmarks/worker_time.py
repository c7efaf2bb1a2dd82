"""Is worker time divided by share, however long each tenant's jobs are?"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from benchmarks.divided import Load, percent, text, worker_time
from benchmarks.harness import Benchmark, Size, main
from benchmarks.report import Bar, Result

LONG_AND_SHORT = {"long": Load(0.8), "short": Load(0.05)}
SHARES = {"triple": Load(0.05, share=3), "single": Load(0.05), "another": Load(0.05)}


def measure(options: Namespace) -> Result:
    of_lengths, in_functions = worker_time(options, LONG_AND_SHORT)
    of_shares, _ = worker_time(options, SHARES)
    return Result(
        [
            *(_bar(options, LONG_AND_SHORT, of_lengths, name) for name in LONG_AND_SHORT),
            Bar("Jain's index of worker time, long and short jobs", _jain([*of_lengths.values()]), ">=", 0.98),
            *(_bar(options, SHARES, of_shares, name) for name in SHARES),
        ],
        {
            "worker time with jobs of 800 and 50 ms": text(of_lengths),
            "of that, in the jobs' functions alone": text(in_functions),
            "worker time with shares 3, 1 and 1": text(of_shares),
        },
    )


def _bar(options: Namespace, loads: Mapping[str, Load], seconds: Mapping[str, float], name: str) -> Bar:
    expected = 100 * loads[name].share / sum(load.share for load in loads.values())
    off = abs(percent(seconds)[name] - expected)
    what = f"worker time of `{name}`, of {' and '.join(f'`{one}`' for one in loads)}, off its {expected:g} %"
    return Bar(what, round(off, 2), "<=", options.tolerance, "points")


def _jain(values: list[float]) -> float:
    """1 where all have the same, 1 / n where one has everything."""
    return round(sum(values) ** 2 / (len(values) * sum(value**2 for value in values)), 4)


BENCHMARK = Benchmark(
    name="worker_time",
    question="Is worker time divided by share, however long each tenant's jobs are?",
    sizes={
        "workers": Size(4, "worker processes"),
        "seconds": Size(60.0, "that are counted, in each of the two parts", smoke=5.0),
        "tolerance": Size(3.0, "percentage points that a tenant's worker time may be off", smoke=15.0),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
