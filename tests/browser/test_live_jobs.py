"""The list of jobs brings itself up to date, row by row, and works without a script."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import expect

from tenant_slots import slots
from tenant_slots.models import State, TenantJob
from tests.admin.site import JOBS
from tests.factories import another_process, release_then_admit, running_job, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


def place(page: Any, job: TenantJob, name: str) -> Any:
    return page.locator(f'[data-slots="{job.pk}.{name}"]')


def every_two_seconds(page: Any) -> Any:
    page.evaluate("window.notReloaded = true")
    page.select_option("#slots-every", "2")
    return page


def test_a_job_is_followed_in_the_list(boss: Client, open_page: Any) -> None:
    row = tenant_queue("acme")
    first = running_job(row, another_process("worker-1"))
    job = waiting_job(row)
    page = every_two_seconds(open_page(boss, JOBS))
    page.locator("input.action-select").first.check()
    expect(place(page, job, "state")).to_have_text("waiting")
    expect(place(page, job, "bar")).to_be_hidden()
    (admitted,) = release_then_admit(first, state=State.FINISHED)
    slots.start(admitted, another_process("worker-3"))
    TenantJob.objects.filter(pk=job.pk).update(progress={"done": 3, "total": 10}, stats={"rows_read": 3})
    expect(place(page, job, "state")).to_have_text("running")
    expect(place(page, job, "state")).to_have_attribute("data-state", "running")
    expect(place(page, first, "state")).to_have_text("finished")
    expect(place(page, job, "attempt")).to_have_text("1")
    expect(place(page, job, "bar")).to_have_attribute("value", "3")
    expect(place(page, job, "bar")).to_be_visible()
    expect(place(page, job, "line0")).to_have_text("rows read: 3")
    expect(page.locator("input.action-select").first).to_be_checked()
    TenantJob.objects.filter(pk=job.pk).update(progress={"done": 4, "total": None}, stats={})
    expect(place(page, job, "numbers")).to_have_text("4")
    assert place(page, job, "bar").get_attribute("value") is None
    expect(place(page, job, "line0")).to_be_hidden()
    assert page.evaluate("window.notReloaded")


def test_a_job_that_was_deleted_says_so_and_nothing_else_is_asked_for(boss: Client, open_page: Any) -> None:
    row = tenant_queue("acme", max_job=0)
    gone, stays = waiting_job(row), waiting_job(row)
    polls: list[str] = []
    page = open_page(boss, JOBS)
    page.on("request", lambda request: polls.append(request.url) if "/live/" in request.url else None)
    every_two_seconds(page)
    TenantJob.objects.filter(pk=gone.pk).delete()
    expect(place(page, gone, "state")).to_have_text("Deleted")
    expect(place(page, stays, "state")).to_have_text("waiting")
    assert all(str(stays.pk) in url for url in polls), "no tiles"


def test_the_list_needs_no_script(boss: Client, open_page: Any) -> None:
    job = waiting_job(tenant_queue("acme"), progress={"done": 1, "total": 2})
    page = open_page(boss, JOBS, java_script_enabled=False)
    expect(place(page, job, "state")).to_have_text("waiting")
    expect(place(page, job, "bar")).to_be_visible()
    page.locator("#result_list th a").first.click()
    expect(page.locator("#content")).to_contain_text("acme")
