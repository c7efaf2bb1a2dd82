"""Retrying a job that has ended."""

from __future__ import annotations

import pytest

from tenant_slots import transitions
from tenant_slots.exceptions import NotRetryable
from tenant_slots.models import State, TenantJob
from tests import jobs
from tests.factories import counters_match, fresh, work

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_failed_job_can_be_retried() -> None:
    job = jobs.fail.enqueue("acme")
    work()
    job.refresh_from_db()
    job.retry()
    assert (job.state, job.attempt) == (State.QUEUED, 2)
    work()
    assert fresh(job).state == State.FAILED
    assert counters_match()


def test_a_finished_job_cannot_be_retried() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    with pytest.raises(NotRetryable, match="finished"):
        job.retry()


def test_a_job_that_is_deleted_as_soon_as_it_waits_again_was_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs.fail.enqueue("acme")
    work()
    states = []

    def deleted(*_: object) -> None:
        states.append(TenantJob.objects.get().state)
        TenantJob.objects.all().delete()

    monkeypatch.setattr(transitions, "offer", deleted)
    fresh(job).retry()
    assert states == [State.WAITING]
    assert not TenantJob.objects.exists()
