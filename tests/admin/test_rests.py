"""A tenant queue that rests in the admin: until when and why, and staff who end it."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from tenant_slots.admin import reasons
from tenant_slots.models import State, TenantQueue
from tests.admin.site import LIVE, QUEUES, change_page, confirmed, loaded, run_action
from tests.factories import fresh, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


def resting(tenant: str = "acme", minutes: float = 30, reason: str = "HTTP 429", **values: Any) -> TenantQueue:
    return tenant_queue(tenant, rests_until=timezone.now() + timedelta(minutes=minutes), rest_reason=reason, **values)


def end_of(row: TenantQueue) -> str:
    assert row.rests_until is not None
    return f"{timezone.localtime(row.rests_until):%H:%M:%S %Z}"


def test_the_list_says_until_when_and_why(viewer: Client) -> None:
    row, silent, over = resting(), resting("silent", reason=""), resting("over", minutes=-1)
    shown = viewer.get(LIVE, {"rows": f"{row.pk},{silent.pk},{over.pk}"}).json()["cells"]
    assert shown[f"{row.pk}.state"] == {
        "text": f"Rests until {end_of(row)}: HTTP 429",
        "attrs": {"data-state": "resting"},
    }
    assert shown[f"{silent.pk}.state"]["text"] == f"Rests until {end_of(silent)}"
    assert shown[f"{over.pk}.state"]["text"] == "Idle"
    page = viewer.get(QUEUES, {"state": "resting"}).content.decode()
    assert "Rests until" in page
    assert "over" not in [*viewer.get(QUEUES, {"state": "resting"}).context["cl"].result_list.values_list("tenant")]


def test_a_long_reason_is_cut_in_the_list_and_hostile_text_is_harmless(viewer: Client) -> None:
    row = resting(reason="<script>" + "x" * 190)
    assert len(viewer.get(LIVE, {"rows": row.pk}).json()["cells"][f"{row.pk}.state"]["text"]) == 60
    for page in (QUEUES, change_page(row)):
        assert "<script>xx" not in viewer.get(page).content.decode()
    assert "x" * 190 in viewer.get(change_page(row)).content.decode()


def test_the_page_shows_it_and_saving_something_else_leaves_it(boss: Client, viewer: Client) -> None:
    row = resting()
    for client in (boss, viewer):
        assert f"Rests until {end_of(row)}: HTTP 429" in client.get(change_page(row)).content.decode()
    boss.post(change_page(row), {**loaded(boss, row), "share": "3"})
    before = row.rests_until
    assert (fresh(row).share, row.rests_until, row.rest_reason) == (3, before, "HTTP 429")


def test_a_waiting_job_says_that_its_tenant_queue_rests() -> None:
    row = resting()
    text = " ".join(reasons.why_waiting(waiting_job(row)))
    assert f"A job has said that the tenant is busy. No job starts now. Rests until {end_of(row)}: HTTP 429." in text
    row.end_rest()
    assert "busy" not in " ".join(reasons.why_waiting(waiting_job(fresh(row))))


def test_resume_ends_the_rest_and_its_jobs_are_admitted(boss: Client) -> None:
    row, other = resting(), resting("other")
    job = waiting_job(row)
    confirmed(boss, QUEUES, "resume", row, reason="they are back")
    assert (fresh(row).rests_until, row.rest_reason, fresh(job).state) == (None, "", State.QUEUED)
    assert fresh(other).rests_until is not None
    [entry] = LogEntry.objects.all()
    assert entry.get_change_message() == "Changed rest: resting → not resting (they are back)."
    confirmed(boss, QUEUES, "resume", row)
    assert LogEntry.objects.count() == 1


def test_resume_ends_a_pause_and_a_rest_together(boss: Client) -> None:
    row = resting(paused=True)
    confirmed(boss, QUEUES, "resume", row)
    assert (fresh(row).rests_until, row.paused) == (None, False)


def test_the_export_has_it(boss: Client) -> None:
    rows = [resting(reason="=1+1"), tenant_queue("beta")]
    response: Any = run_action(boss, QUEUES, "export", *rows)
    head, *lines = csv.reader(io.StringIO(b"".join(response.streaming_content).decode()))
    found = [dict(zip(head, line, strict=True)) for line in lines]
    assert [line["rest_reason"] for line in found] == ["'=1+1", ""]
    assert found[0]["rests_until"].startswith(f"{rows[0].rests_until:%Y-%m-%d %H:%M}")
    assert found[1]["rests_until"] == ""
