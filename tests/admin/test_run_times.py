"""The page of tasks: how long their jobs ran."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

import tests.jobs  # noqa: F401  the task is known once its module is imported
from tenant_slots.admin import TenantJobAdmin
from tenant_slots.admin.run_times import shown
from tenant_slots.models import Kind, State, TenantJob, TenantQueue
from tenant_slots.stats import run_times
from tests.admin.site import HOSTILE, JOBS, signed_in
from tests.factories import tenant_queue, waiting_job

pytestmark = pytest.mark.django_db

TASKS = reverse("admin:tenant_slots_tenantjob_tasks")


def ran(row: TenantQueue, task: str, seconds: float, *, back: float = 60, **values: Any) -> None:
    ended = timezone.now() - timedelta(seconds=back)
    facts = {"state": State.FINISHED, "ended_at": ended, "started_at": ended - timedelta(seconds=seconds), **values}
    job = waiting_job(row, **facts)
    TenantJob.objects.filter(pk=job.pk).update(task=task)


def times(client: Client) -> list[tuple[str, int, float, float]]:
    return [(one.task, one.jobs, one.p50, one.p95) for one, _, _ in client.get(TASKS).context["times"]]


def test_it_shows_median_and_p95_by_task_the_longest_first(viewer: Client) -> None:
    row = tenant_queue()
    for seconds in range(1, 101):
        ran(row, "shop.quick", seconds / 10)
    ran(row, "shop.slow", 3600)
    assert times(viewer) == [("shop.slow", 1, 3600, 3600), ("shop.quick", 100, 5, 9.5)]


def test_what_failed_counts_and_what_was_canceled_or_reserved_or_never_ran_does_not(viewer: Client) -> None:
    row = tenant_queue()
    ran(row, "shop.a", 5, state=State.FAILED)
    ran(row, "shop.b", 5, state=State.CANCELED)
    ran(row, "shop.c", 5, kind=Kind.RESERVATION)
    ran(row, "shop.d", 5, started_at=None)
    ran(row, "shop.e", 5, state=State.RUNNING)
    assert times(viewer) == [("shop.a", 1, 5, 5)]


def test_only_the_latest_jobs_are_looked_at_and_the_page_says_so(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_times, "SAMPLE", 2)
    row = tenant_queue()
    for seconds, back in ((9, 300), (2, 200), (1, 100)):
        ran(row, "shop.a", seconds, back=back)
    assert times(viewer) == [("shop.a", 2, 1, 2)]
    assert "Of the latest 2 jobs that ended." in viewer.get(TASKS).content.decode()
    monkeypatch.setattr(run_times, "SAMPLE", 3)
    assert "Of the latest" not in viewer.get(TASKS).content.decode()


def test_a_restricted_viewer_sees_only_their_own(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(tenant_queue("own"), "shop.a", 1)
    ran(tenant_queue("foreign"), "shop.b", 1)
    rows = TenantQueue.objects.filter(tenant="own")
    monkeypatch.setattr(TenantJobAdmin, "tenant_queues_for", lambda self, request: rows)
    assert [task for task, *_ in times(viewer)] == ["shop.a"]


def test_the_page_needs_the_permission_to_see_jobs_and_escapes(viewer: Client) -> None:
    ran(tenant_queue(), HOSTILE, 1)
    assert HOSTILE not in viewer.get(TASKS).content.decode()
    assert TASKS in viewer.get(JOBS).content.decode()
    assert signed_in("view_tenantqueue").get(TASKS).status_code == 403


def test_the_page_takes_few_queries(viewer: Client) -> None:
    row = tenant_queue()
    for number in range(20):
        ran(row, f"shop.task{number}", 1)
    viewer.get(TASKS)
    with CaptureQueriesContext(connection) as captured:
        viewer.get(TASKS)
    assert len(captured) <= 6


@pytest.mark.parametrize(("seconds", "text"), [(0.0123, "0.012 s"), (9.5, "9.5 s"), (59, "59 s"), (90, "1 min")])
def test_a_run_time_in_words(seconds: float, text: str) -> None:
    assert shown(seconds) == text
