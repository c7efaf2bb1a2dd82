"""How long does the server take for the admin's live list of very many tenants?"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from benchmarks.admin_settings import ADMIN
from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import phase
from benchmarks.report import Bar, Result, milliseconds
from benchmarks.tables import fill

ROWS_ON_A_PAGE = 100
"""Django's default."""

LIST = "/admin/tenant_slots/tenantqueue/"


def measure(options: Namespace) -> Result:
    from django.core.management import call_command
    from django.test.utils import override_settings

    with override_settings(**ADMIN):
        call_command("migrate", verbosity=0)
        with phase(options.side):
            fill(options.tenants, options.jobs, options.waiting)
            return _measured(options)


def _measured(options: Namespace) -> Result:
    from tenant_slots.admin import TenantQueueAdmin
    from tenant_slots.admin.snapshots import shared_rows, shared_tiles, shared_worker_time
    from tenant_slots.models import TenantQueue
    from tenant_slots.stats.tenant_queues import BUSIEST_FIRST, with_waiting

    client = _staff()
    busiest = with_waiting(TenantQueue.objects.all()).order_by(*BUSIEST_FIRST)
    page = [str(row.pk) for row in busiest[:ROWS_ON_A_PAGE]]
    poll = f"{LIST}live/?rows={','.join(page)}"

    def poll_of_the_page() -> None:
        shared_rows.clear()
        client.get(poll)

    def poll_of_the_tiles() -> None:
        shared_tiles.clear()
        client.get(f"{LIST}live/?rows=")

    def fresh_list(**query: str) -> None:
        shared_tiles.clear()
        shared_worker_time.clear()
        client.get(LIST, query)

    queries = _queries(fresh_list)
    actions = (fresh_list, poll_of_the_page, poll_of_the_tiles)
    lists, polls, tile_polls = (_seconds(action, options.rounds) for action in actions)
    filters = {
        state: milliseconds(median(_seconds(partial(client.get, LIST, {"state": state}), 3)))
        for state in ("waits_for_worker", "at_limit", "key_limit", "stale", "idle")
    }
    column = 1 + TenantQueueAdmin.list_display.index("worker_time")  # after the boxes to select rows
    by_time = _seconds(partial(fresh_list, o=f"-{column}"), 3)
    return Result(
        [
            Bar("queries of the list page", queries, "<=", 12),
            Bar("server time of the list page, median", milliseconds(median(lists)), "<=", 300, "ms"),
            Bar(
                "server time of a poll of the page, nobody asked before, median",
                milliseconds(median(polls)),
                "<=",
                50,
                "ms",
            ),
            Bar("server time of a poll of the tiles, likewise", milliseconds(median(tile_polls)), "<=", 50, "ms"),
        ],
        {
            "rows on the page": len(page),
            "slowest list page, ms": milliseconds(max(lists)),
            "slowest poll of the page, ms": milliseconds(max(polls)),
            "slowest poll of the tiles, ms": milliseconds(max(tile_polls)),
            "a poll that is shared, median, ms": milliseconds(
                median(_seconds(lambda: client.get(poll), options.rounds))
            ),
            "list filtered by state, median, ms": filters,
            "list sorted by worker time, median, ms": milliseconds(median(by_time)),
        },
    )


def _staff() -> Any:
    """Signed in with single permissions, which cost two queries more than a superuser's."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    user = User.objects.create(username="staff", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__endswith="tenantqueue"))
    client = Client()
    client.force_login(user)
    return client


def _queries(action: Callable[[], object]) -> int:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    action()
    with CaptureQueriesContext(connection) as captured:
        action()
    return len(captured)


def _seconds(action: Callable[[], object], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return times


BENCHMARK = Benchmark(
    name="admin_list",
    question="How long does the server take for the admin's live list of very many tenants?",
    sizes={
        "tenants": Size(10_000, "tenant queues", smoke=200),
        "jobs": Size(1_000_000, "jobs in all states", smoke=5000),
        "waiting": Size(200_000, "of these, jobs that wait", smoke=1000),
        "rounds": Size(10, "times that each page is asked for", smoke=3),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
