"""The admin of a tenant's schema, as the manual has it set up, knows no other tenant, not even for its superusers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import reload
from pathlib import Path

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import clear_url_caches, reverse
from django_tenants.utils import schema_context

from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin
from tenant_slots.models import TenantJob, TenantQueue
from tests.schemas import urls
from tests.schemas.customers.models import Customer, Domain
from tests.schemas.feeds import models
from tests.schemas.site.conftest import SCHEMAS

PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs/how-to/django-tenants.md"

LISTS = ("admin:tenant_slots_tenantjob_changelist", "admin:tenant_slots_tenantqueue_changelist")


@pytest.fixture
def as_in_the_manual() -> Iterator[None]:
    (block,) = re.findall(r"```python\n(# shop/admin\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    exec(block, {})  # noqa: S102 - it is ours
    make_addresses_anew()
    yield
    for model, ours in ((TenantJob, TenantJobAdmin), (TenantQueue, TenantQueueAdmin)):
        admin.site.unregister(model)
        admin.site.register(model, ours)
    make_addresses_anew()


def make_addresses_anew() -> None:
    """They lead to what was registered when they were made."""
    reload(urls)
    clear_url_caches()


@pytest.fixture(scope="module")
def _public(django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> Iterator[None]:
    """The public schema's own tenant, as django-tenants wants one for requests there."""
    with django_db_blocker.unblock():  # type: ignore[attr-defined]
        public = Customer.objects.create(schema_name="public", name="public")
        Domain.objects.create(tenant=public, domain="public.example.com")
        yield
        public.delete()


@pytest.fixture(autouse=True)
def _jobs(_public: None, _empty: None) -> None:
    for schema in SCHEMAS:
        models.note.enqueue(schema, "waits")


def seen_in(schema: str) -> set[str]:
    """The tenants that its superuser sees in the lists."""
    with schema_context(schema):  # the middleware leaves the schema of a request to the next one
        user, _ = User.objects.get_or_create(username="root", is_staff=True, is_superuser=True)
        client = Client(headers={"host": f"{schema}.example.com"})
        client.force_login(user)
        pages = [client.get(reverse(name)).content.decode() for name in LISTS]
    found = [{tenant for tenant in SCHEMAS if f">{tenant}<" in page} for page in pages]
    assert found[0] == found[1]
    return found[0]


def test_the_admin_of_a_schema_shows_its_own_tenant_and_that_of_public_all(as_in_the_manual: None) -> None:
    assert {schema: seen_in(schema) for schema in ("public", *SCHEMAS)} == {
        "public": {*SCHEMAS},
        "acme": {"acme"},
        "umbrella": {"umbrella"},
    }


def test_the_control_without_that_it_shows_all() -> None:
    assert seen_in("acme") == {*SCHEMAS}
