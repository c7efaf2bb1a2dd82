"""PostgreSQL binds the parameters of statements itself: an option of Django's, with types that the driver chooses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from tenant_slots.models import SweepClaim, TenantJob
from tests import jobs
from tests.factories import work
from tests.repair.sweeps import sweep_now

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about the driver of PostgreSQL"),
]


@pytest.fixture(autouse=True)
def _server_side_binding(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[None]:
    options = {**connection.settings_dict.get("OPTIONS", {}), "server_side_binding": True}
    connection.close()
    with monkeypatch.context() as patched:
        patched.setitem(connection.settings_dict, "OPTIONS", options)
        yield
        connection.close()


def test_sweeps_are_counted() -> None:
    for _ in range(3):
        sweep_now()
    assert set(SweepClaim.objects.values_list("sweeps", flat=True)) == {3}


def test_jobs_run() -> None:
    jobs.fail.enqueue("acme"), jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert set(TenantJob.objects.values_list("state", flat=True)) == {"failed", "finished"}
