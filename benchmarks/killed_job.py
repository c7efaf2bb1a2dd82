"""How soon is a slot used again when the process of its job is killed?"""

from __future__ import annotations

import os
import signal
import time
from argparse import Namespace

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, milliseconds, percentile
from benchmarks.sides import PlainDjangoRQ, Side

MORE_WAITING = 3


def measure(options: Namespace) -> Result:
    ours = [_seconds_to_next_start(options.side, options.workers) for _ in range(options.rounds)]
    plain = [_seconds_to_next_start(PlainDjangoRQ(), workers=1) for _ in range(options.rounds)]
    return Result(
        [Bar("the tenant's next start after the kill, longest", milliseconds(max(ours)), "<=", 2000, "ms")],
        {
            "p50, ms": milliseconds(percentile(ours, 50)),
            "by round, ms": ", ".join(str(milliseconds(seconds)) for seconds in ours),
            "one plain worker's next start, p50 / longest, ms": (
                f"{milliseconds(percentile(plain, 50))} / {milliseconds(max(plain))}"
            ),
        },
    )


def _seconds_to_next_start(side: Side, workers: int) -> float:
    """From SIGKILL of the work-horse, whose process id is in its start line."""
    with phase(side) as current:
        current.enqueue_many("hold", [("whale", f"job{n}", current.open_file) for n in range(1 + MORE_WAITING)])
        current.start_workers(workers)
        current.wait_until(lambda: len(current.runs()) == 1)
        killed = time.time_ns()
        os.kill(current.runs()[0].pid, signal.SIGKILL)
        current.wait_until(lambda: len(current.runs()) > 1)
        return (current.runs()[1].start - killed) / SECOND


BENCHMARK = Benchmark(
    name="killed_job",
    question="How soon does a tenant's next job start after SIGKILL of a work-horse?",
    sizes={
        "workers": Size(2, "worker processes"),
        "rounds": Size(10, "kills", smoke=2),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
