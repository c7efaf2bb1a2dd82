"""Retrying a job that has ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tenant_slots import slots, stats, transitions
from tenant_slots.enqueueing.retry import retry_all
from tenant_slots.exceptions import NotRetryable
from tenant_slots.locks import locked
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.stats import levels, percentiles
from tenant_slots.stats.pace import pace_of
from tests import jobs
from tests.factories import counters_match, fresh, owner, tenant_queue, waiting_job, work

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


def retry_with_others(job: TenantJob) -> None:
    with locked(job.tenant_queue_id) as row:
        retry_all(row, [job])


def ended_days_ago(row: TenantQueue, state: State, **values: Any) -> TenantJob:
    at = timezone.now() - timedelta(days=3)
    return waiting_job(row, state=state, enqueued_at=at, ended_at=at, **values)


@pytest.mark.parametrize("retry", [TenantJob.retry, retry_with_others], ids=["one", "many"])
def test_who_is_retried_has_waited_since_then_and_not_since_it_was_enqueued(retry: Callable[..., object]) -> None:
    row = tenant_queue(max_job=0)
    job = ended_days_ago(row, State.FAILED, attempt=1)
    retry(job)
    assert fresh(job).state == State.WAITING
    (usage,) = stats.usage()
    assert usage.oldest_wait is not None
    assert usage.oldest_wait < 60
    row.created_at -= timedelta(days=3)
    assert list(levels.most_by_period(row, 5, 60).waiting) == [0, 0, 0, 0, 0, 1]


def test_a_job_that_was_canceled_before_its_start_is_not_late_by_the_time_before_its_retry() -> None:
    row = tenant_queue()
    job = ended_days_ago(row, State.CANCELED)
    job.retry()
    assert slots.start(fresh(job), owner())
    assert percentiles.start_delays([row.pk])[row.pk] < 60


def test_the_pace_is_not_that_of_the_time_before_a_retry() -> None:
    row = tenant_queue(max_job=0)
    now = timezone.now()
    for seconds in range(10):
        times = {"enqueued_at": now - timedelta(seconds=seconds + 1), "ended_at": now - timedelta(seconds=seconds)}
        waiting_job(row, state=State.FINISHED, attempt=1, started_at=times["enqueued_at"], **times)
    ended_days_ago(row, State.FAILED, attempt=1).retry()
    pace = pace_of(row)
    assert pace is not None
    assert pace.seconds < 60
