"""The overview and the page of a job bring themselves up to date, and leave alone what is being used."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client
from playwright.sync_api import expect

from tenant_slots import slots
from tenant_slots.admin import snapshots
from tenant_slots.db import clock
from tenant_slots.db.clock import minute_of, start_of
from tenant_slots.models import QueueMinute, State, TenantJob
from tenant_slots.models.queue_minute import ALL_QUEUES
from tests.admin.site import JOBS, QUEUES, change_page
from tests.factories import (
    another_process,
    fresh,
    release_then_admit,
    running_job,
    somebody_sweeps,
    tenant_queue,
    waiting_job,
)

pytestmark = pytest.mark.django_db(transaction=True)

OVERVIEW = f"{QUEUES}overview/"

LONG = 15_000
"""Milliseconds: the overview is fetched again every five seconds."""


@pytest.fixture(autouse=True)
def _never_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wants to wait for five seconds in a test."""
    monkeypatch.setattr(snapshots.shared_facts, "seconds", 0)
    monkeypatch.setattr(snapshots.shared_periods, "seconds", 0)


def every(page: Any, seconds: int) -> Any:
    page.evaluate("window.notReloaded = true")
    page.select_option("#slots-every", str(seconds))
    return page


def test_the_overview_tells_what_has_come_up_and_that_it_is_over(boss: Client, open_page: Any) -> None:
    somebody_sweeps()
    page = every(open_page(boss, OVERVIEW), 5)
    expect(page.locator(".slots-calm")).to_be_visible()
    page.locator("details summary").first.click()
    row = tenant_queue("acme", paused=True)
    waiting_job(row)
    expect(page.locator(".slots-attention")).to_contain_text("1 tenant queue with waiting jobs is paused", timeout=LONG)
    expect(page.locator("details").first).to_have_attribute("open", "")
    row.resume(by="anna")
    expect(page.locator("[data-slots-part=changes]")).to_contain_text("anna", timeout=LONG)
    assert page.evaluate("window.notReloaded")


def test_a_form_that_is_being_used_stays(boss: Client, open_page: Any) -> None:
    page = every(open_page(boss, OVERVIEW), 5)
    page.select_option("#slots-queue", "reports")
    tenant_queue("acme").set_limit(7, by="anna")
    expect(page.locator("[data-slots-part=changes]")).to_contain_text("anna", timeout=LONG)
    expect(page.locator("#slots-queue")).to_have_value("reports")


def test_what_somebody_looks_at_more_closely_is_brought_up_to_date_and_stays_as_it_is(
    boss: Client, open_page: Any
) -> None:
    """The table of a chart, which was opened, scrolled to its middle, and in which the focus is."""
    QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(minute_of(clock.now()) - 5), running=3, workers=8)
    page = every(open_page(boss, OVERVIEW), 5)
    figures = page.locator("[data-slots-part=figures]")
    summary = figures.locator("summary").first
    summary.click()
    table = figures.locator(".slots-scroll").first
    page.evaluate("document.styleSheets[0].insertRule('.slots-scroll { max-height: 60px; overflow: auto; }')")
    table.evaluate("one => { one.scrollTop = 40; }")
    expect(figures.locator(".slots-tile dd").first).not_to_contain_text("7 / 9")
    QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(minute_of(clock.now()) - 1), running=7, workers=9)
    expect(figures.locator(".slots-tile dd").first).to_contain_text("7 / 9", timeout=LONG)
    expect(summary).to_be_focused()
    expect(figures.locator("details").first).to_have_attribute("open", "")
    assert table.evaluate("one => one.scrollTop") == 40


def test_who_has_come_to_a_button_that_is_gone_stays_where_they_are(boss: Client, open_page: Any) -> None:
    row = tenant_queue("acme", max_job=0)
    job = waiting_job(row)
    page = every(open_page(boss, change_page(job)), 2)
    page.locator("button[value=cancel]").focus()
    TenantJob.objects.filter(pk=job.pk).update(state=State.FAILED, ended_at=clock.now(), attempt=1)
    expect(page.locator("button[value=retry]")).to_be_visible()
    expect(page.locator("button[value=retry]")).not_to_be_focused()
    expect(page.locator("[data-slots-part=job]")).to_be_focused()


def test_a_job_that_is_gone_says_so(boss: Client, open_page: Any) -> None:
    job = waiting_job(tenant_queue("acme", max_job=0))
    page = open_page(boss, change_page(job))
    TenantJob.objects.filter(pk=job.pk).delete()
    every(page, 2)
    expect(page.locator("#slots-outdated")).to_contain_text("or the job was deleted", timeout=LONG)


def test_a_job_is_followed_until_it_has_ended(boss: Client, open_page: Any) -> None:
    row = tenant_queue("acme")
    first = running_job(row, another_process("worker-1"))
    job = waiting_job(row)
    page = every(open_page(boss, change_page(job)), 2)
    pill = page.locator("[data-slots-part=job] .slots-pill")
    expect(pill).to_have_text("waiting")
    expect(page.locator(".slots-why")).to_contain_text("at its limit")
    (admitted,) = release_then_admit(first, state=State.FINISHED)
    expect(pill).to_have_text("queued")
    slots.start(admitted, another_process("worker-3"))
    expect(pill).to_have_text("running")
    expect(page.locator(".slots-actions")).to_contain_text("Stop this job")
    slots.release(fresh(job), state=State.FAILED, error="ValueError: no")
    expect(pill).to_have_text("failed")
    expect(page.locator(".slots-actions")).to_contain_text("Retry this job")
    expect(page.locator("#slots-updated")).to_have_text("not updating")
    assert page.evaluate("window.notReloaded")


def test_a_button_of_the_job_leads_to_the_page_that_asks(boss: Client, open_page: Any) -> None:
    job = waiting_job(tenant_queue("acme", max_job=0))
    page = open_page(boss, change_page(job), java_script_enabled=False)
    page.locator("button[value=cancel]").click()
    expect(page.locator("#content")).to_contain_text(str(job.uuid))
    page.fill("input[name=reason]", "a mistake")
    page.locator(".submit-row input[type=submit]").click()
    assert fresh(job).state == State.CANCELED
    assert page.url.endswith(JOBS)


def test_a_viewer_who_is_signed_out_is_told(boss: Client, open_page: Any) -> None:
    page = open_page(boss, OVERVIEW)
    Session.objects.all().delete()
    every(page, 5)
    expect(page.locator("#slots-outdated")).to_contain_text("you are signed out", timeout=LONG)


def test_the_overview_needs_no_script(boss: Client, open_page: Any) -> None:
    page = open_page(boss, f"{OVERVIEW}?span=7d", java_script_enabled=False)
    expect(page.locator("#slots-every")).to_be_hidden()
    page.select_option("#slots-queue", "reports")
    page.locator(".slots-choice input[type=submit]").click()
    expect(page.locator("#slots-figures-title")).to_have_text("reports")
    expect(page.locator(".slots-ranges [aria-current]")).to_have_text("7 days")


def test_another_page_in_its_place_is_told_and_what_is_shown_stays(boss: Client, open_page: Any) -> None:
    """As of a single sign-on that answers for the address, or of a site that is being maintained."""
    page = every(open_page(boss, OVERVIEW), 5)
    page.route(f"**{OVERVIEW}", lambda route: route.fulfill(body="<h1>Sign in</h1>", content_type="text/html"))
    expect(page.locator("#slots-outdated")).to_contain_text("you are signed out", timeout=LONG)
    expect(page.locator("[data-slots-part=changes]")).to_be_visible()
