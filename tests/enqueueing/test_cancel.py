"""Canceling a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import django_rq
import pytest

from tenant_slots import dispatch, locks, slots
from tenant_slots.enqueueing import cancel, priority, retry
from tenant_slots.exceptions import NotRetryable
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import another_process, counters_match, fresh, running_job, tenant_queue, waiting_job, work

pytestmark = pytest.mark.django_db(transaction=True)


def test_canceling_a_waiting_job_takes_it_out_of_the_backlog() -> None:
    first, second, third = (jobs.add.enqueue(n, 0, tenant="acme") for n in range(3))
    assert second.cancel()
    assert second.state == State.CANCELED
    work()
    assert [fresh(job).state for job in (first, second, third)] == ["finished", "canceled", "finished"]


def test_canceling_a_queued_job_hands_its_slot_on() -> None:
    first, second = (jobs.add.enqueue(n, 0, tenant="acme") for n in range(2))
    assert first.cancel()
    assert fresh(second).state == State.QUEUED
    assert [job.args[0] for job in django_rq.get_queue("reports").jobs] == [str(second.uuid)]
    assert counters_match()


def test_canceling_an_ended_job_changes_nothing() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert not job.cancel()
    assert job.state == State.FINISHED


def test_a_running_job_that_is_canceled_twice_is_asked_to_stop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[object] = []
    monkeypatch.setattr(dispatch, "stop", lambda job: stopped.append(job.pk))
    job = running_job(tenant_queue(), another_process())
    assert job.cancel()
    assert job.cancel()
    assert stopped == [job.pk]


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("leave", [TenantJob.cancel, TenantJob.delete])
def test_the_place_that_a_queued_job_leaves_in_rqs_list_is_filled_at_once(leave: Callable[[TenantJob], object]) -> None:
    """There is one: the next job comes there after the other has left it, and not a sweep later."""
    tenant_queue(max_job=1)
    first, second = (jobs.record.enqueue("acme", name, "") for name in ("first", "second"))
    assert (fresh(first).state, fresh(second).state) == (State.QUEUED, State.WAITING)
    leave(fresh(first))
    assert fresh(second).state == State.QUEUED
    assert django_rq.get_queue("imports").job_ids == [fresh(second).rq_id]


def _delete_queue(row: TenantQueue) -> None:
    """By SQL: with the ORM a tenant queue in use is not deleted."""
    row.jobs.all()._raw_delete(row.jobs.db)
    TenantQueue.objects.filter(pk=row.pk)._raw_delete(row.jobs.db)


@pytest.mark.parametrize("state", [State.SCHEDULED, State.WAITING, State.QUEUED, State.RUNNING, State.FAILED])
@pytest.mark.parametrize("when", ["before", "between"])
def test_a_job_whose_tenant_queue_is_deleted_meanwhile_has_ended(
    state: State, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tenant_queue(max_job=2)
    job = running_job(row, another_process()) if state == State.RUNNING else waiting_job(row, state=state)
    if when == "before":
        _delete_queue(row)
    else:
        lock = locks.locked

        def delete_first(pk: int) -> Any:
            _delete_queue(row)
            return lock(pk)

        for module in (slots, cancel, priority, retry):
            monkeypatch.setattr(module, "locked", delete_first)
    assert job.cancel() is False
    assert job.set_priority(3) is False
    with pytest.raises(NotRetryable, match="deleted"):
        job.retry()
