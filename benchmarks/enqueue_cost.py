"""What does one `enqueue()` cost beside RQ's own `Queue.enqueue`?"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from statistics import median

from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, milliseconds

TENANT = "tenant"
LIMIT = 50

PLAIN_QUEUE = "bench_fast"
"""RQ's own jobs are in a queue in which no tenant's are looked for."""


def measure(options: Namespace) -> Result:
    bars: list[Bar] = []
    facts: dict[str, object] = {}
    for workers, when in ((options.workers, f"{options.workers} busy workers known"), (0, "no worker known")):
        ours, plain = _seconds_per_enqueue(options, workers)
        ratios = [theirs / mine for mine, theirs in zip(ours, plain, strict=True)]
        bars.append(Bar(f"enqueues/s with tenant_slots / RQ, {when}, median", median(ratios), ">=", 0.5, "x"))
        facts[f"ms per enqueue, {when}"] = f"{_per_enqueue(ours)}, RQ {_per_enqueue(plain)}"
        facts[f"ratio by round, {when}"] = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    return Result(bars, facts)


def _seconds_per_enqueue(options: Namespace, workers: int) -> tuple[list[float], list[float]]:
    """By rounds in turn, so that whatever else the machine does meets both. The first round of each warms up."""
    import django_rq

    from benchmarks import jobs, work

    queue = django_rq.get_queue(PLAIN_QUEUE)
    ours: list[float] = []
    plain: list[float] = []
    with phase(options.side) as current:
        current.side.set_limits({TENANT: LIMIT})
        if workers:
            current.close_gate(workers)
            current.start_workers(workers)
            current.wait_until(lambda: current.gate_is_reached(workers))
        for _ in range(1 + options.rounds):
            ours.append(_mean(options.jobs, lambda number: jobs.nothing.enqueue(TENANT, f"job{number}")))
            plain.append(_mean(options.jobs, lambda number: queue.enqueue(work.nothing, TENANT, f"job{number}")))
    return ours[1:], plain[1:]


def _mean(jobs: int, enqueue: Callable[[int], object]) -> float:
    began = time.perf_counter()
    for number in range(jobs):
        enqueue(number)
    return (time.perf_counter() - began) / jobs


def _per_enqueue(seconds: list[float]) -> str:
    return f"{milliseconds(median(seconds)):g}"


BENCHMARK = Benchmark(
    name="enqueue_cost",
    question="What does one enqueue() cost beside RQ's own Queue.enqueue?",
    sizes={
        "jobs": Size(200, "jobs of one round, enqueued one by one", smoke=40),
        "workers": Size(4, "worker processes, all busy, of the first part"),
        "rounds": Size(9, "rounds of each, by turns", smoke=3),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
