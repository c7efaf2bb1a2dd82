"""How late do scheduled jobs start beside thousands of a tenant whose function decides slowly what busy means?"""

from __future__ import annotations

import time
from argparse import Namespace
from datetime import UTC, datetime, timedelta

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, percentile

WHALE = "whale"
LEAD_SECONDS = 20
"""From the first enqueue until the whale's jobs are due: time to store them all and to start the workers."""
JOB_SECONDS = 0.05
SECONDS_BETWEEN_OTHERS = 1.0


def measure(options: Namespace) -> Result:
    from benchmarks import jobs

    with phase(options.side) as current:
        current.side.set_limits({WHALE: 1})
        due = datetime.now(UTC) + timedelta(seconds=LEAD_SECONDS)
        jobs.asking.using(run_after=due).enqueue_many(
            [((WHALE, f"whale{number}", JOB_SECONDS), {}) for number in range(options.jobs)]
        )
        times: dict[str, datetime] = {}
        for number in range(options.others):
            name = f"other{number}"
            times[name] = due + timedelta(seconds=SECONDS_BETWEEN_OTHERS * (number + 1))
            jobs.sleep.using(run_after=times[name]).enqueue(name, name, JOB_SECONDS)
        _require_time_left(due)
        current.start_workers(options.workers)
        current.wait_for_ends(options.others, of=lambda run: run.tenant != WHALE)
        late = [run.start / SECOND - times[run.name].timestamp() for run in current.runs() if run.name in times]
        asked = _asked()
    return Result(
        [Bar("other tenants' scheduled jobs, late by at most", round(max(late), 2), "<=", 10, "s")],
        {
            "late, p50, s": round(percentile(late, 50), 2),
            "of the many, asked by then": f"{asked:,}",
        },
    )


def _require_time_left(due: datetime) -> None:
    if time.time() > due.timestamp():
        raise SystemExit("The jobs were due before all were stored: this machine is too slow for so many.")


def _asked() -> int:
    """Jobs of the whale that have been put off, so that its function was called for them."""
    from tenant_slots.models import TenantJob

    return TenantJob.objects.filter(tenant_queue__tenant=WHALE, deferrals__gt=0).count()


BENCHMARK = Benchmark(
    name="due_jobs",
    question="How late do scheduled jobs start beside many due ones of another tenant, whose on_busy takes 2 ms each?",
    sizes={
        "jobs": Size(20_000, "due jobs of the busy tenant", smoke=500),
        "others": Size(30, "other tenants' scheduled jobs, due a second after each other", smoke=3),
        "workers": Size(2, "worker processes"),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
