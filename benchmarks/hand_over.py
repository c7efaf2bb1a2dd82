"""How long does a slot stay empty between two jobs of a tenant that has more waiting?"""

from __future__ import annotations

from argparse import Namespace

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import gaps
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, milliseconds, percentile
from benchmarks.sides import PlainDjangoRQ, Side

JOB_SECONDS = 0.02

BARS = {"TenantWorker": 25, "TenantPreforkWorker": 6}
"""Milliseconds by worker class. One that runs jobs in its own process forks as little as the latter does."""


def measure(options: Namespace) -> Result:
    ours = _gaps(options.side, options.jobs, options.workers)
    plain = _gaps(PlainDjangoRQ(), options.jobs, workers=1)
    bar = BARS.get(options.side.kind, BARS["TenantPreforkWorker"])
    return Result(
        [Bar("the whale's next start after its last end, p95", milliseconds(percentile(ours, 95)), "<=", bar, "ms")],
        {
            "p50, ms": milliseconds(percentile(ours, 50)),
            "longest, ms": milliseconds(max(ours)),
            "one plain worker between two jobs, p50 / p95, ms": (
                f"{milliseconds(percentile(plain, 50))} / {milliseconds(percentile(plain, 95))}"
            ),
        },
    )


def _gaps(side: Side, jobs: int, workers: int) -> list[float]:
    """Seconds; the runs follow each other because the limit is 1, on plain django-rq because there is one worker."""
    with phase(side) as current:
        current.enqueue_many("sleep", [("whale", f"whale{n}", JOB_SECONDS) for n in range(jobs)])
        current.start_workers(workers)
        current.wait_for_ends(jobs)
        return gaps(current.runs())


BENCHMARK = Benchmark(
    name="hand_over",
    question="How long does a slot stay empty while its tenant has jobs waiting and a worker is idle?",
    sizes={
        "jobs": Size(300, "jobs of 20 ms of one tenant with limit 1", smoke=40),
        "workers": Size(2, "worker processes; one is always idle"),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
