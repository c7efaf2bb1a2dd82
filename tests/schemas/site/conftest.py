from __future__ import annotations

from collections.abc import Iterator

import django_rq
import pytest
from django.core.management import call_command
from django_tenants.utils import schema_context

from tests.schemas.customers.models import Customer, Domain
from tests.schemas.feeds.models import Entry

SCHEMAS = ("acme", "umbrella")


@pytest.fixture(scope="session")
def django_db_setup(django_db_blocker: pytest.FixtureRequest) -> None:
    """The database is this run's own: no test database beside it, which workers would have to be told of."""
    with django_db_blocker.unblock():  # type: ignore[attr-defined]
        call_command("migrate_schemas", verbosity=0)
        for name in SCHEMAS:
            customer = Customer(schema_name=name, name=name)
            customer.save(verbosity=0)
            Domain.objects.create(tenant=customer, domain=f"{name}.example.com")


@pytest.fixture(autouse=True)
def _empty(django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> Iterator[None]:
    from tenant_slots.models import BulkChange, TenantJob, TenantQueue

    with django_db_blocker.unblock():  # type: ignore[attr-defined]
        django_rq.get_connection("imports").flushdb()
        BulkChange.objects.all().delete()
        TenantJob.objects.all().delete()
        TenantQueue.objects.all().delete()
        for name in ("public", *SCHEMAS):
            with schema_context(name):
                Entry.objects.all().delete()
        yield
