"""What becomes of a job whose process died."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.utils import timezone

from tenant_slots.models import State, TenantJob
from tenant_slots.repair import lost_runs
from tests.factories import dead_process, fresh, running_job, tenant_queue

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
