"""What becomes of a job whose process died."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from tenant_slots.db.sessions import private_connection
from tenant_slots.models import QueueTotal, State, TenantJob
from tenant_slots.repair import lost_runs
from tenant_slots.repair.sweeper import Sweeper
from tests.factories import dead_process, fresh, running_job, tenant_queue
from tests.processes import test_database_url as database_url

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("end", [lost_runs.end_lost_run, lost_runs.end_interrupted_run])
def test_a_run_that_was_stopped_on_purpose_is_no_crash_of_its_job(end: Callable[..., bool]) -> None:
    job = running_job(tenant_queue(), dead_process())
    assert end(job, "stopped", state=State.CANCELED)
    assert (fresh(job).state, job.crashes, job.interruptions) == (State.CANCELED, 0, 0)


@pytest.mark.parametrize("end", [lost_runs.end_lost_run, lost_runs.end_interrupted_run])
def test_nor_is_one_whose_cancel_was_requested(end: Callable[..., bool]) -> None:
    job = running_job(tenant_queue(), dead_process())
    TenantJob.objects.filter(pk=job.pk).update(cancel_requested_at=timezone.now())
    job.refresh_from_db()
    assert end(job, "killed")
    assert (fresh(job).state, job.crashes, job.interruptions) == (State.CANCELED, 0, 0)


def test_control_one_that_died_by_itself_is() -> None:
    job = running_job(tenant_queue(), dead_process())
    assert lost_runs.end_lost_run(job, "died")
    assert fresh(job).crashes == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
@pytest.mark.parametrize("is_held", [True, False])
def test_somebody_who_holds_the_row_in_which_lost_runs_are_counted_keeps_no_tenants_slots(
    is_held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is one row for all tenants, and the sweep was given up after a single one of them."""
    for number in range(4):
        running_job(tenant_queue(f"tenant {number}"), dead_process())
    QueueTotal.objects.create(queue="imports")
    with psycopg.connect(database_url()) as session:
        if is_held:
            session.execute("SELECT 1 FROM tenant_slots_queuetotal WHERE queue = 'imports' FOR UPDATE")
        with override_settings(TENANT_SLOTS={"LEASE_TTL": 20}), private_connection(10):
            Sweeper("test").sweep_if_due()
        assert not TenantJob.objects.running().exists()
    assert sum(QueueTotal.objects.values_list("interruptions", flat=True)) == (0 if is_held else 4)
    assert ("a lost run on imports is not counted" in caplog.text) == is_held
