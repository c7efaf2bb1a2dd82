"""`tenant_queues_for` may return any query of tenant queues: all pages show the rows that it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import Count, QuerySet
from django.test import Client
from django.urls import reverse

from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin
from tenant_slots.models import State, TenantQueue
from tests.admin.site import JOBS, LIVE, QUEUES, change_page, confirmed
from tests.factories import another_process, fresh, running_job, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)

Query = Callable[[], QuerySet[TenantQueue]]

QUERIES: dict[str, Query] = {
    "plain": lambda: TenantQueue.objects.filter(tenant="acme"),
    "distinct": lambda: TenantQueue.objects.filter(jobs__kind="job", tenant="acme").distinct(),
    "slice": lambda: TenantQueue.objects.filter(tenant="acme").order_by("-pk")[:5],
    "union": lambda: TenantQueue.objects.filter(tenant="acme").union(TenantQueue.objects.filter(tenant="nobody")),
    "joined": lambda: TenantQueue.objects.filter(tenant="acme", jobs__pk__gt=0),
    "only": lambda: TenantQueue.objects.filter(tenant="acme").only("tenant"),
    "annotated": lambda: TenantQueue.objects.filter(tenant="acme").annotate(n=Count("jobs")).filter(n__gt=0),
    "none": lambda: TenantQueue.objects.filter(tenant="acme").none(),
}


def pages(row: TenantQueue, job: Any) -> list[str]:
    of_queues = [reverse(f"admin:tenant_slots_tenantqueue_{page}") for page in ("workers", "bulk_changes", "add")]
    of_jobs = [reverse(f"admin:tenant_slots_tenantjob_{page}") for page in ("failures", "tasks", "bulk_changes")]
    return [
        QUEUES, f"{QUEUES}?state=idle", f"{QUEUES}?o=6", LIVE, f"{LIVE}?rows={row.pk}", *of_queues,
        JOBS, f"{JOBS}?state=waiting", reverse("admin:tenant_slots_tenantjob_live") + f"?rows={job.pk}", *of_jobs,
    ]  # fmt: skip


def test_the_filter_by_queue_names_no_queue_that_only_foreign_tenants_have(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = waiting_job(tenant_queue("acme"))
    waiting_job(tenant_queue("beta", queue="secret_lane"))
    monkeypatch.setattr(TenantJobAdmin, "tenant_queues_for", lambda self, request: QUERIES["plain"]())
    page = boss.get(JOBS).content.decode()
    assert "secret_lane" not in page
    assert "?tenant_queue__queue=imports" in page
    assert "?tenant_queue__queue=reports" in page
    for queue, found in (("imports", True), ("reports", False), ("secret_lane", False)):
        assert (str(job.uuid) in boss.get(f"{JOBS}?tenant_queue__queue={queue}").content.decode()) is found


@pytest.mark.parametrize("way", QUERIES)
def test_staff_see_and_change_the_rows_of_whatever_query_restricts_them(
    way: str, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, foreign = tenant_queue("acme", max_job=2), tenant_queue("some-strangers")
    running_job(row, another_process())
    job = waiting_job(row)
    waiting_job(row, state=State.FAILED, error_class="x.Y")
    waiting_job(foreign)
    for model_admin in (TenantQueueAdmin, TenantJobAdmin):
        monkeypatch.setattr(model_admin, "tenant_queues_for", lambda self, request: QUERIES[way]())

    shown = {url: boss.get(url) for url in pages(row, job)}

    assert {url: page.status_code for url, page in shown.items()} == dict.fromkeys(shown, 200)
    assert not any("some-strangers" in page.content.decode() for page in shown.values())
    sees = way != "none"
    assert (f"{row.pk}.usage" in shown[f"{LIVE}?rows={row.pk}"].json()["cells"]) is sees
    assert (boss.get(change_page(row)).status_code == 200) is sees
    assert (boss.get(change_page(job)).status_code == 200) is sees
    assert shown[LIVE].json()["cells"]["tile.waiting"]["text"] == ("1" if sees else "0")
    confirmed(boss, QUEUES, "set_limit", row, foreign, max_job="7")
    assert (fresh(row).max_job, fresh(foreign).max_job) == (7 if sees else 2, 1)
