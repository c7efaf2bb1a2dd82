"""How many queries and how long does each page, filter, order and search of the admin take at a million jobs?"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from statistics import median
from typing import Any

from benchmarks.admin_list import LIST, _queries, _seconds
from benchmarks.admin_settings import ADMIN
from benchmarks.bulk_changes import JOBS, _boss, sent_again
from benchmarks.harness import Benchmark, Size, main
from benchmarks.meters import MemoryAboveIdle
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, milliseconds
from benchmarks.tables import execute, fill, vacuum

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
            fill(options.tenants, options.jobs, options.waiting)
            _fill_week(options.changes)
            _fill_one(options.hog)
            _fill_log(options.entries)
            _make_bulk_change()
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
    execute(
        f"INSERT INTO tenant_slots_queueminute (queue, minute, version, {', '.join(columns)})"  # noqa: S608 - our names
        " SELECT queue, date_trunc('minute', now()) - n * interval '1 minute', '1.' || n / 2000"
        f"{', n' * len(columns)}"
        " FROM generate_series(1, 7 * 1440) n, (VALUES (''), ('bench')) queues(queue)"
    )
    execute(
        "INSERT INTO tenant_slots_keptchange (tenant_queue_id, at, what, old, new, by, reason)"
        " SELECT id, now() - number * interval '7 days' / %s, 'limit', '1', '5', 'staff', ''"
        " FROM generate_series(1, %s) number JOIN (SELECT id, row_number() OVER (ORDER BY id) - 1 AS place,"
        " count(*) OVER () AS rows FROM tenant_slots_tenantqueue) row ON place = number %% rows ORDER BY number DESC",
        [changes, changes],
    )
    vacuum("tenant_slots_queueminute", "tenant_slots_keptchange")


def _fill_one(jobs: int) -> None:
    """The first tenant queue is a month old, and has had so many of the jobs of the last days."""
    execute("UPDATE tenant_slots_tenantqueue SET created_at = now() - interval '30 days'")
    execute(
        "UPDATE tenant_slots_tenantjob SET tenant_queue_id = (SELECT min(id) FROM tenant_slots_tenantqueue)"
        " WHERE id IN (SELECT id FROM tenant_slots_tenantjob WHERE state = 'finished' ORDER BY random() LIMIT %s)",
        [jobs],
    )
    vacuum("tenant_slots_tenantjob")


def _fill_log(entries: int) -> None:
    """Of staff who have canceled very many jobs, each of which has an entry."""
    _boss()
    execute(
        "INSERT INTO django_admin_log (action_time, user_id, content_type_id, object_id, object_repr, action_flag,"
        " change_message) SELECT now() - number * interval '1 second', (SELECT min(id) FROM auth_user),"
        " (SELECT id FROM django_content_type WHERE app_label = 'tenant_slots' AND model = 'tenantjob'), 1000 + number,"
        " 'a job', 2, '[{\"changed\": {}}]' FROM generate_series(1, %s) number",
        [entries],
    )
    vacuum("django_admin_log")


def _make_bulk_change() -> None:
    """Of all tenant queues, which nobody carries out."""
    from tenant_slots.models import TenantQueue

    client, first = _boss(), TenantQueue.objects.order_by("pk")[0]
    asked = {"action": "resume", "_selected_action": [first.pk], "select_across": "1"}
    text = client.post(LIST, asked).content.decode()
    client.post(LIST, {**sent_again(text), "reason": "a benchmark"})


def _as_first_viewer(client: Any, address: str) -> None:
    """Who looks within the next seconds shares some of the answers, and what is counted over an hour."""
    from tenant_slots.admin.snapshots import forget_shared

    forget_shared()
    client.get(address)


def _most(figures: dict[str, Any]) -> str:
    return max(figures, key=lambda name: figures[name])


def _addresses() -> dict[str, str]:
    """Each page by what it shows."""
    return {**_of_overview(), **_of_queues(), **_of_jobs(), **_of_failures()}


def _of_overview() -> dict[str, str]:
    return {
        "overview, 1 hour": f"{LIST}overview/",
        "overview, 24 hours": f"{LIST}overview/?span=24h",
        WEEK: f"{LIST}overview/?span=7d",
        **{f"overview of a queue, {span}": f"{LIST}overview/?queue=bench&span={span}" for span in ("1h", "24h", "7d")},
        "workers": f"{LIST}workers/",
    }


def _of_queues() -> dict[str, str]:
    from tenant_slots.models import BulkChange, TenantQueue
    from tenant_slots.stats.states import QueueState

    row = TenantQueue.objects.order_by("pk")[0]
    some = ",".join(str(pk) for pk in TenantQueue.objects.order_by("pk").values_list("pk", flat=True)[:100])
    return {
        "tenant queues": LIST,
        "tenant queues, last page": f"{LIST}?p={-(-TenantQueue.objects.count() // 100)}",
        "tenant queues, search": f"{LIST}?q=77",
        "tenant queues, search in vain": f"{LIST}?q=no such tenant",
        **{f"tenant queues, order {order}": f"{LIST}?o={order}" for order in _orders_of_queues()},
        **{f"tenant queues, {state}": f"{LIST}?state={state}" for state in QueueState},
        "tenant queues of a queue": f"{LIST}?queue={row.queue}",
        "tenant queues of a queue and a state, sorted": f"{LIST}?queue={row.queue}&state=waits_for_worker&o=-9",
        "tenant queues of a tenant": f"{LIST}?tenant__exact={row.tenant}",
        "tenant queues, a poll of rows": f"{LIST}live/?rows={some}",
        "tenant queues, a poll of tiles": f"{LIST}live/?rows=",
        "tenant queues, bulk changes": f"{LIST}bulk/",
        "tenant queues, a bulk change": f"{LIST}bulk/{BulkChange.objects.get().pk}/",
        "tenant queue, added": f"{LIST}add/",
        "tenant queue, limit": f"{LIST}{row.pk}/limit/",
        "tenant queue": f"{LIST}{row.pk}/change/",
        "tenant queue, 24 hours": f"{LIST}{row.pk}/change/?span=24h",
        "tenant queue, 7 days": f"{LIST}{row.pk}/change/?span=7d",
        "tenant queue, history": f"{LIST}{row.pk}/history/",
    }


def _orders_of_queues() -> list[int]:
    """Each column that can be sorted by, in both directions. The first one has the boxes to select rows."""
    from tenant_slots.admin import TenantQueueAdmin

    shown = [getattr(TenantQueueAdmin, name, name) for name in TenantQueueAdmin.list_display]
    is_sorted_by = [isinstance(one, str) or hasattr(one, "admin_order_field") for one in shown]
    return [sign * number for number, is_one in enumerate(is_sorted_by, start=1) if is_one for sign in (1, -1)]


def _of_jobs() -> dict[str, str]:
    from tenant_slots.models import TenantJob, TenantQueue

    row, job = TenantQueue.objects.order_by("pk")[0], TenantJob.objects.order_by("pk")[0]
    of_queue = f"{JOBS}?tenant_queue__queue={row.queue}"
    some = ",".join(str(pk) for pk in TenantJob.objects.order_by("-pk").values_list("pk", flat=True)[:100])
    return {
        "jobs": JOBS,
        "jobs, page 51": f"{JOBS}?p=51",
        "jobs of a queue": of_queue,
        **{f"{state} jobs of a queue": f"{of_queue}&state__exact={state}" for state in STATES},
        "jobs of a tenant queue": f"{JOBS}?tenant_queue__exact={row.pk}",
        "failed jobs, page 51": f"{JOBS}?state__exact=failed&p=51",
        **{f"jobs, {state}": f"{JOBS}?state__exact={state}" for state in STATES},
        "jobs of a tenant": f"{JOBS}?tenant={row.tenant}",
        **{f"{state} jobs of a tenant": f"{JOBS}?tenant={row.tenant}&state__exact={state}" for state in STATES},
        "jobs, search by an id": f"{JOBS}?q={job.uuid}",
        "jobs, search by the beginning of an id": f"{JOBS}?q={str(job.uuid)[:8]}",
        "jobs, search by a tenant": f"{JOBS}?q={row.tenant}",
        "jobs, search by a task": f"{JOBS}?q=import",
        "failed jobs, search in vain": f"{JOBS}?state__exact=failed&q=no such task",
        "jobs, search in vain": f"{JOBS}?q=no such task",
        "jobs, a poll of rows": f"{JOBS}live/?rows={some}",
        "jobs, bulk changes": f"{JOBS}bulk/",
        "job": f"{JOBS}{job.pk}/change/",
        "job, history": f"{JOBS}{job.pk}/history/",
        "tasks": f"{JOBS}tasks/",
    }


def _of_failures() -> dict[str, str]:
    from tenant_slots.models import TenantQueue

    row, task = TenantQueue.objects.order_by("pk")[0], "shop.jobs.import_feed"
    return {
        **{f"failures, {span}": f"{JOBS}failures/?time={span}" for span in ("1h", "24h", "7d")},
        "failures, all": f"{JOBS}failures/?time=all",
        "failures, one class": f"{JOBS}failures/?time=all&error=broken3",
        "failures, one task": f"{JOBS}failures/?time=all&task=import",
        "failures, a task in vain": f"{JOBS}failures/?time=all&task=none",
        "failures, one key": f"{JOBS}failures/?time=all&key=feed",
        "failures, one tenant": f"{JOBS}failures/?time=all&tenant={row.tenant}",
        "failures, one group": f"{JOBS}failures/?time=all&group_task={task}&group_error=shop.feeds.Broken3",
    }


BENCHMARK = Benchmark(
    name="admin_pages",
    question="How many queries and how long does each page, filter, order and search of the admin take?",
    sizes={
        "tenants": Size(10_000, "tenant queues", smoke=600),
        "jobs": Size(1_000_000, "jobs in all states", smoke=5000),
        "waiting": Size(200_000, "of these, jobs that wait", smoke=1000),
        "changes": Size(10_000, "changes of limits in the last seven days", smoke=100),
        "hog": Size(400_000, "finished jobs of the last seven days that are of one tenant", smoke=2000),
        "entries": Size(1_000_000, "entries of jobs in Django's log of the admin", smoke=1000),
        "rounds": Size(5, "times that each page is asked for", smoke=2),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
