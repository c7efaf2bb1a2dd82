"""How long does a bulk change in the admin take: its two requests, and the background job that carries it out?"""

from __future__ import annotations

import os
import re
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from typing import Any

from benchmarks import meters
from benchmarks.admin_settings import ADMIN
from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import Phase, phase
from benchmarks.report import Bar, Result, milliseconds
from benchmarks.tables import execute, vacuum

QUEUES = "/admin/tenant_slots/tenantqueue/"
JOBS = "/admin/tenant_slots/tenantjob/"

HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)"')

SECONDS_BETWEEN_LOOKS = 0.1


@dataclass
class Measured:
    """One bulk change; times in seconds, memory in MB above what the process had before."""

    page: float
    request: float
    background: float
    memory: float
    came_of: dict[str, int]


def measure(options: Namespace) -> Result:
    from django.core.management import call_command
    from django.test.utils import override_settings

    with override_settings(**ADMIN), _admin_in_workers():
        call_command("migrate", verbosity=0)
        limits = _limits(options)
        few, many = _canceled(options, 1), _canceled(options, options.tenants)
        killed = _canceled(options, 1, kills=True)
    of_killed = f"{killed.came_of}, {killed.background:.1f} s"
    return Result(
        [
            Bar("request that sets the limit of all tenant queues", round(limits.request, 2), "<=", 1, "s"),
            Bar("until they are changed", round(limits.background, 1), "<=", 20, "s"),
            Bar("tenant queues changed", limits.came_of.get("done", 0), "==", options.queues),
            Bar("request that cancels all jobs, of one tenant", round(few.request, 2), "<=", 1, "s"),
            Bar("until they are canceled", round(few.background, 1), "<=", 20, "s"),
            Bar("jobs canceled", few.came_of.get("done", 0), "==", options.jobs),
            Bar("the same of many tenants", round(many.background, 1), "<=", 20, "s"),
            Bar("jobs canceled, of these", many.came_of.get("done", 0), "==", options.jobs),
            Bar("the worker killed in the middle: jobs canceled", killed.came_of.get("done", 0), "==", options.jobs),
            Bar(
                "memory of a page or request above idle",
                round(max(one.memory for one in (limits, few, many))),
                "<=",
                50,
                "MB",
            ),
        ],
        {
            "page before it, ms: limits, jobs": [milliseconds(one.page) for one in (limits, few)],
            "the worker killed in the middle, another one goes on": of_killed,
        },
    )


@contextmanager
def _admin_in_workers() -> Iterator[None]:
    os.environ["BENCHMARK_ADMIN"] = "1"
    try:
        yield
    finally:
        del os.environ["BENCHMARK_ADMIN"]


def _limits(options: Namespace) -> Measured:
    with phase(options.side) as current:
        _make_queues(options.queues, max_job=2)
        _make_waiting(options.queues // 10, options.queues)
        return _measured(current, QUEUES, "set_limit", {"max_job": "5", "reason": "a benchmark"})


def _canceled(options: Namespace, tenants: int, *, kills: bool = False) -> Measured:
    with phase(options.side) as current:
        _make_queues(tenants, max_job=0)
        _make_waiting(options.jobs, tenants)
        return _measured(current, f"{JOBS}?state__exact=waiting", "cancel", {"reason": "a benchmark"}, kills=kills)


def _measured(current: Phase, url: str, action: str, data: dict[str, str], *, kills: bool = False) -> Measured:
    from tenant_slots.models import BulkChange, TenantJob, TenantQueue

    current.start_workers(1)
    client = _boss()
    some = (TenantQueue if url == QUEUES else TenantJob).objects.values_list("pk", flat=True)[0]
    sent = {"action": action, "_selected_action": [some], "select_across": "1"}
    memory = meters.MemoryAboveIdle()
    page, text = _timed(lambda: client.post(url, sent).content.decode())
    confirmed = {**sent_again(text), **data}
    request, _ = _timed(lambda: client.post(url, confirmed))
    megabytes = memory.megabytes()
    began = time.perf_counter()
    change = BulkChange.objects.latest("pk")
    if kills:
        current.wait_until(lambda: _done(change) > change.total // 3, pause=SECONDS_BETWEEN_LOOKS)
        current.start_workers(1)
        current.kill_first_worker()
    ended = BulkChange.objects.filter(pk=change.pk).exclude(ended_at=None)
    current.wait_until(ended.exists, timeout=600, pause=SECONDS_BETWEEN_LOOKS)
    change.refresh_from_db()
    return Measured(page, request, time.perf_counter() - began, megabytes, change.outcomes)


def sent_again(text: str) -> dict[str, str]:
    """What the page that asks has in hidden fields; Django renders the one of the form in its own way."""
    found = [*HIDDEN.findall(text), *re.findall(r'name="(seen)" value="([^"]*)"', text)]
    return {name: unescape(value) for name, value in found}


def _done(change: Any) -> int:
    from tenant_slots.admin.bulk.run import outcomes

    return outcomes(change).total()


def _timed(action: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    came_of = action()
    return time.perf_counter() - began, came_of


def _boss() -> Any:
    from django.contrib.auth.models import User
    from django.test import Client

    user, _ = User.objects.get_or_create(username="boss", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(user)
    return client


def _make_queues(number: int, max_job: int) -> None:
    execute(
        "INSERT INTO tenant_slots_tenantqueue (tenant, queue, max_job, current_job, paused, created_at)"
        " SELECT 'tenant ' || n, 'bench', %s, 0, true, now() FROM generate_series(1, %s) n",
        [max_job, number],
    )


def _make_waiting(number: int, tenants: int) -> None:
    """Jobs of the tenants in turns."""
    execute(
        "INSERT INTO tenant_slots_tenantjob (uuid, tenant_queue_id, task, args, kwargs, options, state, priority, key)"
        " SELECT gen_random_uuid(), row.id, 'shop.jobs.import_feed', '[]', '{\"path\": \"feed.csv\"}', '{}',"
        " 'waiting', 0, '' FROM generate_series(1, %s) n"
        " JOIN (SELECT id, row_number() OVER (ORDER BY id) AS number FROM tenant_slots_tenantqueue) row"
        " ON row.number = 1 + n %% %s",
        [number, tenants],
    )
    vacuum("tenant_slots_tenantjob", "tenant_slots_tenantqueue")


BENCHMARK = Benchmark(
    name="bulk_changes",
    question="How long does a bulk change in the admin take, and what is left of one when its worker is killed?",
    sizes={
        "queues": Size(10_000, "tenant queues whose limit is set", smoke=500),
        "jobs": Size(100_000, "jobs that are canceled", smoke=2000),
        "tenants": Size(1000, "tenants that these belong to, where they are not one's", smoke=20),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
