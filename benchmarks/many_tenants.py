"""What do very many tenants with a backlog cost: a worker's choice, Redis' memory, and the order after a FLUSHALL?"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, milliseconds, percentile

QUEUE = "bench"
ROWS_PER_INSERT = 5000


def measure(options: Namespace) -> Result:
    with phase(options.side):
        _fill_backlogs(options)
        before = _bytes_in_redis()
        rebuild = _seconds(_sweep_offers)
        memory = (_bytes_in_redis() - before) / options.tenants
        in_order = _in_order()
        sweeps = [_seconds(_sweep_offers) for _ in range(options.sweeps)]
        with _session_of_a_worker():
            chosen, admitted = _turns(options.jobs)
    whole = [sum(pair) for pair in zip(chosen, admitted, strict=True)]
    return Result(
        [
            Bar("choosing a tenant and admitting its job, p99", milliseconds(percentile(whole, 99)), "<=", 5, "ms"),
            Bar("Redis per tenant", round(memory), "<=", 300, "bytes"),
            Bar("the order is rebuilt after a FLUSHALL", round(rebuild, 2), "<=", 10, "s"),
            Bar("tenants in the order afterwards", in_order, "==", options.tenants),
        ],
        {
            "choosing, p50 / p99, ms": _text(chosen),
            "admitting, p50 / p99, ms": _text(admitted),
            "the same step of the next sweeps, s": ", ".join(f"{seconds:.2f}" for seconds in sweeps),
        },
    )


def _fill_backlogs(options: Namespace) -> None:
    """One tenant queue and its waiting jobs each. Nothing is told to Redis, which is as after a FLUSHALL."""
    from django.db import connection

    from tenant_slots.enqueueing import bulk
    from tenant_slots.models import TenantJob, TenantQueue

    rows = [TenantQueue(tenant=f"tenant{n}", queue=QUEUE, max_job=options.limit) for n in range(options.tenants)]
    TenantQueue.objects.bulk_create(rows, batch_size=ROWS_PER_INSERT)
    for start in range(0, options.tenants, ROWS_PER_INSERT):
        some = rows[start : start + ROWS_PER_INSERT] * int(options.backlog)
        bulk.insert([TenantJob(tenant_queue=row, task="benchmarks.jobs.nothing", args=["t", "job"]) for row in some])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _sweep_offers() -> None:
    """The step of a sweep that puts tenants into the order."""
    from tenant_slots.repair import steps
    from tenant_slots.repair.contact import Contact
    from tenant_slots.repair.report import Report

    steps.offer(Report(), Contact())


def _session_of_a_worker() -> AbstractContextManager[None]:
    """In which the statements that run often are prepared, as in no session of the project's."""
    from tenant_slots.conf import app_settings
    from tenant_slots.db.sessions import private_connection

    return private_connection(app_settings.LEASE_TTL / 4, is_silent=True)


def _turns(jobs: int) -> tuple[list[float], list[float]]:
    """What a worker of ours does before each job, and for how many seconds: it asks who is next, and marks its job."""
    from tenant_slots import fair_order, slots, transitions
    from tenant_slots.fair_order import Turn
    from tenant_slots.owners import this_process

    owner = this_process("benchmark", beats=True)
    chosen: list[float] = []
    admitted: list[float] = []
    while len(chosen) < jobs:
        began = time.perf_counter()
        turn = fair_order.take("rq:worker:benchmark", [QUEUE], waits=False)[0]
        asked = time.perf_counter()
        if isinstance(turn, str):
            _empty_list()
            continue
        assert isinstance(turn, Turn), "the order is empty although every tenant has a backlog"
        with transitions.in_turn(turn) as came_of:
            admission = slots.admit_and_start(turn.tenant_queue_id, QUEUE, owner.for_run(0), lambda job: None)
            came_of(admission)
        assert admission.started is not None, "the tenant has a backlog and a free slot"
        chosen.append(asked - began)
        admitted.append(time.perf_counter() - asked)
    return chosen, admitted


def _empty_list() -> None:
    """What the sweep has admitted for the stock workers that there may be."""
    _redis().delete(f"rq:queue:{QUEUE}")


def _in_order() -> int:
    return int(_redis().zcard(f"tenant_slots:order:{QUEUE}"))


def _bytes_in_redis() -> int:
    return int(_redis().info("memory")["used_memory_dataset"])


def _redis() -> Any:
    import django_rq

    return django_rq.get_connection(QUEUE)


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _text(seconds: list[float]) -> str:
    return f"{milliseconds(percentile(seconds, 50))} / {milliseconds(percentile(seconds, 99))}"


BENCHMARK = Benchmark(
    name="many_tenants",
    question="What do very many tenants with a backlog cost?",
    sizes={
        "tenants": Size(100_000, "tenants with a backlog each", smoke=5_000),
        "backlog": Size(2, "waiting jobs of each"),
        "limit": Size(5, "limit of each"),
        "jobs": Size(2000, "jobs that are admitted", smoke=200),
        "sweeps": Size(3, "further sweeps that are timed"),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
