"""Staff who may see some tenants only add no row for another one, and learn of none, whatever their forms send."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client, RequestFactory

from tenant_slots.admin import TenantQueueAdmin, actions, chosen
from tenant_slots.models import BulkChange, State, TenantQueue
from tests.admin.site import QUEUES
from tests.factories import tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


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
