"""Tenant queues are deleted with a reason, and with the jobs that were counted; those with work, or with more, stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from tenant_slots.admin import actions, queue_deletion
from tenant_slots.admin.bulk.run import run_bulk_change
from tenant_slots.db.transactions import waiting_at_most
from tenant_slots.locks import locked
from tenant_slots.models import BulkChange, JobDependency, State, TenantJob, TenantQueue
from tests import jobs
from tests.admin.bulk_changes import (
    came_of,
    carried_out,
    many_jobs,
    many_queues,
    report_of,
    run_impatiently,
    started,
    text_of,
)
from tests.admin.site import QUEUES, Form, asked, change_page, confirmed, messages_of, run_action, signed_in
from tests.factories import in_thread, tenant_queue, waiting_job
from tests.races.test_callers_transactions import kept_open

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def in_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 0)


def ended_jobs(row: TenantQueue, number: int) -> list[TenantJob]:
    return many_jobs(row, number, state=State.FINISHED, ended_at=timezone.now())


def deleted(client: Client, row: TenantQueue, **data: str) -> Any:
    """By the page of this one."""
    page = change_page(row, "delete")
    return client.post(page, {**Form(text_of(client.get(page))).values, **data}, follow=True)


def entries() -> list[tuple[str, bool, str]]:
    return [(one.object_repr, one.is_deletion(), one.get_change_message()) for one in LogEntry.objects.order_by("pk")]


def said_of(row: str, reason: str) -> str:
    return f"Deleted tenant queue \u201c{row} ({reason})\u201d."


def test_the_page_of_one_takes_a_reason(boss: Client) -> None:
    row, other = tenant_queue("acme"), tenant_queue("beta")
    ended_jobs(row, 2)

    response = deleted(boss, row, reason="they left")

    assert messages_of(response) == ["1 tenant queue was deleted."]
    assert response.redirect_chain == [(QUEUES, 302)]
    assert list(TenantQueue.objects.all()) == [other]
    assert not TenantJob.objects.exists()
    assert entries() == [("acme on imports", True, said_of("acme on imports", "they left"))]


@pytest.mark.parametrize("reason", ["[4711]", "[]", "{0} {name}", ""])
def test_the_entry_of_a_deletion_can_be_read_whatever_its_reason(boss: Client, reason: str) -> None:
    deleted(boss, tenant_queue("acme"), reason=reason)
    ((_, _, text),) = entries()
    assert text == (
        said_of("acme on imports", reason) if reason else "Deleted tenant queue \u201cacme on imports\u201d."
    )


def test_the_entry_of_a_deletion_is_in_the_language_of_its_reader(boss: Client) -> None:
    page = change_page(tenant_queue("acme"), "delete")
    sent = {**Form(text_of(boss.get(page))).values, "reason": "they left"}
    boss.post(page, sent, headers={"Accept-Language": "de"})
    with translation.override("en"):
        assert entries()[0][2] == said_of("acme on imports", "they left")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_a_row_that_an_open_transaction_has_enqueued_for_is_left_alone(boss: Client) -> None:
    row = tenant_queue("acme", queue="reports")
    with kept_open(lambda: jobs.add.enqueue(1, 2, tenant="acme")), waiting_at_most(0.2):
        response = deleted(boss, row, reason="they left")
    (message,) = messages_of(response)
    assert "Another transaction keeps the tenant queue locked" in message
    assert (TenantJob.objects.get().tenant_queue, entries()) == (row, [])


def test_the_page_of_one_deletes_nothing_that_it_has_not_asked_about(boss: Client) -> None:
    row = tenant_queue()
    page = boss.post(change_page(row, "delete"), {"post": "yes"})
    assert "This affects 1 object." in text_of(page)
    assert TenantQueue.objects.filter(pk=row.pk).exists()


def test_the_page_of_one_is_for_those_who_may_delete_it(boss: Client) -> None:
    row = tenant_queue()
    page = change_page(row, "delete")
    assert signed_in("view_tenantqueue").get(page).status_code == 403
    TenantQueue.objects.all().delete()
    assert "doesn\u2019t exist" in messages_of(boss.get(page, follow=True))[0]


@pytest.mark.parametrize("state", [State.SCHEDULED, State.WAITING, State.QUEUED, State.RUNNING])
def test_a_row_with_work_is_left(boss: Client, state: State) -> None:
    row = tenant_queue()
    waiting_job(row, state=state)

    response = deleted(boss, row)

    assert messages_of(response) == ["1 tenant queue was left alone: jobs hold its slots or wait."]
    assert TenantQueue.objects.filter(pk=row.pk).exists()
    assert TenantJob.objects.count() == 1
    assert not LogEntry.objects.exists()


def test_the_page_counts_the_jobs_that_go_and_the_rows_that_stay(boss: Client) -> None:
    idle, busy = tenant_queue("idle"), tenant_queue("busy")
    jobs = ended_jobs(idle, 3)
    ended_jobs(busy, 2), waiting_job(busy)
    page = text_of(run_action(boss, QUEUES, "delete_selected", idle, busy))
    assert "3 jobs of theirs are deleted with them." in page
    assert "1 of them will be left alone: jobs hold its slots or wait." in page
    assert str(jobs[0].uuid) not in page


def test_of_several_rows_those_with_work_are_left(boss: Client) -> None:
    idle, busy = tenant_queue("idle"), tenant_queue("busy")
    waiting_job(busy)

    response = confirmed(boss, QUEUES, "delete_selected", idle, busy, reason="they left")

    assert messages_of(response) == [
        "1 tenant queue was deleted.",
        "1 tenant queue was left alone: jobs hold its slots or wait.",
    ]
    assert list(TenantQueue.objects.all()) == [busy]
    assert entries() == [("idle on imports", True, said_of("idle on imports", "they left"))]


def test_a_row_with_many_jobs_is_left_to_the_background(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 5)
    row = tenant_queue()
    ended_jobs(row, 6)

    change = started(boss, QUEUES, "delete_selected", [row], reason="they left")
    assert TenantJob.objects.filter(tenant_queue=row).count() == 6

    carried_out(change)
    assert report_of(boss, change) == [
        "It is done.", "1 of 1", "1 tenant queue was deleted.", "6 jobs were deleted with their tenant queues.",
    ]  # fmt: skip
    assert not TenantJob.objects.filter(tenant_queue=row).exists()


Change = Callable[[TenantQueue], object]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda row: ended_jobs(row, 1),
            "1 tenant queue was left alone: jobs have come to it since the page was shown.",
        ),
        (
            lambda row: row.set_limit(7),
            "1 tenant queue was left unchanged: somebody else has changed it in the meantime.",
        ),
        (lambda row: waiting_job(row), "1 tenant queue was left alone: jobs hold its slots or wait."),
        (lambda row: row.delete(), "1 object is gone."),
    ],
)
@pytest.mark.parametrize("most", [200, 0])
def test_what_has_changed_since_the_page_was_shown_is_left(
    boss: Client, monkeypatch: pytest.MonkeyPatch, change: Change, said: str, most: int
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    rows = many_queues(3)
    for row in rows:
        ended_jobs(row, 2)
    _, sent = asked(boss, QUEUES, "delete_selected", *rows)
    if most:
        change(rows[1])
    response = boss.post(QUEUES, {**sent, "reason": "they left"}, follow=True)
    if most:
        lines = messages_of(response)
    else:
        change(rows[1])
        _, *lines = report_of(boss, carried_out(BulkChange.objects.get()))[1:]
    assert "2 tenant queues were deleted." in lines
    assert said in lines
    assert not TenantQueue.objects.filter(pk__in=[rows[0].pk, rows[2].pk]).exists()
    assert [entry[2] for entry in entries()] == [said_of(str(rows[at]), "they left") for at in (0, 2)]


@pytest.mark.usefixtures("in_background")
def test_many_are_deleted_with_their_jobs_and_all_are_counted(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_deletion, "JOBS_TOGETHER", 3)
    rows = many_queues(5)
    for number, row in enumerate(rows):
        first = ended_jobs(row, number)[:1]
        JobDependency.objects.bulk_create([JobDependency(job=job, after=job) for job in first])
    other = ended_jobs(tenant_queue("other"), 1)[0]
    change = carried_out(started(boss, QUEUES, "delete_selected", rows, reason="they left"))
    assert came_of(change) == {"done": 5, "jobs": 10}
    assert entries() == [(str(row), True, said_of(str(row), "they left")) for row in rows]
    assert not TenantQueue.objects.filter(pk__in=[row.pk for row in rows]).exists()
    assert not JobDependency.objects.exists()
    assert TenantJob.objects.filter(pk=other.pk).exists()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
@pytest.mark.usefixtures("in_background")
def test_one_that_somebody_holds_keeps_no_other(boss: Client) -> None:
    rows = many_queues(3)
    change = started(boss, QUEUES, "delete_selected", rows)
    with locked(rows[1].pk):
        in_thread(lambda: run_impatiently(change))
    assert list(TenantQueue.objects.filter(pk__in=[row.pk for row in rows])) == [rows[1]]
    assert came_of(change) == {"done": 2, "failed": 1}


@pytest.mark.usefixtures("in_background")
def test_the_queries_do_not_grow_with_the_rows(boss: Client) -> None:
    def queries(number: int) -> int:
        change = started(boss, QUEUES, "delete_selected", many_queues(number))
        with CaptureQueriesContext(connection) as captured:
            run_bulk_change(change.pk)
        assert came_of(change) == {"done": number}
        return len(captured)

    queries(2)
    assert queries(2) == queries(40)
