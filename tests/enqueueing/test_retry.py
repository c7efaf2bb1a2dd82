"""Retrying a job that has ended."""

from __future__ import annotations

import pytest

from tenant_slots.exceptions import NotRetryable
from tenant_slots.models import State
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
