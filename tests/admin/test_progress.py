"""The admin shows what jobs report, and takes it for text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tenant_slots.admin import progress
from tenant_slots.models import Kind, State, TenantJob
from tests.admin.site import HOSTILE, JOBS, change_page, confirmed, messages_of, running_job
from tests.factories import fresh, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db


def reporting_job(done: float, total: float | None, state: str = State.RUNNING, **stats: Any) -> TenantJob:
    return waiting_job(tenant_queue(), state=state, progress={"done": done, "total": total}, stats=stats)


def test_the_list_and_the_page_show_a_bar_with_its_numbers_and_the_statistics(boss: Client) -> None:
    job = reporting_job(40, 100, rows_read=40, rows_written=38, rows_refused=2)
    for url in (JOBS, change_page(job)):
        page = boss.get(url).content.decode()
        assert re.search(r'<progress[^>]* max="100" value="40" aria-label="progress"></progress>', page)
        assert re.search(r'<bdi[^>]* class="slots-number">40 of 100</bdi>', page)
        for text in ("rows read", "rows written", "rows refused"):
            assert text in page


@pytest.mark.parametrize(
    ("done", "total", "state", "shown"),
    [
        (40, None, State.RUNNING, '<progress aria-label="progress"></progress> <bdi class="slots-number">40</bdi>'),
        (40, None, State.FINISHED, "40"),
        (0, 0, State.RUNNING, "0"),
        (12, 10, State.RUNNING, 'max="10" value="10"'),
        (0.5, 1.5, State.FAILED, 'max="1.5" value="0.5"'),
    ],
)
def test_an_unknown_total_no_total_and_more_than_all_are_shown(
    done: float, total: float | None, state: str, shown: str
) -> None:
    assert shown in progress.bar(reporting_job(done, total, state))


def test_a_job_that_reports_nothing_has_a_dash() -> None:
    job = waiting_job(tenant_queue())
    assert {progress.bar(job), progress.statistics(job)} == {progress.NOTHING}
    assert progress.first_statistics(job) == []


def test_hostile_names_and_values_are_text(boss: Client) -> None:
    job = reporting_job(1, 2, **{HOSTILE: HOSTILE, "‮txet": '"><img src=x onerror=alert(1)>'})
    for url in (JOBS, change_page(job)):
        page = boss.get(url).content.decode()
        assert HOSTILE not in page
        assert "<img src=x" not in page
        assert not re.search(r"\sstyle=|<style", page)


def test_what_has_a_hidden_name_is_hidden(boss: Client) -> None:
    job = reporting_job(1, 2, api_key="s3cret")
    for url in (JOBS, change_page(job)):
        assert "s3cret" not in boss.get(url).content.decode()


def test_the_list_shows_the_first_few_statistics_of_a_job_and_short_texts(boss: Client) -> None:
    reporting_job(1, 2, **{f"name{number}": "x" * 200 for number in range(50)})
    page = boss.get(JOBS).content.decode()
    assert "name3" in page
    assert "name4" not in page
    assert "x" * 60 not in page


def test_progress_costs_the_list_no_query(boss: Client) -> None:
    for number in range(10):
        waiting_job(tenant_queue(f"tenant-{number}"), progress={"done": 1, "total": 2}, stats={"read": 1})
    with CaptureQueriesContext(connection) as queries:
        boss.get(JOBS)
    assert len([query for query in queries if "tenantjob" in query["sql"]]) <= 4


def test_the_texts_are_translated(boss: Client) -> None:
    page = boss.get(change_page(reporting_job(1234, 5000)), headers={"Accept-Language": "de"}).content.decode()
    assert 'max="5000" value="1234"' in page


def test_the_actions_on_a_reservation_do_what_can_be_done(boss: Client) -> None:
    """It cannot be killed from outside, nor be run again."""
    job = running_job(tenant_queue())
    TenantJob.objects.update(kind=Kind.RESERVATION)
    asked = "1 reservation was asked to end: its process cannot be stopped from here."
    assert asked in messages_of(confirmed(boss, JOBS, "stop", job, reason="too long"))
    assert asked in messages_of(confirmed(boss, JOBS, "cancel", job))
    assert (fresh(job).state, bool(job.cancel_requested_at)) == (State.RUNNING, True)
    TenantJob.objects.update(state=State.FAILED)
    assert "1 job was left unchanged" in str(messages_of(confirmed(boss, JOBS, "retry", job, reason="again")))
    assert fresh(job).state == State.FAILED
