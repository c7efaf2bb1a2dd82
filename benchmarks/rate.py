"""Does a tenant with a rate start as many jobs as its rate allows, never more, and each as soon as it may?"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND
from benchmarks.phase import Phase, phase
from benchmarks.report import Bar, Result, milliseconds, percentile

TENANT = "partner"
LIMIT = 50


def measure(options: Namespace) -> Result:
    with phase(options.side) as current:
        _backlogged(current, options)
        current.open_gate(options.workers)
        current.wait_until(lambda: bool(current.runs()))
        began = current.runs()[0].start
        time.sleep(max(0.0, options.seconds + 1 - (time.time_ns() - began) / SECOND))
        _require_backlog(current, options)
        starts = [(run.start - began) / SECOND for run in current.runs()]
        marked = _marked_as_running()
    starts = [start for start in starts if start <= options.seconds]
    burst = options.burst
    lateness = _lateness(starts, options.rate, burst)
    return Result(
        [
            Bar("starts", len(starts), ">=", options.rate * options.seconds - burst),
            Bar("starts beyond what the rate allows, worst window", _excess(marked, options.rate, burst), "<=", 0),
            Bar(
                "p95 from a token to the start that takes it",
                milliseconds(percentile(lateness, 95)),
                "<=",
                100,
                "ms",
            ),
        ],
        {
            "most starts that the rate allows": options.rate * options.seconds + burst,
            "p50, ms": milliseconds(percentile(lateness, 50)),
            "longest, ms": milliseconds(max(lateness)),
        },
    )


def _backlogged(current: Phase, options: Namespace) -> None:
    from tenant_slots.models import TenantQueue

    current.side.set_limits({TENANT: LIMIT})
    row = TenantQueue.objects.get(tenant=TENANT)
    row.set_rate(options.rate, per=timedelta(seconds=1), burst=options.burst)
    current.close_gate(options.workers)
    current.enqueue_many("nothing", [(TENANT, f"job{n}") for n in range(_jobs(options))])


def _require_backlog(current: Phase, options: Namespace) -> None:
    if len(current.runs()) >= _jobs(options):
        raise SystemExit("The tenant had nothing left to run: its starts say nothing of its rate.")


def _jobs(options: Namespace) -> int:
    """More than may start while it is watched."""
    return int(options.rate * (options.seconds + 5))


def _marked_as_running() -> list[float]:
    """When, by the database's clock, by which the rate is kept."""
    from tenant_slots.models import TenantJob

    found = TenantJob.objects.filter(tenant_queue__tenant=TENANT).values_list("started_at", flat=True)
    return sorted(moment.timestamp() for moment in found if moment is not None)


def _excess(moments: Sequence[float], rate: int, burst: int) -> int:
    """The most by which the starts of any window, from one start to another, are above burst + rate x seconds.

    Whole ones: a start is marked a statement later than its token is taken.
    """
    ahead = [number - rate * moment for number, moment in enumerate(moments)]
    return max(math.floor(1 + now - least - burst) for now, least in zip(ahead, accumulate(ahead, min), strict=True))


def _lateness(starts: Sequence[float], rate: int, burst: int) -> list[float]:
    """Seconds by which each start comes later than the token that it takes, the tokens of the full bucket aside."""
    lateness = []
    token = starts[0] - burst / rate
    for start in starts:
        token = max(token, start - burst / rate) + 1 / rate
        lateness.append(start - token)
    return lateness[burst:]


BENCHMARK = Benchmark(
    name="rate",
    question="Does a tenant with a rate start as many jobs as that allows, and never more?",
    sizes={
        "workers": Size(8, "worker processes"),
        "rate": Size(100, "starts a second", smoke=20),
        "burst": Size(10, "starts at once; with more, the workers are late for as long as these keep them busy"),
        "seconds": Size(10, "for which the starts are counted", smoke=2),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
