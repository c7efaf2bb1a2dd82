"""The admin of a tenant's schema, as the manual has it set up, knows no other tenant, not even for its superusers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import reload
from pathlib import Path

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import clear_url_caches, reverse
from django_tenants.utils import schema_context

from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin
from tenant_slots.admin.bulk.commission import Commission
from tenant_slots.models import BulkChange, Ending, State, TenantJob, TenantQueue
from tests.schemas import urls
from tests.schemas.customers.models import Customer, Domain
from tests.schemas.feeds import models
from tests.schemas.site.check_jobs import work
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


@contextmanager
def superuser_of(schema: str) -> Iterator[Client]:
    """The first user of each schema, so that all have one primary key."""
    with schema_context(schema):  # the middleware leaves the schema of a request to the next one
        user, _ = User.objects.get_or_create(pk=1, username="root", is_staff=True, is_superuser=True)
        client = Client(headers={"host": f"{schema}.example.com"})
        client.force_login(user)
        yield client


def seen_in(schema: str) -> set[str]:
    """The tenants that its superuser sees in the lists."""
    with superuser_of(schema) as client:
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


def cancel_at_length(client: Client, schema: str) -> str:
    """More jobs than one request cancels; returns the page of the bulk change."""
    models.note.enqueue_many([((schema, str(number)), {}) for number in range(201)])
    pks = TenantJob.objects.filter(tenant_queue__tenant=schema).values_list("pk", flat=True)
    asked = {"action": "cancel", "_selected_action": [*pks], "select_across": "1"}
    page = client.post(reverse(LISTS[0]), asked).content.decode()
    shown = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page))
    return client.post(reverse(LISTS[0]), {**shown, **asked}).headers["Location"]


def test_a_bulk_change_is_that_of_its_schema_and_not_of_the_user_with_the_same_key_in_another(
    as_in_the_manual: None,
) -> None:
    with superuser_of("acme") as client:
        page = cancel_at_length(client, "acme")
        assert client.get(page).status_code == 200
    change = BulkChange.objects.get()
    for schema, status in (("umbrella", 404), ("public", 200)):
        with superuser_of(schema) as client:
            assert (client.get(page).status_code, Commission.of(change)) == (status, None)
    with schema_context("acme"):
        assert Commission.of(change) is not None
    work()
    change.refresh_from_db()
    assert change.ending == Ending.DONE
    assert TenantJob.objects.get(tenant_queue__tenant="umbrella").state == State.FINISHED


def test_a_bulk_change_that_nobody_goes_on_with_is_left_for_its_own_schema(as_in_the_manual: None) -> None:
    """In another one it would end, and say that whoever has confirmed it may not do so any more."""
    with superuser_of("acme") as client:
        page = cancel_at_length(client, "acme")
    TenantJob.objects.get(uuid=BulkChange.objects.get().job).cancel()
    with superuser_of("public") as client:
        assert 'name="go_on"' not in client.get(page).content.decode()
        assert client.post(page, {"go_on": "1"}).status_code == 403
    with superuser_of("acme") as client:
        assert 'name="go_on"' in client.get(page).content.decode()
        assert client.post(page, {"go_on": "1"}).status_code == 302
    work()
    assert BulkChange.objects.get().ending == Ending.DONE
