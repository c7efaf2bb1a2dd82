"""Each page of ours with something on it, and each way in which somebody may look at it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.test import Client
from django.urls import reverse

from tenant_slots.db import clock
from tenant_slots.db.clock import minute_of, start_of
from tenant_slots.models import BulkChange, QueueMinute, State, TenantJob, TenantQueue
from tenant_slots.models.queue_minute import ALL_QUEUES
from tenant_slots.tasks import attempts
from tests.admin.bulk_changes import many_jobs, page_of, started
from tests.admin.site import JOBS, QUEUES, change_page
from tests.factories import (
    TASK,
    age,
    another_process,
    dead_process,
    fresh,
    running_job,
    somebody_sweeps,
    tenant_queue,
    waiting_job,
    worker_on_record,
)

DESK = {"width": 1440, "height": 900}
PAPER = {"width": 794, "height": 1123}
"""A4 upright, at 96 dots an inch."""

VARIANTS: dict[str, dict[str, Any]] = {
    "390": {"viewport": {"width": 390, "height": 844}},
    "768": {"viewport": {"width": 768, "height": 1024}},
    "1024": {"viewport": {"width": 1024, "height": 768}},
    "1440": {"viewport": DESK},
    "1920": {"viewport": {"width": 1920, "height": 1080}},
    "zoom-200": {"viewport": {"width": 720, "height": 450}, "device_scale_factor": 2},
    "dark": {"viewport": DESK, "color_scheme": "dark"},
    "forced-colors": {"viewport": DESK, "forced_colors": "active"},
    "right-to-left": {"viewport": DESK, "locale": "he-IL"},
    "right-to-left-390": {"viewport": {"width": 390, "height": 844}, "locale": "he-IL"},
    "print": {"viewport": PAPER},
    "no-javascript": {"viewport": DESK, "java_script_enabled": False},
}
"""The options of a browser's context by name. Each is under the strict policy of the test site."""

LONG = "a-customer-with-a-rather-long-name.example.org"
IMPORT = "shop.jobs.import_catalog"


def filled(boss: Client) -> dict[str, str]:
    """The address of each page, by its name."""
    change = _bulk_change(boss)
    busy, failing = _queues()
    first, _, third = (running_job(busy, another_process(f"worker-{number}")) for number in (1, 2, 3))
    TenantJob.objects.filter(pk=first.pk).update(progress={"done": 40, "total": 100}, stats={"rows_read": 40})
    TenantJob.objects.filter(pk=third.pk).update(progress={"done": 12_000, "total": None})
    waiting = [waiting_job(busy, key="sku 4711", priority=place % 3) for place in range(8)]
    busy.set_override(4, clock.now() + timedelta(days=2), by="anna", reason="import day, agreed with the customer")
    failed = _ended(failing)
    running_job(tenant_queue("killed", max_job=2), dead_process("worker-9"))
    _minutes()
    _workers()
    return {
        "queues": QUEUES,
        "queue": change_page(busy),
        "queue-add": f"{QUEUES}add/",
        "queue-history": change_page(busy, "history"),
        "limit": f"{QUEUES}{busy.pk}/limit/",
        "overview": f"{QUEUES}overview/",
        "workers": f"{QUEUES}workers/",
        "jobs": JOBS,
        "job-waiting": change_page(waiting[0]),
        "job-running": change_page(first),
        "job-failed": change_page(failed),
        "failures": reverse("admin:tenant_slots_tenantjob_failures"),
        "tasks": reverse("admin:tenant_slots_tenantjob_tasks"),
        "bulk-change": page_of(change),
        "bulk-changes": reverse("admin:tenant_slots_tenantjob_bulk_changes"),
    }


def _queues() -> tuple[TenantQueue, TenantQueue]:
    busy = tenant_queue("acme", max_job=2)
    busy.set_limit(3, by="billing", reason="plan: pro")
    many_jobs(tenant_queue("over", max_job=1, current_job=2), 2)
    tenant_queue("idle"), tenant_queue("שלום עולם", share=3)
    rest = {"rests_until": clock.now() + timedelta(minutes=20), "rest_reason": "429 of the partner"}
    waiting_job(tenant_queue("resting", **rest))
    waiting_job(tenant_queue("stopped", max_job=0))
    waiting_job(tenant_queue("paused", paused=True))
    failing = tenant_queue(LONG, max_job=12, queue="reports")
    for number in range(12):
        tenant_queue(f"shop-{number:03}", max_job=number)
    return fresh(busy), failing


def _ended(row: TenantQueue) -> TenantJob:
    """Jobs that have ended in the last hour; one that failed."""
    errors = ("ValueError", "shop.errors.FeedCannotBeRead", "")
    for place in range(30):
        error = errors[place % 5] if place % 5 < len(errors) else None
        facts = {"state": State.FINISHED} if error is None else {"state": State.FAILED, "error_class": error}
        job = waiting_job(row, attempt=1, key=f"sku {place % 4}", error=_traceback(error), **facts)
        age(job, enqueued_at=100 * place + 900, started_at=100 * place + 60, ended_at=100 * place + 5)
        TenantJob.objects.filter(pk=job.pk).update(task=IMPORT if place % 2 else TASK)
    failed: TenantJob = row.jobs.filter(error_class=errors[1]).latest("pk")
    for attempt in (1, 2, 3):
        noted = attempts.noted(failed, errors[1], failed.error, "host-1.example.org.4001", 40.0)
        TenantJob.objects.filter(pk=failed.pk).update(**noted, attempt=attempt + 1, failures=attempt)
        failed.refresh_from_db()
    return failed


def _traceback(error: str | None) -> str:
    if not error:
        return ""
    lines = "".join(f'  File "shop/feeds.py", line {line}, in read\n    row = next(rows)\n' for line in range(9))
    return f"Traceback (most recent call last):\n{lines}{error}: {'the third column is not a number ' * 6}\n"


def _bulk_change(boss: Client) -> BulkChange:
    many = many_jobs(tenant_queue("big", max_job=0), 210)
    return started(boss, JOBS, "cancel", many, reason="the feed was sent twice")


def _minutes() -> None:
    """Of the last hour, with a gap, for the charts of the overview."""
    somebody_sweeps()
    now = minute_of(clock.now())
    QueueMinute.objects.bulk_create(
        QueueMinute(
            queue=ALL_QUEUES, minute=start_of(now - back), running=back % 7, workers=8, runnable=back % 5,
            held_back=back % 11 * 3, finished=back % 9, failed=back % 13 // 11, started=back % 9, delays_2=back % 9,
        )
        for back in range(1, 61)
        if not 20 < back < 26
    )  # fmt: skip


def _workers() -> None:
    for number in range(1, 6):
        worker_on_record(f"host-{number}.example.org.{4000 + number}", "imports")
    worker_on_record("killed.example.org.5000", "reports", says_so=False)
