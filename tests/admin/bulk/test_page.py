"""The page of a bulk change, and the list of all of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tenant_slots import signals
from tenant_slots.admin.bulk import pages
from tenant_slots.models import BulkChange, Ending, State, TenantJob, TenantQueue
from tests.admin.bulk_changes import (
    came_of,
    carried_out,
    many_jobs,
    many_queues,
    page_of,
    report_of,
    started,
    text_of,
)
from tests.admin.site import JOBS, QUEUES, signed_in
from tests.factories import fresh, tenant_queue

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_can_be_stopped_and_says_how_many_were_changed(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = many_queues(10)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")

    said = []

    def stop(**_: Any) -> None:
        boss.post(page_of(change), {"stop": "Stop"})
        said.append(report_of(boss, change)[0])

    signals.limit_changed.connect(stop)
    try:
        carried_out(change)
    finally:
        signals.limit_changed.disconnect(stop)
    assert set(said) == {"It stops after what it is doing now."}
    changed = sum(fresh(row).max_job == 5 for row in rows)
    assert 0 < changed < 10
    one = "The limit of 1 tenant queue was set."  # on a slow machine
    assert report_of(boss, change) == [
        "It was stopped. What was done before stays done.",
        f"{changed} of 10",
        one if changed == 1 else f"The limits of {changed} tenant queues were set.",
        f"{10 - changed} were not looked at.",
    ]


def test_one_that_is_stopped_before_it_began_changes_nothing(boss: Client) -> None:
    rows = many_queues(5)
    change = started(boss, QUEUES, "pause", rows)
    boss.post(page_of(change), {"stop": "Stop"})
    assert report_of(boss, change)[0] == "It was stopped while it waited for a worker: nothing more is done."
    carried_out(change)
    assert not TenantQueue.objects.filter(paused=True).exists()


def test_the_page_works_without_a_script_and_has_none_inline(boss: Client) -> None:
    change = started(boss, QUEUES, "set_limit", many_queues(5), max_job="5", reason="<b>sale</b>")
    page = boss.get(page_of(change)).content.decode()
    assert "0 of 5" in page
    assert re.search(r"Limit</th><td><bdi>5<", page)
    assert "&lt;b&gt;sale&lt;/b&gt;" in page
    assert 'name="stop"' in page
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    assert not re.search(r"<script(?![^>]*(src=|application/json))", page)
    assert "admin_live.js" in page


def test_only_who_may_do_what_it_does_is_offered_to_stop_it_or_to_go_on(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    offered = {}
    for permission in ("pause_tenantqueue", "set_limit_tenantqueue"):
        client = signed_in("view_tenantqueue", "view_bulkchange", permission)
        page = client.get(page_of(change)).content.decode()
        offered[permission] = {name for name in ("stop", "go_on") if f'name="{name}"' in page}
        answer = client.post(page_of(change), {"stop": "Stop"})
        assert answer.status_code == (302 if offered[permission] else 403)
    assert offered == {"pause_tenantqueue": {"stop", "go_on"}, "set_limit_tenantqueue": set()}


def test_every_place_of_a_poll_is_on_the_page(boss: Client) -> None:
    change = started(boss, JOBS, "cancel", many_jobs(tenant_queue(max_job=0), 5))
    page = boss.get(page_of(change)).content.decode()
    for place in boss.get(page_of(change, "bulk_live")).json()["cells"]:
        assert f'data-slots="{place}"' in page, place


def test_a_poll_that_has_nothing_new_is_answered_with_304(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    poll = page_of(change, "bulk_live")
    etag = boss.get(poll)["ETag"]
    assert boss.get(poll, headers={"If-None-Match": etag}).status_code == 304
    assert boss.post(poll).status_code == 405


@pytest.mark.usefixtures("no_workers")
def test_the_page_says_why_it_does_not_run(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    assert "No worker of queue imports is alive." in text_of(boss.get(page_of(change)))


def test_one_whose_job_has_ended_says_so_and_can_be_gone_on_with(boss: Client) -> None:
    rows = many_queues(10)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")
    TenantJob.objects.get(uuid=change.job).cancel()
    assert report_of(boss, change)[0].startswith("Nobody goes on with it.")

    boss.post(page_of(change), {"go_on": "Go on"})
    boss.post(page_of(change), {"go_on": "Go on"})

    carried_out(fresh(change))
    assert came_of(change) == {"done": 10}
    assert TenantJob.objects.filter(task__contains="run_bulk_change").count() == 2


def test_one_that_nobody_goes_on_with_can_be_ended(boss: Client) -> None:
    """Else it would be called unfinished for ever, and never be forgotten."""
    change = started(boss, QUEUES, "set_limit", many_queues(5), max_job="5")
    TenantJob.objects.get(uuid=change.job).cancel()
    boss.post(page_of(change), {"stop": "Stop"})
    assert report_of(boss, change) == [
        "It was stopped. What was done before stays done.", "0 of 5", "5 were not looked at."
    ]  # fmt: skip
    assert not change.chunks.exists()
    boss.post(page_of(change), {"go_on": "Go on"})
    assert fresh(change).ending == Ending.STOPPED


def test_who_has_stopped_it_is_recorded_once(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    boss.post(page_of(change), {"stop": "Stop"})
    boss.post(page_of(change), {"stop": "Stop"})
    entry = LogEntry.objects.get()
    assert entry.get_change_message() == f"Changed bulk change stopped: pause {change.pk}."
    assert entry.user.is_superuser


def test_who_goes_on_with_it_is_recorded_once(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    TenantJob.objects.get(uuid=change.job).cancel()
    boss.post(page_of(change), {"go_on": "Go on"})
    boss.post(page_of(change), {"go_on": "Go on"})
    entry = LogEntry.objects.get()
    assert entry.get_change_message() == f"Changed bulk change gone on with: pause {change.pk}."
    assert entry.user.is_superuser


@pytest.mark.parametrize("colleague", ["go_on", "stop"])
def test_who_comes_second_to_one_that_nobody_goes_on_with_enqueues_no_job(
    colleague: str, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    TenantJob.objects.get(uuid=change.job).cancel()
    other = signed_in(superuser=True)
    queue_for, calls = pages.queue_for, []

    def meanwhile(queues: list[str]) -> str:
        calls.append(queues)
        if len(calls) == 1:
            other.post(page_of(change), {colleague: "yes"})
        return queue_for(queues)

    monkeypatch.setattr(pages, "queue_for", meanwhile)
    boss.post(page_of(change), {"go_on": "Go on"})

    jobs_of_it = TenantJob.objects.filter(task__contains="run_bulk_change").exclude(uuid=change.job)
    assert jobs_of_it.count() == (1 if colleague == "go_on" else 0)
    assert LogEntry.objects.count() == 1


def test_why_the_job_has_failed_is_for_those_who_may_see_errors(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    TenantJob.objects.filter(uuid=change.job).update(state=State.FAILED, error="Traceback\nOSError: s3cret")
    plain = signed_in("view_tenantqueue", "view_bulkchange")
    assert "OSError: s3cret" in text_of(boss.get(page_of(change)))
    assert "s3cret" not in text_of(plain.get(page_of(change)))
    assert "Nobody goes on with it." in text_of(plain.get(page_of(change)))


def test_the_page_that_lists_them_costs_the_same_however_many_have_ended(boss: Client) -> None:
    rows = many_queues(5)

    def queries(number: int) -> int:
        while BulkChange.objects.count() < number:
            carried_out(started(boss, QUEUES, "pause", rows))
        with CaptureQueriesContext(connection) as captured:
            page = text_of(boss.get(f"{QUEUES}bulk/"))
        assert page.count("It is done.") == number
        return len(captured)

    assert queries(1) == queries(3)


def test_the_pages_cost_few_queries(boss: Client) -> None:
    change = started(boss, QUEUES, "set_limit", many_queues(10), max_job="5")
    boss.get(page_of(change))
    with CaptureQueriesContext(connection) as captured:
        boss.get(page_of(change, "bulk_live"))
    assert len(captured) <= 20
