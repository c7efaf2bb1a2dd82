"""The share of a tenant queue in the admin: seen in the list, changed on the form, in the dialog and in bulk."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from tenant_slots.models import LimitSource, TenantQueue
from tests.admin.site import LIVE, QUEUES, Form, change_page, loaded, messages_of, run_action
from tests.factories import fresh, tenant_queue

pytestmark = pytest.mark.django_db

JSON = {"Accept": "application/json"}


def limit_page(row: TenantQueue) -> str:
    return change_page(row, "limit")


def history() -> list[str]:
    return [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]


def test_the_list_and_its_polls_show_the_share(viewer: Client) -> None:
    row = tenant_queue(share=37)
    assert f'<span data-slots="{row.pk}.share">37</span>' in viewer.get(QUEUES).content.decode()
    cells = viewer.get(LIVE, {"rows": row.pk}).json()["cells"]
    assert cells[f"{row.pk}.share"] == {"text": "37"}
    assert cells[f"{row.pk}.edit"]["attrs"]["data-share"] == "37"


def test_a_share_is_changed_on_the_change_form_with_old_and_new_in_the_history(boss: Client) -> None:
    row = tenant_queue(share=2)
    boss.post(change_page(row), {**loaded(boss, row), "share": "5", "reason": "gold plan"})
    assert (fresh(row).share, row.max_job, row.version) == (5, 1, 1)
    page = boss.get(change_page(row)).content.decode()
    assert "<td>share</td><td>2</td><td>5</td><td>gold plan</td>" in page
    assert "worker time is divided by their shares" in page


def test_the_change_form_leaves_a_share_that_is_not_sent_or_empty_as_it_is(boss: Client) -> None:
    row = tenant_queue(share=3)
    form = loaded(boss, row)
    boss.post(change_page(row), {**form, "share": "", "max_job": "4"})
    boss.post(change_page(row), {"max_job": "5"})
    assert (fresh(row).share, row.max_job) == (3, 5)


@pytest.mark.parametrize("share", ["0", "1001", "x", "1.5"])
def test_a_wrong_share_is_an_error_in_each_form(boss: Client, share: str) -> None:
    row = tenant_queue()
    page = boss.post(change_page(row), {**loaded(boss, row), "share": share})
    assert page.context["adminform"].form.errors["share"]
    answer = boss.post(limit_page(row), {"max_job": 3, "share": share, "version": 0}, headers=JSON)
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["share"])
    page = run_action(boss, QUEUES, "set_share", row, confirm="yes", share=share)
    assert "errorlist" in page.content.decode()
    assert (fresh(row).share, row.max_job, row.version) == (1, 1, 0)


def test_a_row_is_added_with_its_share(boss: Client) -> None:
    url = f"{QUEUES}add/"
    form = Form(boss.get(url).content.decode()).values
    boss.post(url, {**form, "tenant": "acme", "queue": "imports", "share": "8"})
    assert TenantQueue.objects.get().share == 8


def test_the_dialog_sets_limit_and_share_together(boss: Client) -> None:
    row = tenant_queue()
    values = {"max_job": 2, "share": 6, "reason": "sale", "version": 0}
    answer = boss.post(limit_page(row), values, headers=JSON).json()
    assert (fresh(row).max_job, row.share, row.version) == (2, 6, 2)
    assert answer["cells"][f"{row.pk}.share"] == {"text": "6"}
    assert history() == ["Changed limit: 1 → 2 (sale).", "Changed share: 1 → 6 (sale)."]


def test_where_only_the_share_is_changed_the_limit_keeps_its_source_and_its_override(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    row.set_override(4, timezone.now() + timedelta(hours=1))
    before = (row.max_job, row.override_until, row.limit_before_override)
    page = Form(boss.get(limit_page(row)).content.decode()).values
    boss.post(limit_page(row), {**page, "share": "6"})
    dialog = {"max_job": 4, "until": "", "share": 7, "version": fresh(row).version}
    assert boss.post(limit_page(row), dialog, headers=JSON).status_code == 200
    assert (fresh(row).share, row.limit_source) == (7, LimitSource.DEFAULT)
    assert (row.max_job, row.override_until, row.limit_before_override) == before


def test_who_sends_no_share_leaves_it_and_who_saw_an_older_version_is_refused(boss: Client) -> None:
    row = tenant_queue(share=3)
    boss.post(limit_page(row), {"max_job": 2, "version": 0}, headers=JSON)
    assert fresh(row).share == 3
    answer = boss.post(limit_page(row), {"max_job": 2, "share": 9, "version": 0}, headers=JSON)
    assert (answer.status_code, fresh(row).share) == (409, 3)


def test_shares_are_set_in_bulk_and_a_row_that_changed_meanwhile_is_left(boss: Client) -> None:
    rows = [tenant_queue("acme"), tenant_queue("beta")]
    page = run_action(boss, QUEUES, "set_share", *rows).content.decode()
    assert "acme on imports: share 1" in page
    seen = Form(page).values["seen"]
    rows[1].set_limit(7)
    answer = run_action(boss, QUEUES, "set_share", *rows, confirm="yes", share="4", reason="gold", seen=seen)
    assert [fresh(row).share for row in rows] == [4, 1]
    assert messages_of(answer) == [
        "The share of 1 tenant queue was set.",
        "1 tenant queue was left unchanged: somebody else has changed it in the meantime.",
    ]
    assert history() == ["Changed share: 1 → 4 (gold)."]


def test_the_export_has_the_share(boss: Client) -> None:
    response: Any = run_action(boss, QUEUES, "export", tenant_queue(share=12))
    head, line = csv.reader(io.StringIO(b"".join(response.streaming_content).decode()))
    assert dict(zip(head, line, strict=True))["share"] == "12"


@pytest.mark.parametrize("seen", ["9" * 5000 + ":1", f"1:{'9' * 5000}", "x:y", ":"])
def test_versions_that_no_page_has_shown_are_passed_over(boss: Client, seen: str) -> None:
    row = tenant_queue()
    seen = f"{seen} {row.pk}:{row.version}"
    answer = run_action(boss, QUEUES, "set_share", row, confirm="yes", share="4", reason="gold", seen=seen)
    assert answer.status_code == 200
    assert fresh(row).share == 4
