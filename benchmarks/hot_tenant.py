"""Do the workers of one large tenant hold each other up?"""

from __future__ import annotations

import multiprocessing
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import phase
from benchmarks.report import Bar, Result

LIMIT = 1000

BEFORE_BEGIN = 1.0
"""Seconds of each part that are not counted, while connections open and statements are compiled."""


def measure(options: Namespace) -> Result:
    together: list[float] = []
    apart: list[float] = []
    with _slow_commits(options.commit_ms):
        for _ in range(options.rounds):
            apart.append(_cycles_per_second(options, tenants=options.workers))
            together.append(_cycles_per_second(options, tenants=1))
    ratios = [one / many for one, many in zip(together, apart, strict=True)]
    return Result(
        [Bar("cycles/s on one tenant / on one tenant each, median of rounds", median(ratios), ">=", 0.7, "x")],
        {
            "ratio by round": ", ".join(f"{ratio:.3f}" for ratio in ratios),
            "cycles/s on one tenant": ", ".join(f"{rate:.1f}" for rate in together),
            f"cycles/s on {options.workers:g} tenants": ", ".join(f"{rate:.1f}" for rate in apart),
        },
    )


def _cycles_per_second(options: Namespace, tenants: int) -> float:
    """Of processes that each store a job, admit, start and end it. Without RQ: this is about the database alone."""
    from django.db import connections

    with phase(options.side) as current:
        current.side.set_limits({f"tenant{number}": LIMIT for number in range(tenants)})
        connections.close_all()  # a forked process must not use this one's
        context = multiprocessing.get_context("fork")
        cycles = context.Queue()
        arguments = (options.seconds, cycles)
        processes = [
            context.Process(target=_work, args=(f"tenant{number % tenants}", *arguments))
            for number in range(options.workers)
        ]
        for process in processes:
            process.start()
        done: list[int] = [cycles.get(timeout=60 + options.seconds) for _ in processes]
        for process in processes:
            process.join()
        seconds: float = options.seconds
        return sum(done) / seconds


def _work(tenant: str, seconds: float, cycles: Any) -> None:
    from tenant_slots import slots
    from tenant_slots.models import State, TenantJob, TenantQueue
    from tenant_slots.owners import this_process

    row = TenantQueue.objects.get(tenant=tenant)
    owner = this_process("benchmark", beats=True)
    begin = time.monotonic() + BEFORE_BEGIN
    done = 0
    while (now := time.monotonic()) < begin + seconds:
        TenantJob.objects.create(tenant_queue=row, task="benchmarks.jobs.nothing")
        for job in slots.admit(row.pk, row.queue).jobs:  # perhaps another process's, which gets ours then
            slots.start(job, owner)
            slots.release(job, state=State.FINISHED)
            done += now >= begin
    cycles.put(done)


@contextmanager
def _slow_commits(milliseconds: float) -> Iterator[None]:
    """A disk that takes so long to flush the log; commits that come meanwhile share the next flush."""
    from django.db import connection

    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} SET commit_delay = {int(milliseconds * 1000)}")
        cursor.execute(f"ALTER DATABASE {name} SET commit_siblings = 0")
    connection.close()
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} RESET ALL")
        connection.close()


BENCHMARK = Benchmark(
    name="hot_tenant",
    question="Do workers hold each other up because all their jobs are one tenant's?",
    sizes={
        "workers": Size(8, "processes, and the tenants that they are compared on", smoke=3),
        "commit_ms": Size(5.0, "milliseconds that a flush of the database's log takes"),
        "seconds": Size(8.0, "of each part that are counted", smoke=1.0),
        "rounds": Size(3, "rounds, by turns", smoke=1),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
