"""SQLite keeps any text as a time: one that is none is read as nothing, and the doctor names its row."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection

from tenant_slots.models import State, TenantJob
from tenant_slots.repair import doctor
from tests.factories import fresh, tenant_queue, waiting_job
from tests.repair.sweeps import sweep_now

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL keeps times only"),
]


def write(job: TenantJob, value: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tenant_slots_tenantjob SET expires_at = %s WHERE id = %s", [value, job.pk])


@pytest.mark.parametrize(
    "value",
    ["2026-02-30 10:00:00", "2026-13-45 25:00:00", "0000-00-00 00:00:00", "2026-01-01 24:00:00", "soon", "", 5, 1e300],
)
def test_what_is_no_time_is_read_as_nothing_and_named(value: object) -> None:
    spoilt, well = (waiting_job(tenant_queue(name, max_job=0), state=State.FAILED) for name in ("spoilt", "well"))
    TenantJob.objects.update(ended_at="2999-01-01T00:00:00+00:00")
    write(spoilt, value)
    assert {job.expires_at for job in TenantJob.objects.all()} == {None}
    found = [one for one in doctor.findings("rows") if one.kind == "unreadable"]
    assert [one.job for one in found] == [str(spoilt.uuid)]
    assert "expires_at" in found[0].meaning
    assert sweep_now().failed == []
    assert fresh(well).state == State.FAILED


@pytest.mark.parametrize(
    "value",
    ["2024-02-29 10:00:00", "2024-02-29 10:00:00.123456", "2024-02-29T10:00:00", "2024-02-29 10:00"],
)
def test_control_what_is_a_time_is_read(value: str) -> None:
    job = waiting_job(tenant_queue())
    write(job, value)
    assert fresh(job).expires_at.replace(microsecond=0) == datetime(2024, 2, 29, 10, tzinfo=UTC)
