"""What does a scrape of the metrics cost, of very many tenants and jobs?"""

from __future__ import annotations

import time
from argparse import Namespace
from statistics import median

from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, milliseconds
from benchmarks.tables import execute, fill, vacuum

TENANTS_SHOWN = 100


def measure(options: Namespace) -> Result:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    with phase(options.side):
        fill(options.tenants, options.jobs, options.waiting)
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
    queries, in_all = [], []

    def in_database() -> float:
        began = time.perf_counter()
        with CaptureQueriesContext(connection) as captured:
            generate_latest(registry)
        in_all.append(time.perf_counter() - began)
        queries.append(len(captured))
        return sum(float(query["time"]) for query in captured.captured_queries)

    without_keys = [in_database() for _ in range(options.rounds)]
    _limit_keys()
    with_keys = [in_database() for _ in range(options.rounds)]
    with override_settings(TENANT_SLOTS={"METRICS_TENANTS": TENANTS_SHOWN}):
        with_tenants = len(generate_latest(registry))
    return Result(
        [
            Bar("queries of a scrape", max(queries), "<=", 10),
            Bar("time in the database, median", milliseconds(median(without_keys)), "<=", 100, "ms"),
            Bar("the same with limits per key", milliseconds(median(with_keys)), "<=", 100, "ms"),
            Bar("size without tenants", round(len(shown) / 1000), "<=", 200, "kB"),
        ],
        {
            "slowest time in the database, ms": milliseconds(max(without_keys + with_keys)),
            "whole scrape, median, ms": milliseconds(median(in_all)),
            f"size with {TENANTS_SHOWN} tenants, kB": round(with_tenants / 1000),
        },
    )


def _limit_keys() -> None:
    """Of every tenth tenant, whose jobs have seven keys; the largest backlogs are among these."""
    execute("UPDATE tenant_slots_tenantqueue SET max_job_per_key = 2 WHERE id %% 10 = 1", [])
    execute(
        "UPDATE tenant_slots_tenantjob job SET key = 'user ' || job.id %% 7 FROM tenant_slots_tenantqueue row"
        " WHERE row.id = job.tenant_queue_id AND row.max_job_per_key = 2 AND job.stage IN (2, 3)",
        [],
    )
    vacuum("tenant_slots_tenantjob", "tenant_slots_tenantqueue")


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
