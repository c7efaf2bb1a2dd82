"""Staff who may see some tenants only add no row for another one, and learn of none."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import RequestFactory

from tenant_slots.admin import TenantQueueAdmin
from tenant_slots.models import TenantQueue
from tests.admin.site import messages_of  # noqa: F401  the site's addresses are known once it is imported
from tests.factories import tenant_queue

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
