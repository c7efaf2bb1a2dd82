"""Staff who may see some tenants only add no row for another one, and learn of none, whatever their forms send."""

from __future__ import annotations

import re
from typing import Any

import django_rq
import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from django.urls import reverse
from rq import Queue

from tenant_slots.admin import TenantQueueAdmin, actions, chosen
from tenant_slots.admin.bulk.run import run_bulk_change
from tenant_slots.admin.snapshots import forget_shared
from tenant_slots.models import BulkChange, State, TenantQueue
from tenant_slots.tenants import ADMIN_TENANT
from tests import jobs
from tests.admin.site import LIVE, QUEUES, asked, change_page
from tests.factories import age, another_process, running_job, tenant_queue, waiting_job, worker_on_record

pytestmark = pytest.mark.django_db(transaction=True)

WORKERS = reverse("admin:tenant_slots_tenantqueue_workers")


class OfAcme(TenantQueueAdmin):
    def tenant_queues_for(self, request: Any) -> Any:
        return TenantQueue.objects.filter(tenant__in=["acme", "acme-2"])


def add(model_admin: TenantQueueAdmin, **data: Any) -> Any:
    request = RequestFactory().post("/", {"tenant": "acme", "queue": "imports", "max_job": "1", **data})
    request.user = User.objects.create(username="restricted", is_staff=True, is_superuser=True)
    request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]
    request._messages = type("Messages", (), {"add": lambda *args: None})()  # type: ignore[attr-defined]
    return model_admin.add_view(request)


def errors_of(response: Any) -> dict[str, Any]:
    return dict(response.context_data["adminform"].form.errors)


@pytest.mark.parametrize("exists", [False, True])
def test_a_row_of_a_foreign_tenant_is_refused_whether_it_exists_or_not(exists: bool) -> None:
    if exists:
        tenant_queue("beta")
    before = TenantQueue.objects.count()
    response = add(OfAcme(TenantQueue, admin.site), tenant="beta")
    assert errors_of(response) == {"tenant": ["You may add no tenant queue of this tenant."]}
    assert TenantQueue.objects.count() == before


@pytest.mark.parametrize("tenant", ["acme", "acme-2"])
def test_a_row_of_a_tenant_of_theirs_is_added(tenant: str) -> None:
    assert add(OfAcme(TenantQueue, admin.site), tenant=tenant).status_code == 302
    assert TenantQueue.objects.get().tenant == tenant


def test_a_row_of_theirs_that_exists_is_said_to_exist() -> None:
    tenant_queue("acme")
    assert "already exists" in str(errors_of(add(OfAcme(TenantQueue, admin.site))))


def test_who_is_restricted_to_nothing_adds_nothing() -> None:
    class OfNobody(TenantQueueAdmin):
        def tenant_queues_for(self, request: Any) -> Any:
            return TenantQueue.objects.none()

    assert "tenant" in errors_of(add(OfNobody(TenantQueue, admin.site)))


def test_staff_who_may_see_all_tenants_add_any() -> None:
    assert add(TenantQueueAdmin(TenantQueue, admin.site), tenant="beta").status_code == 302


@pytest.fixture
def sees_acme(monkeypatch: pytest.MonkeyPatch) -> None:
    own = TenantQueue.objects.filter(tenant="acme")
    monkeypatch.setattr(TenantQueueAdmin, "tenant_queues_for", lambda self, request: own)


@pytest.mark.usefixtures("sees_acme")
def test_the_tiles_name_no_queue_in_which_only_others_have_jobs(boss: Client) -> None:
    def deserted() -> str:
        forget_shared()
        return str(boss.get(LIVE).json()["cells"]["tile.deserted"]["text"])

    waiting_job(tenant_queue("beta", queue="reports"))
    Queue("default", connection=django_rq.get_connection("default")).enqueue(jobs.add, 1, 2, tenant="beta")
    assert deserted() == "\N{EN DASH}"
    waiting_job(tenant_queue("acme"))
    assert deserted() == "imports", "the control: of one's own jobs it is said"


@pytest.mark.usefixtures("sees_acme")
def test_nor_does_the_page_of_the_workers_say_that_others_have_jobs(boss: Client) -> None:
    def with_jobs() -> dict[str, tuple[bool, bool]]:
        lanes = boss.get(WORKERS).context["lanes"]
        return {lane.name: (lane.has_jobs, lane.is_deserted) for lane in lanes if lane.has_jobs or lane.is_deserted}

    waiting_job(tenant_queue("beta", queue="reports"))
    waiting_job(tenant_queue("beta"), rq_queue="default")
    assert with_jobs() == {}
    waiting_job(tenant_queue("acme"), rq_queue="default")
    assert with_jobs() == {"default": (True, True)}, "the control: of one's own jobs it is said"


@pytest.mark.usefixtures("sees_acme")
def test_nor_which_jobs_of_others_run(boss: Client) -> None:
    own, foreign = (running_job(tenant_queue(tenant), another_process()) for tenant in ("acme", "beta"))
    for job in (own, foreign):
        worker = worker_on_record(job.tenant_queue.tenant)
        worker.connection.hset(worker.key, "current_job", job.rq_id)
    shown = boss.get(WORKERS).content.decode()
    assert change_page(foreign) not in shown
    assert str(foreign.uuid) not in shown
    assert change_page(own) in shown, "the control"


@pytest.mark.usefixtures("sees_acme")
def test_nor_how_many_jobs_run_after_one_of_others_that_a_form_names(boss: Client) -> None:
    own, foreign = (waiting_job(tenant_queue(tenant)) for tenant in ("acme", "beta"))
    for job in (own, foreign):
        jobs.echo.using(after=[job]).enqueue("acme", 1)
    _, sent = asked(boss, QUEUES, "cancel_waiting", own.tenant_queue)

    def said(*pks: int) -> str:
        wrong = {**sent, "jobs": chosen.as_text(sorted(pks)), "typed": "7"}
        return str(boss.post(QUEUES, wrong).content.decode())

    assert "other job" not in said(foreign.pk)
    assert "1 other job runs after these" in said(own.pk), "the control: of one's own jobs it is said"
    assert "1 other job runs after these" in said(own.pk, foreign.pk)


@pytest.mark.usefixtures("sees_acme")
def test_nor_which_bulk_changes_of_others_hold_up_ones_own(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_queue(ADMIN_TENANT)
    other, mine = (run_bulk_change.using(queue="imports").enqueue(number) for number in range(2))
    change = BulkChange.objects.create(
        site="admin", model="tenant_slots.tenantqueue", action="pause", job=mine.uuid, total=1, values={},
        user_key=str(User.objects.get().pk), language="en",
    )  # fmt: skip

    def said() -> str:
        return str(boss.get(reverse("admin:tenant_slots_tenantqueue_bulk_change", args=[change.pk])).content.decode())

    assert str(other) not in said()
    monkeypatch.setattr(TenantQueueAdmin, "tenant_queues_for", lambda self, request: None)
    assert str(other) in said(), "the control: who may see all tenants is told"


@pytest.mark.usefixtures("sees_acme")
def test_a_set_with_a_foreign_row_in_it_is_no_way_to_count_its_jobs(boss: Client) -> None:
    own, foreign = tenant_queue("acme"), tenant_queue("beta")
    waiting_job(own, state=State.FINISHED)
    for _ in range(7):
        waiting_job(foreign, state=State.FINISHED)

    def page(chosen: str) -> str:
        sent = {"confirm": "yes", "chosen": chosen, "reason": "x" * 1000}
        answer = boss.post(QUEUES, {"action": "delete_selected", "_selected_action": [own.pk], **sent})
        return str(answer.content.decode())

    text = "of theirs"
    assert text not in page(str(foreign.pk))
    assert f"1 job {text} is deleted" in page(f"{own.pk} {foreign.pk - own.pk}"), "the control: one's own are counted"


@pytest.mark.usefixtures("sees_acme")
def test_nor_does_a_bulk_change_count_them(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 3)
    own, foreign = tenant_queue("acme"), tenant_queue("beta")
    failed = [waiting_job(foreign, state=State.FAILED) for _ in range(7)]

    def retry_all() -> None:
        jobs = chosen.as_text(job.pk for job in failed)
        sent = {"confirm": "yes", "chosen": chosen.as_text([own.pk, foreign.pk]), "jobs": jobs, "reason": ""}
        boss.post(QUEUES, {"action": "retry_failed", "_selected_action": [own.pk], **sent})

    retry_all()
    assert not BulkChange.objects.exists(), "seven jobs of somebody else are no reason for a background job"
    failed += [waiting_job(own, state=State.FAILED) for _ in range(4)]
    retry_all()
    assert BulkChange.objects.get().total == 4


def test_nor_is_worker_time_said_as_a_part_of_that_of_all(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    row, foreign = tenant_queue("acme"), tenant_queue("beta")
    for one, minutes in ((row, 10), (foreign, 30)):
        job = waiting_job(one, state=State.FINISHED, attempt=1)
        began = 60 * minutes + 20  # a clock that is set back a little takes no whole minute from it
        age(job, enqueued_at=began, started_at=began, ended_at=0)

    def said() -> set[str]:
        forget_shared()
        polled = boss.get(LIVE, {"rows": row.pk}).json()
        version = TenantQueue.objects.get(pk=row.pk).version
        limit = {"max_job": "2", "version": str(version)}
        changed = boss.post(f"{QUEUES}{row.pk}/limit/", limit, headers={"Accept": "application/json"}).json()
        shown = re.search(rf'data-slots="{row.pk}\.worker"[^>]*>([^<]*)<', boss.get(QUEUES).content.decode())
        assert shown
        return {shown[1], *(answer["cells"][f"{row.pk}.worker"]["text"] for answer in (polled, changed))}

    assert said() == {"10 min (25%)"}, "the control: who may see all tenants is told"
    own = TenantQueue.objects.filter(tenant="acme")
    monkeypatch.setattr(TenantQueueAdmin, "tenant_queues_for", lambda self, request: own)
    assert said() == {"10 min"}
