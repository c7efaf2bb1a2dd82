"""The live list of jobs: what a poll says, what it costs, and who may ask."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from tenant_slots.admin import TenantJobAdmin, snapshots, words
from tenant_slots.admin.snapshots import shared_jobs
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.admin.site import HOSTILE, JOBS, signed_in
from tests.factories import tenant_queue, waiting_job

pytestmark = pytest.mark.django_db

LIVE = reverse("admin:tenant_slots_tenantjob_live")


def poll(client: Client, *jobs: TenantJob) -> Any:
    return client.get(LIVE, {"rows": ",".join(str(job.pk) for job in jobs)})


def texts(client: Client, job: TenantJob) -> dict[str, str]:
    shared_jobs.clear()
    cells = poll(client, job).json()["cells"]
    return {place.partition(".")[2]: cell.get("text", "") for place, cell in cells.items()}


def test_a_poll_has_every_place_of_the_page_with_its_text(viewer: Client) -> None:
    now = timezone.now()
    values = {"progress": {"done": 1, "total": 4}, "stats": {"rows_read": 7}, "priority": 3, "attempt": 2}
    job = waiting_job(tenant_queue(), state=State.FINISHED, started_at=now, ended_at=now, **values)
    page = viewer.get(JOBS).content.decode()
    cells = poll(viewer, job).json()["cells"]
    assert set(re.findall(r'data-slots="([^"]+)"', page)) == set(cells)
    for place, cell in cells.items():
        text = escape(cell.get("text", ""))
        assert re.search(rf'data-slots="{re.escape(place)}"[^>]*>{re.escape(text)}<', page), place
    assert cells[f"{job.pk}.state"] == {"text": "finished", "attrs": {"data-state": "finished"}}
    assert cells[f"{job.pk}.bar"]["attrs"] == {"max": "4", "value": "1", "hidden": None, "aria-label": "progress"}


def test_a_poll_shows_what_has_changed_since(viewer: Client) -> None:
    job = waiting_job(tenant_queue())
    before = texts(viewer, job)
    assert (before["state"], before["attempt"], before["line0"]) == ("waiting", "0", "")
    assert before["numbers"] == before["started"] == words.NOTHING
    changed = {"progress": {"done": 2, "total": None}, "stats": {"rows": 5}, "started_at": timezone.now()}
    TenantJob.objects.update(state=State.RUNNING, attempt=1, priority=9, **changed)
    after = texts(viewer, job)
    assert (after["state"], after["attempt"], after["priority"]) == ("running", "1", "9")
    assert (after["numbers"], after["line0"]) == ("2", "rows: 5")
    assert before["started"] != after["started"]


def test_a_job_that_is_gone_has_no_places(viewer: Client) -> None:
    job, other = (waiting_job(tenant_queue(tenant)) for tenant in ("acme", "beta"))
    TenantJob.objects.filter(pk=job.pk).delete()
    assert {place.partition(".")[0] for place in poll(viewer, job, other).json()["cells"]} == {str(other.pk)}


def test_twenty_viewers_cost_one_query_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(snapshots, "time", clock)
    jobs = [waiting_job(tenant_queue(str(number))) for number in range(5)]
    viewers = [signed_in("view_tenantjob") for _ in range(20)]

    def queries_of_all() -> int:
        with CaptureQueriesContext(connection) as captured:
            for client in viewers:
                assert poll(client, *jobs).status_code == 200
        return sum('"tenant_slots_' in query["sql"] for query in captured)

    assert (queries_of_all(), queries_of_all()) == (1, 0)
    clock.monotonic = lambda: 1001.0
    assert queries_of_all() == 1


def test_an_answer_that_the_viewer_has_is_not_sent_again(viewer: Client) -> None:
    job = waiting_job(tenant_queue())
    known = {"If-None-Match": poll(viewer, job)["ETag"]}
    assert viewer.get(LIVE, {"rows": job.pk}, headers=known).status_code == 304
    TenantJob.objects.update(attempt=1)
    shared_jobs.clear()
    assert viewer.get(LIVE, {"rows": job.pk}, headers=known).status_code == 200


def test_nobody_without_the_permission_may_poll(viewer: Client) -> None:
    job = waiting_job(tenant_queue())
    assert poll(signed_in("view_tenantqueue"), job).status_code == 403
    assert poll(Client(), job).status_code == 302
    assert viewer.post(LIVE).status_code == 405
    assert poll(viewer, job).status_code == 200, "the control"


def test_a_restricted_viewer_polls_jobs_of_their_tenants_only(boss: Client) -> None:
    class OnlyAcme(TenantJobAdmin):
        def tenant_queues_for(self, request: Any) -> Any:
            return TenantQueue.objects.filter(tenant="acme")

    mine, theirs = waiting_job(tenant_queue("acme")), waiting_job(tenant_queue("beta"))
    request: Any = RequestFactory().get(LIVE, {"rows": f"{mine.pk},{theirs.pk}"})
    request.user = boss.get(JOBS).context["user"]
    cells = json.loads(OnlyAcme(TenantJob, admin.site).live_view(request).content)["cells"]
    assert {place.partition(".")[0] for place in cells} == {str(mine.pk)}


def test_twenty_who_see_the_same_tenants_only_cost_two_queries_a_second_and_others_see_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(snapshots, "time", clock)
    jobs = {tenant: waiting_job(tenant_queue(tenant)) for tenant in ("acme", "beta")}
    own = "acme"
    theirs = TenantQueue.objects
    monkeypatch.setattr(TenantJobAdmin, "tenant_queues_for", lambda self, request: theirs.filter(tenant=own))
    viewers = [signed_in("view_tenantjob") for _ in range(20)]

    def queries_of_all() -> int:
        with CaptureQueriesContext(connection) as captured:
            for client in viewers:
                cells = poll(client, *jobs.values()).json()["cells"]
                assert {place.partition(".")[0] for place in cells} == {str(jobs[own].pk)}
        return sum('"tenant_slots_' in query["sql"] for query in captured)

    assert (queries_of_all(), queries_of_all()) == (2, 0)
    clock.monotonic = lambda: 1001.0
    assert queries_of_all() == 2
    own = "beta"
    assert queries_of_all() == 2, "at the same moment"
    own = "acme"
    assert queries_of_all() == 0


def test_what_has_a_hidden_name_stays_hidden_and_a_hostile_one_is_text(viewer: Client) -> None:
    job = waiting_job(tenant_queue(), stats={"api_key": "s3cret", HOSTILE: 1})
    assert "s3cret" not in poll(viewer, job).content.decode()
    assert HOSTILE not in viewer.get(JOBS).content.decode()


def test_the_places_of_a_page_cost_no_query(viewer: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            viewer.get(JOBS)
        return len(captured)

    waiting_job(tenant_queue("acme"))
    before = queries()
    for number in range(20):
        waiting_job(tenant_queue(str(number)), progress={"done": 1, "total": 2}, stats={"read": 1})
    assert queries() == before <= 12
