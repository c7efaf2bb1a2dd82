"""What does a scrape of the metrics cost, of very many tenants and jobs?"""

from __future__ import annotations

import time
from argparse import Namespace
from statistics import median

from benchmarks.admin_list import _fill
from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, milliseconds

TENANTS_SHOWN = 100


def measure(options: Namespace) -> Result:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    with phase(options.side):
        _fill(options.tenants, options.jobs, options.waiting)
        _count_some()
        return _measured(options)


def _measured(options: Namespace) -> Result:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext, override_settings
    from prometheus_client import CollectorRegistry, generate_latest

    from tenant_slots.contrib.prometheus import TenantSlotsCollector

    registry = CollectorRegistry(auto_describe=False)
    registry.register(TenantSlotsCollector())
    shown = generate_latest(registry)
    queries, in_database, in_all = 0, [], []
    for _ in range(options.rounds):
        began = time.perf_counter()
        with CaptureQueriesContext(connection) as captured:
            generate_latest(registry)
        in_all.append(time.perf_counter() - began)
        in_database.append(sum(float(query["time"]) for query in captured.captured_queries))
        queries = max(queries, len(captured))
    with override_settings(TENANT_SLOTS={"METRICS_TENANTS": TENANTS_SHOWN}):
        with_tenants = len(generate_latest(registry))
    return Result(
        [
            Bar("queries of a scrape", queries, "<=", 10),
            Bar("time in the database, median", milliseconds(median(in_database)), "<=", 100, "ms"),
            Bar("size without tenants", round(len(shown) / 1000), "<=", 200, "kB"),
        ],
        {
            "slowest time in the database, ms": milliseconds(max(in_database)),
            "whole scrape, median, ms": milliseconds(median(in_all)),
            f"size with {TENANTS_SHOWN} tenants, kB": round(with_tenants / 1000),
        },
    )


def _count_some() -> None:
    """As sweeps do it."""
    from tenant_slots.models import QueueTotal
    from tenant_slots.models.queue_minute import COUNTED

    QueueTotal.objects.create(queue="bench", **dict.fromkeys(COUNTED, 1_000_000))


BENCHMARK = Benchmark(
    name="scrape",
    question="What does a scrape of the metrics cost, of very many tenants and jobs?",
    sizes={
        "tenants": Size(10_000, "tenant queues", smoke=200),
        "jobs": Size(1_000_000, "jobs in all states", smoke=5000),
        "waiting": Size(200_000, "of these, jobs that wait", smoke=1000),
        "rounds": Size(20, "scrapes", smoke=3),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
