"""Do workers take jobs from queues that are full in the proportion of the queues' weights?"""

from __future__ import annotations

import math
from argparse import Namespace
from collections import Counter

from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import Phase, phase
from benchmarks.queues import WEIGHTS
from benchmarks.report import Bar, Result

SPARE = 6
"""How many standard deviations more than its share a queue gets, so that none is empty while starts are counted."""


def measure(options: Namespace) -> Result:
    first, *others = WEIGHTS
    all_full = _starts(options, list(WEIGHTS))
    first_empty = _starts(options, others)
    return Result(
        [
            *(_bar(options, all_full, name, "all queues full") for name in WEIGHTS),
            *(_bar(options, first_empty, name, f"`{first}` empty") for name in others),
        ],
        {
            "starts, all queues full": _text(all_full),
            f"starts, {first} empty": _text(first_empty),
        },
    )


def _starts(options: Namespace, queues: list[str]) -> Counter[str]:
    """From which queues the first `jobs` starts came. Each queue's jobs are of a tenant of the queue's name."""
    counts = {name: _enough(options.jobs, WEIGHTS[name] / _sum(queues)) for name in queues}
    with phase(options.side) as current:
        _fill(current, counts)
        current.start_workers(options.workers, *WEIGHTS)
        current.wait_for_ends(options.jobs + options.workers)
        starts = Counter(dict.fromkeys(queues, 0))
        starts.update(run.tenant for run in current.runs()[: options.jobs])
    empty = [name for name, count in starts.items() if count >= counts[name]]
    if empty:
        raise SystemExit(f"{empty[0]} became empty while starts were counted, so its share means nothing.")
    return starts


def _enough(jobs: int, share: float) -> int:
    return math.ceil(jobs * share + SPARE * math.sqrt(jobs * share * (1 - share)))


def _fill(current: Phase, counts: dict[str, int]) -> None:
    """Every job gets a slot, so that what workers find in a queue is up to its weight alone."""
    from benchmarks import jobs
    from tenant_slots.models import TenantQueue

    for name, count in counts.items():
        TenantQueue.objects.create(tenant=name, queue=name, max_job=count)
        jobs.sleep.using(queue=name).enqueue_many([((name, f"{name}-{n}", 0.0), {}) for n in range(count)])


def _bar(options: Namespace, starts: Counter[str], name: str, when: str) -> Bar:
    expected = 100 * WEIGHTS[name] / _sum(list(starts))
    share = 100 * starts[name] / starts.total()
    what = f"share of `{name}`, {when}, off its {expected:g} %"
    return Bar(what, round(abs(share - expected), 2), "<=", options.tolerance, "points")


def _sum(queues: list[str]) -> int:
    return sum(WEIGHTS[name] for name in queues)


def _text(starts: Counter[str]) -> str:
    return ", ".join(f"{name} {100 * count / starts.total():.1f} %" for name, count in sorted(starts.items()))


BENCHMARK = Benchmark(
    name="weights",
    question="Do workers take jobs from full queues in the proportion of the queues' weights?",
    sizes={
        "jobs": Size(2000, "starts that are counted, in each of the two parts", smoke=150),
        "workers": Size(2, "worker processes"),
        "tolerance": Size(3.0, "percentage points that a share may be off", smoke=15.0),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
