"""How fast do the jobs of a tenant run that nobody competes with, in this checkout and in another one?"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from statistics import median

from benchmarks.checkouts import benchmarks_with, result_in
from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND, ends
from benchmarks.phase import ROOT, phase
from benchmarks.report import Bar, Result

JOB_SECONDS = 0.005
LIMIT = 50
FACT = "jobs/s"


def measure(options: Namespace) -> Result:
    if not options.other:
        rates = [_jobs_per_second(options) for _ in range(options.rounds)]
        return Result([], {FACT: _numbers(rates)})
    here: list[float] = []
    there: list[float] = []
    with benchmarks_with(Path(options.other)) as other:
        for number in range(options.rounds):
            pair = [(ROOT, here), (other, there)]
            for root, rates in pair if number % 2 else reversed(pair):
                rates.append(_in_process_of_its_own(root, options))
    ratios = [mine / theirs for mine, theirs in zip(here, there, strict=True)]
    return Result(
        [Bar("jobs/s of this checkout / of the other, median of rounds", median(ratios), ">=", 0.97, "x")],
        {
            "ratio by round": ", ".join(f"{ratio:.3f}" for ratio in ratios),
            FACT: _numbers(here),
            "jobs/s of the other checkout": _numbers(there),
        },
    )


def _jobs_per_second(options: Namespace) -> float:
    """From the first start to the last end, all jobs enqueued before."""
    with phase(options.side) as current:
        current.side.set_limits({"alone": LIMIT})
        current.close_gate(options.workers)
        current.enqueue_many("sleep", [("alone", f"job{n}", JOB_SECONDS) for n in range(options.jobs)])
        current.open_gate(options.workers)
        current.wait_for_ends(options.jobs)
        runs = current.runs()
        return len(runs) * SECOND / (ends(runs)[-1] - runs[0].start)


def _in_process_of_its_own(root: Path, options: Namespace) -> float:
    sizes = {"jobs": options.jobs, "workers": options.workers, "rounds": 1}
    result = result_in(root, BENCHMARK.name, sizes, options.side.environment["BENCHMARK_WORKER_CLASS"])
    return float(result["facts"][FACT])


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


BENCHMARK = Benchmark(
    name="alone",
    question="How fast do the jobs of a tenant run that nobody competes with?",
    sizes={
        "jobs": Size(1000, "jobs of 5 ms of one tenant with limit 50", smoke=80),
        "workers": Size(4, "worker processes"),
        "rounds": Size(5, "rounds; with --other of each checkout, by turns", smoke=1),
    },
    paths={"other": "another checkout to compare with; without it there is no bar"},
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
