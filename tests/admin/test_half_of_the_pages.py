"""An admin site that has only one of the two models: its pages lead to none of the other."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import include, path
from django.utils import timezone

from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.admin.site import QUEUES, change_page, signed_in
from tests.factories import another_process, running_job, tenant_queue, waiting_job, worker_on_record

pytestmark = pytest.mark.django_db(transaction=True)


class Site(admin.AdminSite):
    """With nothing but what is registered."""


def use(site: Site, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the site that has both."""
    urls: Any = ModuleType("urls_of_half_a_site")
    urls.urlpatterns = [
        path("half/", site.urls),
        path("django-rq/", include("django_rq.urls")),
        path("admin/", admin.site.urls),
    ]
    monkeypatch.setitem(sys.modules, urls.__name__, urls)
    settings.ROOT_URLCONF = urls.__name__


def rows() -> tuple[TenantQueue, TenantJob]:
    """With jobs in every state that pages lead to."""
    row = tenant_queue(max_job=2)
    running = running_job(row, another_process("somebody"))
    worker = worker_on_record("somebody")
    worker.connection.hset(worker.key, "current_job", running.rq_id)
    waiting_job(row)
    waiting_job(row, state=State.FAILED, error_class="x.Y", ended_at=timezone.now())
    return row, running


def shown(client: Client, *pages: str) -> dict[str, str]:
    """The texts of these pages, all of which are shown."""
    found = {page: client.get(f"/half/tenant_slots/{page}") for page in pages}
    assert {page: answer.status_code for page, answer in found.items()} == dict.fromkeys(pages, 200)
    return {page: answer.content.decode() for page, answer in found.items()}


@pytest.mark.parametrize("other", [None, admin.ModelAdmin])
def test_the_pages_of_tenant_queues_do_without_those_of_jobs(
    other: Any, boss: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(name="half")
    site.register(TenantQueue, TenantQueueAdmin)
    if other:
        site.register(TenantJob, other)
    use(site, settings, monkeypatch)
    row, running = rows()
    own = f"tenantqueue/{row.pk}"
    texts = shown(boss, "tenantqueue/", "tenantqueue/overview/", "tenantqueue/workers/", "tenantqueue/bulk/",
                  f"{own}/change/", f"{own}/history/", f"{own}/limit/", f"{own}/reset/")  # fmt: skip
    leads_to_job = {page for page, text in texts.items() if f"/tenantjob/{running.pk}/" in text}
    assert str(running) in texts[f"{own}/change/"]
    assert str(running) in texts["tenantqueue/workers/"]
    assert leads_to_job == (set() if other is None else {f"{own}/change/", "tenantqueue/workers/"})


@pytest.mark.parametrize("other", [None, admin.ModelAdmin])
def test_the_pages_of_jobs_do_without_those_of_tenant_queues(
    other: Any, boss: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(name="half")
    site.register(TenantJob, TenantJobAdmin)
    if other:
        site.register(TenantQueue, other)
    use(site, settings, monkeypatch)
    row, running = rows()
    own = f"tenantjob/{running.pk}"
    texts = shown(boss, "tenantjob/", "tenantjob/failures/", "tenantjob/tasks/", "tenantjob/bulk/",
                  f"{own}/change/", f"{own}/history/")  # fmt: skip
    leads_to_row = {page for page, text in texts.items() if f"/tenantqueue/{row.pk}/" in text}
    assert str(row) in texts[f"{own}/change/"]
    assert leads_to_row == (set() if other is None else {f"{own}/change/", "tenantjob/failures/"})


@pytest.mark.parametrize(
    ("verb", "are_led"), [("view", True), ("change", True), ("delete", False)], ids=["view", "change", "delete"]
)
def test_who_may_change_something_may_see_it_and_is_led_there(verb: str, are_led: bool) -> None:
    """As everywhere in Django's admin, which shows their own pages to such staff as well."""
    row, running = rows()
    own = f"{QUEUES}{row.pk}/change/"
    of_queues = signed_in("view_tenantqueue", f"{verb}_tenantjob")
    of_jobs = signed_in("view_tenantjob", f"{verb}_tenantqueue")
    leads_to_job = [change_page(running) in of_queues.get(url).content.decode() for url in (own, f"{QUEUES}workers/")]
    leads_to_row = change_page(row) in of_jobs.get(change_page(running)).content.decode()
    assert [*leads_to_job, leads_to_row] == [are_led] * 3
