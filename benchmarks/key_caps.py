"""What does a limit per key cost when it lets none but the far end of a long backlog go?"""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import Phase, phase
from benchmarks.report import Bar, Result, milliseconds, percentile

TENANT = "whale"
QUEUE = "bench"
LIMIT = 1000


def measure(options: Namespace) -> Result:
    with phase(options.side) as current:
        key = _fill_backlog(options)
        with _looking_at_the_lock(key) as waits:
            caller = _seconds(lambda: _set_limit(key))
            swept = _seconds(_sweep_offers)
            current.start_workers(options.workers)
            current.wait_for_ends(options.ends)
    return Result(
        [
            Bar("the limit set from 0 to 1,000, its caller back", milliseconds(caller), "<=", 300, "ms"),
            Bar("somebody else waits for the tenant's row, longest", milliseconds(max(waits)), "<=", 100, "ms"),
            Bar("keys that ran beside themselves", _overlaps(current), "==", 0),
        ],
        {
            "the step of a sweep that admits, ms": milliseconds(swept),
            "waits for the row, p50 / p99, ms": f"{_ms(waits, 50)} / {_ms(waits, 99)}, of {len(waits):,}",
        },
    )


def _fill_backlog(options: Namespace) -> int:
    """All jobs of one key, then all of the next. Returns the key of the tenant's row, whose limit is 0."""
    from django.db import connection

    from tenant_slots.enqueueing import bulk
    from tenant_slots.models import TenantJob, TenantQueue

    row = TenantQueue.objects.create(tenant=TENANT, queue=QUEUE, max_job=0, max_job_per_key=1)
    each = options.jobs // options.keys
    for number in range(options.keys):
        name = f"user{number}"
        values = {"tenant_queue": row, "task": "benchmarks.jobs.sleep", "args": [TENANT, name, 0.01], "key": name}
        bulk.insert([TenantJob(**values) for _ in range(each)])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    return int(row.pk)


@contextmanager
def _looking_at_the_lock(key: int) -> Iterator[list[float]]:
    """For how many seconds a session of its own waits for the tenant's row, again and again."""
    waits: list[float] = []
    over = threading.Event()
    looker = threading.Thread(target=_look, args=(key, waits, over))
    looker.start()
    try:
        yield waits
    finally:
        over.set()
        looker.join()


def _look(key: int, waits: list[float], over: threading.Event) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        while not over.wait(0.002):
            began = time.perf_counter()
            cursor.execute("SELECT 1 FROM tenant_slots_tenantqueue WHERE id = %s FOR UPDATE", [key])
            waits.append(time.perf_counter() - began)
    connection.close()


def _set_limit(key: int) -> None:
    from tenant_slots.models import TenantQueue

    TenantQueue.objects.get(pk=key).set_limit(LIMIT)


def _sweep_offers() -> None:
    """The step of a sweep that admits what a stock worker may take."""
    from tenant_slots.repair import steps
    from tenant_slots.repair.contact import Contact
    from tenant_slots.repair.report import Report

    steps.offer(Report(), Contact())


def _overlaps(current: Phase) -> int:
    """Keys of which a run began before the one before had ended; a run that has not ended overlaps nobody's start."""
    last_end: dict[str, int] = {}
    overlapping = set()
    for run in sorted(current.runs(), key=lambda run: run.start):
        if run.start < last_end.get(run.name, 0):
            overlapping.add(run.name)
        last_end[run.name] = run.end or 0
    return len(overlapping)


def _seconds(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _ms(waits: list[float], percent: float) -> float:
    return milliseconds(percentile(waits, percent))


BENCHMARK = Benchmark(
    name="key_caps",
    question="What does a limit of one job per key cost behind a backlog that lies in blocks of a key each?",
    sizes={
        "jobs": Size(60_000, "waiting jobs of one tenant", smoke=1200),
        "keys": Size(60, "keys, one block of jobs each"),
        "workers": Size(2, "worker processes"),
        "ends": Size(400, "jobs that run while the row is looked at", smoke=60),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
