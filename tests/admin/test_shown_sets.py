"""An action changes no job that its page has not counted, and its pages cost the same for many rows as for few."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots.admin import actions, chosen
from tenant_slots.admin.bulk.chunks import Part
from tenant_slots.models import BulkChange, State, TenantJob, shapes
from tests.admin.bulk_changes import carried_out, many_jobs, many_queues, started, text_of
from tests.admin.site import QUEUES, asked, run_action
from tests.factories import fresh, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("most", [200, 0])
def test_jobs_that_come_to_wait_after_the_page_was_shown_are_left(boss: Client, monkeypatch: Any, most: int) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    row = tenant_queue(max_job=0)
    scheduled = waiting_job(row, state=State.SCHEDULED, run_after=timezone.now() + timedelta(hours=1))
    jobs = many_jobs(row, 3)
    page, sent = asked(boss, QUEUES, "cancel_waiting", row)
    assert "3 jobs wait." in text_of(page)
    TenantJob.objects.filter(pk=scheduled.pk).update(state=State.WAITING, run_after=timezone.now())
    boss.post(QUEUES, {**sent, "typed": "3"}, follow=True)
    if not most:
        carried_out(BulkChange.objects.get())
    assert {fresh(job).state for job in jobs} == {State.CANCELED}
    assert fresh(scheduled).state == State.WAITING


@pytest.mark.parametrize("most", [200, 0])
def test_jobs_that_fail_after_the_page_was_shown_are_left(boss: Client, monkeypatch: Any, most: int) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    row = tenant_queue(max_job=0)
    failed = waiting_job(row, state=State.FAILED, attempt=1, ended_at=timezone.now())
    later = waiting_job(row)
    page, sent = asked(boss, QUEUES, "retry_failed", row)
    assert "1 failed job will run again." in text_of(page)
    TenantJob.objects.filter(pk=later.pk).update(state=State.FAILED, attempt=1, ended_at=timezone.now())
    boss.post(QUEUES, sent, follow=True)
    if not most:
        carried_out(BulkChange.objects.get())
    assert [fresh(job).state for job in (failed, later)] == [State.WAITING, State.FAILED]


@pytest.mark.parametrize("most", [200, 0])
@pytest.mark.parametrize(
    ("action", "sent", "before", "after"),
    [
        ("cancel_waiting", {"typed": "2"}, State.WAITING, State.CANCELED),
        ("retry_failed", {}, State.FAILED, State.WAITING),
    ],
)
def test_an_older_job_that_comes_back_after_the_page_was_shown_is_left(
    boss: Client, monkeypatch: Any, action: str, sent: dict[str, str], before: State, after: State, most: int
) -> None:
    """It has been ready for as long as those that were shown, and nothing in its row tells when it came back."""
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    row = tenant_queue(max_job=0)
    an_hour_ago = timezone.now() - timedelta(hours=1)
    first = waiting_job(row, state=before, ended_at=an_hour_ago)
    back = waiting_job(row, state=State.CANCELED, attempt=1, ended_at=an_hour_ago)
    last = waiting_job(row, state=before, ended_at=an_hour_ago)
    _, shown = asked(boss, QUEUES, action, row)
    TenantJob.objects.filter(pk=back.pk).update(state=before)
    boss.post(QUEUES, {**shown, **sent}, follow=True)
    if not most:
        carried_out(BulkChange.objects.get())
    assert [fresh(job).state for job in (first, back, last)] == [after, before, after]


def test_the_page_counts_what_it_changes_also_when_it_is_shown_again(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    many_jobs(row, 2)
    _, sent = asked(boss, QUEUES, "cancel_waiting", row)
    many_jobs(row, 1)
    again = text_of(boss.post(QUEUES, {**sent, "typed": "3"}))
    assert "2 jobs wait." in again
    assert "There are 2 jobs, not 3." in again


def test_of_more_jobs_than_one_action_may_change_the_others_stay(boss: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(chosen, "MOST", 3)
    row = tenant_queue(max_job=0)
    many_jobs(row, 5)
    page, sent = asked(boss, QUEUES, "cancel_waiting", row)
    assert "No more than 3 jobs can be changed at once. If there are others, do the same again." in text_of(page)
    boss.post(QUEUES, {**sent, "typed": "3"})
    assert TenantJob.objects.filter(state=State.CANCELED).count() == 3
    page, sent = asked(boss, QUEUES, "cancel_waiting", row)
    assert "2 jobs wait." in text_of(page)
    assert "at once" not in text_of(page)


def test_what_is_left_can_be_as_many_jobs_as_one_action_may_change() -> None:
    part = Part((1,), jobs=chosen.as_text(range(1, chosen.MOST + 1)))
    assert shapes.are_parts([part.as_json()])
    assert len(part.next_jobs(chosen.MOST)) == chosen.MOST


@pytest.mark.parametrize("jobs", ["x", "0", "5x99999999", f"{'9' * 19}x2"])
def test_jobs_that_no_page_has_shown_are_refused(boss: Client, jobs: str) -> None:
    row = tenant_queue(max_job=0)
    job = many_jobs(row, 1)[0]
    _, sent = asked(boss, QUEUES, "cancel_waiting", row)
    page = boss.post(QUEUES, {**sent, "jobs": jobs, "typed": "1"})
    assert page.status_code == 200
    assert "These are no jobs that the page has shown." in text_of(page)
    assert fresh(job).state == State.WAITING


def test_a_page_says_what_is_wrong_with_a_field_that_it_does_not_show(boss: Client) -> None:
    row = tenant_queue()
    page = boss.post(f"{QUEUES}{row.pk}/limit/", {"max_job": "3"})
    assert (page.status_code, fresh(row).max_job) == (200, 1)
    assert re.search(r"Version.*This field is required", text_of(page), re.DOTALL)


@pytest.mark.parametrize("action", ["retry_failed", "cancel_waiting", "set_limit", "delete_selected"])
def test_the_page_in_between_takes_as_many_queries_for_many_rows_as_for_few(boss: Client, action: str) -> None:
    rows = many_queues(30)

    def queries(some: Any) -> int:
        with CaptureQueriesContext(connection) as captured:
            run_action(boss, QUEUES, action, *some)
        return len(captured)

    queries(rows)
    assert queries(rows[:2]) == queries(rows) <= 12


def test_the_page_that_lists_them_costs_the_same_however_many_go_on(boss: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 3)
    rows = many_queues(5)

    def queries(number: int) -> int:
        while BulkChange.objects.count() < number:
            started(boss, QUEUES, "pause", rows)
        with CaptureQueriesContext(connection) as captured:
            page = text_of(boss.get(f"{QUEUES}bulk/"))
        assert page.count("It waits for a worker.") == page.count("0 of 5") == number
        return len(captured)

    queries(1)
    assert queries(1) == queries(5) <= 12


def test_a_set_past_the_last_primary_key_is_no_error_of_the_server(boss: Client) -> None:
    row = tenant_queue()
    sent = {"action": "pause", "_selected_action": [row.pk], "confirm": "yes", "chosen": f"{'9' * 19}x2"}
    assert boss.post(QUEUES, sent).status_code == 200
    assert not fresh(row).paused


@pytest.mark.parametrize(("action", "sent"), [("cancel_waiting", {"typed": "1"}), ("retry_failed", {})])
def test_many_rows_with_few_jobs_are_left_to_the_background_too(
    boss: Client, monkeypatch: pytest.MonkeyPatch, action: str, sent: dict[str, str]
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 5)
    rows = many_queues(8, max_job=0)
    job = waiting_job(rows[3], state=State.WAITING if sent else State.FAILED)
    change = started(boss, QUEUES, action, rows, **sent)
    assert change.total == 1
    carried_out(change)
    assert fresh(job).state == (State.CANCELED if sent else State.WAITING)
