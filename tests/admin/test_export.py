"""What is exported: every figure, text that no spreadsheet runs, and an entry that somebody has taken it."""

from __future__ import annotations

import csv
import gc
import io
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import AsyncClient, Client, RequestFactory
from django.utils import timezone

from tenant_slots.admin import TenantQueueAdmin, audit, export
from tenant_slots.admin.export import harmless
from tenant_slots.models import TenantJob, TenantQueue
from tests.admin.site import JOBS, QUEUES, run_action
from tests.factories import many_waiting, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


def text_of(response: Any) -> str:
    return b"".join(response.streaming_content).decode()


def values_of(text: str) -> dict[str, str]:
    head, line = csv.reader(io.StringIO(text))
    return dict(zip(head, line, strict=True))


def test_zeros_and_noes_are_exported_as_such(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    values = values_of(text_of(run_action(boss, QUEUES, "export", row)))
    for name in ("current_job", "max_job", "running", "queued", "waiting", "failed"):
        assert values[name] == "0", name
    assert (values["paused"], values["worker_seconds"]) == ("False", "0.0")
    assert (values["oldest_wait"], values["rate"], values["resume_at"], values["rest_reason"]) == ("", "", "", "")


def test_an_export_by_users_whose_key_is_a_text_is_in_the_log_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(LogEntry.objects, "create", lambda **values: made.append(values))
    request: Any = RequestFactory().get("/")
    request.user = SimpleNamespace(pk="anna")
    audit.note_all(TenantQueueAdmin(TenantQueue, admin.site), request, "exported:", "1", "")
    assert [values["user_id"] for values in made] == ["anna"]


def test_the_source_of_a_limit_is_exported_with_its_reason(boss: Client) -> None:
    row = tenant_queue()
    row.set_limit(3, by="billing", reason="plan: pro")

    def exported() -> list[str]:
        values = values_of(text_of(run_action(boss, QUEUES, "export", row)))
        return [values[name] for name in ("limit_set_by", "limit_reason", "override_by", "limit_before_override")]

    assert exported() == ["billing", "plan: pro", "", ""]
    row.set_override(9, timezone.now() + timedelta(days=2), by="anna", reason="import day")
    assert exported() == ["billing", "import day", "anna", "3"]


def test_zeros_of_jobs_are_exported(boss: Client) -> None:
    values = values_of(text_of(run_action(boss, JOBS, "export", waiting_job(tenant_queue()))))
    assert [values[name] for name in ("attempt", "failures", "crashes", "interruptions", "priority")] == ["0"] * 5


def test_no_more_rows_are_in_memory_than_one_part_has(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "ROWS_AT_ONCE", 2)
    TenantQueue.objects.bulk_create([TenantQueue(tenant=f"tenant {at}", queue="imports") for at in range(7)])
    gc.collect()
    of_others = rows_in_memory()
    alive = [rows_in_memory() - of_others for _ in export.queue_lines(TenantQueue.objects.all(), lambda tenants: {})]
    assert len(alive) == 7
    assert max(alive) <= 4, "a part, and the next one while it takes its place"


@pytest.mark.parametrize("is_pooled", [False, True])
def test_jobs_are_read_part_by_part_also_without_cursors_of_the_server(
    boss: Client, monkeypatch: pytest.MonkeyPatch, is_pooled: bool
) -> None:
    """As behind PgBouncer: Django would fetch all of them before the first line."""
    monkeypatch.setattr(export, "ROWS_AT_ONCE", 2)
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", is_pooled)
    many_waiting(tenant_queue(max_job=0), 7)
    lines = export.job_lines(TenantJob.objects.all())
    assert next(lines)
    TenantJob.objects.all().delete()
    assert len(list(lines)) == 1, "what is in memory"


def test_jobs_are_exported_once_the_latest_first_and_none_that_came_meanwhile(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "ROWS_AT_ONCE", 2)
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row) for _ in range(5)]
    lines = export.job_lines(TenantJob.objects.order_by("ended_at"))
    first = next(lines)
    waiting_job(row)
    assert [line[0] for line in (first, *lines)] == [job.uuid for job in reversed(jobs)]
    assert len(first) == len(export.JOB_FIELDS)


@pytest.mark.parametrize("url", [QUEUES, JOBS])
def test_under_asgi_lines_are_made_as_they_are_sent(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Of an iterator that cannot be awaited Django would make a list first."""
    monkeypatch.setattr(export, "ROWS_AT_ONCE", 2)
    row = tenant_queue(max_job=0)
    many_waiting(row, 4)
    TenantQueue.objects.bulk_create([TenantQueue(tenant=f"tenant {at}", queue="imports") for at in range(4)])
    client = AsyncClient()
    client.force_login(User.objects.create(username="boss", is_staff=True, is_superuser=True))
    sent = {"action": "export", "_selected_action": [1], "select_across": "1"}

    async def exported() -> list[bytes]:
        response = await client.post(url, sent)
        assert response.is_async
        return [part async for part in response.streaming_content]

    parts = async_to_sync(exported)()
    lines = [part.decode().count("\r\n") for part in parts]
    assert sum(lines) == 1 + (5 if url == QUEUES else 4)
    assert max(lines) == 2


def rows_in_memory() -> int:
    return sum(isinstance(one, TenantQueue) for one in gc.get_objects())


@pytest.mark.parametrize("url", [QUEUES, JOBS])
def test_every_field_is_quoted(boss: Client, url: str) -> None:
    row = tenant_queue('a"b;c,d')
    job = waiting_job(row)
    text = text_of(run_action(boss, url, "export", row if url == QUEUES else job))
    for line in text.splitlines():
        assert line.startswith('"')
        assert line.endswith('"')
    assert '"a""b;c,d"' in text


@pytest.mark.parametrize(
    ("text", "exported"),
    [
        ("a;=1+1", "a;'=1+1"),
        ("a; =1+1;-2", "a;' =1+1;'-2"),
        ("a\n=1", "a\n'=1"),
        ("a\r=1", "a\r'=1"),
        ("a\r\n=1", "a\r\n'=1"),
        ("=1;@x", "'=1;'@x"),
        ("a;b", "a;b"),
        ("a-b=c", "a-b=c"),
    ],
)
def test_text_is_harmless_to_a_spreadsheet_that_splits_at_semicolons_too(text: str, exported: str) -> None:
    assert harmless(text) == exported


@pytest.mark.parametrize("url", [QUEUES, JOBS])
def test_an_export_is_an_entry_with_the_number_and_the_filter(boss: Client, url: str) -> None:
    row = tenant_queue("acme")
    job = waiting_job(row)
    response = run_action(boss, f"{url}?q=acme", "export", row if url == QUEUES else job)
    assert LogEntry.objects.count() == 1, "it is written before the first line leaves"
    text_of(response)
    entry = LogEntry.objects.get()
    assert entry.get_change_message() == "Changed exported as CSV 1 (q=acme)."
    assert entry.user.is_superuser
    assert entry.content_type.model == ("tenantqueue" if url == QUEUES else "tenantjob")
    assert boss.get("/admin/").status_code == 200


def test_who_may_not_export_leaves_no_entry(viewer: Client) -> None:
    run_action(viewer, QUEUES, "export", tenant_queue())
    assert not LogEntry.objects.exists()
