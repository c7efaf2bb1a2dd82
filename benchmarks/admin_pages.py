"""How many queries and how long does each page, filter, order and search of the admin take at a million jobs?"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from statistics import median
from typing import Any

from benchmarks.admin_list import LIST, _execute, _fill, _queries, _seconds
from benchmarks.admin_settings import ADMIN
from benchmarks.bulk_changes import JOBS, _boss
from benchmarks.harness import Benchmark, Size, main
from benchmarks.meters import MemoryAboveIdle
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, milliseconds

MOST_QUERIES = 12
MOST_MILLISECONDS = 300
MOST_MEGABYTES = 50

WEEK = "overview, 7 days"
MOST_MILLISECONDS_OF_WEEK = 150

STATES = ("scheduled", "waiting", "running", "finished", "failed", "canceled")


def measure(options: Namespace) -> Result:
    from django.core.management import call_command
    from django.test.utils import override_settings

    with override_settings(**ADMIN):
        call_command("migrate", verbosity=0)
        with phase(options.side):
            _fill(options.tenants, options.jobs, options.waiting)
            _fill_week(options.changes)
            return _measured(options)


def _measured(options: Namespace) -> Result:
    client = _boss()
    queries, times, first_times, memory = {}, {}, {}, {}
    for name, address in _addresses().items():
        fetch, first_fetch = partial(client.get, address), partial(_as_first_viewer, client, address)
        client.get(address)  # what it imports and compiles stays
        above_idle = MemoryAboveIdle()
        client.get(address)
        memory[name] = round(above_idle.megabytes(), 1)
        queries[name] = _queries(first_fetch)
        first_times[name] = milliseconds(median(_seconds(first_fetch, options.rounds)))
        times[name] = milliseconds(median(_seconds(fetch, options.rounds)))
    return Result(
        [
            Bar(f"queries of the page with the most, {_most(queries)}", max(queries.values()), "<=", MOST_QUERIES),
            Bar(f"server time of the slowest page, {_most(times)}", max(times.values()), "<=", MOST_MILLISECONDS, "ms"),
            Bar("server time of the overview of 7 days, median", times[WEEK], "<=", MOST_MILLISECONDS_OF_WEEK, "ms"),
            Bar("the same for its first viewer", first_times[WEEK], "<=", MOST_MILLISECONDS_OF_WEEK, "ms"),
            Bar(f"memory above idle, {_most(memory)}", max(memory.values()), "<=", MOST_MEGABYTES, "MB"),
        ],
        {
            name: f"{queries[name]} queries, {times[name]} ms, {first_times[name]} ms for the first viewer"
            for name in queries
        },
    )


def _fill_week(changes: int) -> None:
    """Every minute of seven days was counted, and something happened in each; and limits were changed."""
    from tenant_slots.models.queue_minute import COUNTED, GAUGES

    columns = (*COUNTED, *GAUGES)
    _execute(
        f"INSERT INTO tenant_slots_queueminute (queue, minute, version, {', '.join(columns)})"  # noqa: S608 - our names
        " SELECT queue, date_trunc('minute', now()) - n * interval '1 minute', '1.' || n / 2000"
        f"{', n' * len(columns)}"
        " FROM generate_series(1, 7 * 1440) n, (VALUES (''), ('bench')) queues(queue)"
    )
    _execute(
        "INSERT INTO tenant_slots_keptchange (tenant_queue_id, at, what, old, new, by, reason)"
        " SELECT id, now() - number * interval '7 days' / %s, 'limit', '1', '5', 'staff', ''"
        " FROM generate_series(1, %s) number JOIN (SELECT id, row_number() OVER (ORDER BY id) - 1 AS place,"
        " count(*) OVER () AS rows FROM tenant_slots_tenantqueue) row ON place = number %% rows ORDER BY number DESC",
        [changes, changes],
    )
    _execute("VACUUM ANALYZE tenant_slots_queueminute")
    _execute("VACUUM ANALYZE tenant_slots_keptchange")


def _as_first_viewer(client: Any, address: str) -> None:
    """Who looks within the next seconds shares some of the answers, and what is counted over an hour."""
    from tenant_slots.admin.snapshots import forget_shared

    forget_shared()
    client.get(address)


def _most(figures: dict[str, Any]) -> str:
    return max(figures, key=lambda name: figures[name])


def _addresses() -> dict[str, str]:
    """Each page by what it shows."""
    from tenant_slots.models import TenantJob, TenantQueue

    row, job = TenantQueue.objects.order_by("pk")[0], TenantJob.objects.order_by("pk")[0]
    beginning = str(job.uuid)[:8]
    return {
        "overview, 1 hour": f"{LIST}overview/",
        WEEK: f"{LIST}overview/?span=7d",
        "workers": f"{LIST}workers/",
        "tenant queues": LIST,
        "tenant queues, search": f"{LIST}?q=77",
        **{f"tenant queues, order {number}": f"{LIST}?o={number}" for number in (1, 4, 5, 6, 8, 9, 10)},
        "tenant queue": f"{LIST}{row.pk}/change/",
        "tenant queue, 7 days": f"{LIST}{row.pk}/change/?span=7d",
        "jobs": JOBS,
        "jobs, page 51": f"{JOBS}?p=51",
        "jobs of a queue": f"{JOBS}?tenant_queue__queue={row.queue}",
        "failed jobs, page 51": f"{JOBS}?state__exact=failed&p=51",
        **{f"jobs, {state}": f"{JOBS}?state__exact={state}" for state in STATES},
        "jobs of a tenant": f"{JOBS}?tenant={row.tenant}",
        **{f"{state} jobs of a tenant": f"{JOBS}?tenant={row.tenant}&state__exact={state}" for state in STATES},
        "jobs, search by an id": f"{JOBS}?q={job.uuid}",
        "jobs, search by the beginning of an id": f"{JOBS}?q={beginning}",
        "jobs, search by a tenant": f"{JOBS}?q={row.tenant}",
        "jobs, search by a task": f"{JOBS}?q=import",
        "failed jobs, search in vain": f"{JOBS}?state__exact=failed&q=no such task",
        "jobs, search in vain": f"{JOBS}?q=no such task",
        "job": f"{JOBS}{job.pk}/change/",
        "failures, 24 hours": f"{JOBS}failures/",
        "failures, all": f"{JOBS}failures/?time=all",
        "failures, one class": f"{JOBS}failures/?time=all&error=broken3",
        "tasks": f"{JOBS}tasks/",
    }


BENCHMARK = Benchmark(
    name="admin_pages",
    question="How many queries and how long does each page, filter, order and search of the admin take?",
    sizes={
        "tenants": Size(10_000, "tenant queues", smoke=200),
        "jobs": Size(1_000_000, "jobs in all states", smoke=5000),
        "waiting": Size(200_000, "of these, jobs that wait", smoke=1000),
        "changes": Size(10_000, "changes of limits in the last seven days", smoke=100),
        "rounds": Size(5, "times that each page is asked for", smoke=2),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
