"""Enqueue, cancel, retry: what moves a job without holding a slot."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import django_rq
import pytest
from django.db import transaction
from django.utils import timezone

from tenant_slots import exceptions, slots
from tenant_slots.exceptions import NotRetryable, TenantQueueInUse
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import counters_match, fresh, in_rq, tenant_queue, waiting_job, work

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_runs_and_keeps_its_result() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    assert fresh(job).state == State.QUEUED
    work()
    assert fresh(job).state == State.FINISHED
    assert job.result == 3
    assert job.enqueued_at <= job.admitted_at <= job.started_at <= job.ended_at
    assert job.tenant_queue.current_job == 0


def test_delay_is_enqueue() -> None:
    assert jobs.add.delay(1, 2, tenant="acme").state == State.WAITING


def test_a_plain_call_runs_here_and_takes_no_slot() -> None:
    assert jobs.add(1, 2, tenant="acme") == 3
    assert not TenantQueue.objects.exists()


def test_only_admitted_jobs_are_in_rq() -> None:
    for _ in range(5):
        jobs.add.enqueue(1, 2, tenant="acme")
    assert in_rq("reports") == 1
    assert TenantJob.objects.waiting().count() == 4
    work()
    assert TenantJob.objects.filter(state=State.FINISHED).count() == 5


def test_the_rq_job_names_task_and_tenant_but_no_arguments() -> None:
    job = jobs.fail.enqueue("acme", "secret text")
    (rq_job,) = django_rq.get_queue("imports").jobs
    assert fresh(job).rq_id == rq_job.id
    assert rq_job.func_name == "tenant_slots.run_job"
    assert list(rq_job.args) == [str(job.uuid), 1]
    assert rq_job.description == "tests.jobs.fail for 'acme'"


def test_a_line_break_in_a_tenant_cannot_forge_a_log_line() -> None:
    jobs.fail.enqueue("acme\r\nERROR all is lost")
    (rq_job,) = django_rq.get_queue("imports").jobs
    assert "\n" not in rq_job.description
    assert "\r" not in rq_job.description


def test_a_job_that_raises_is_failed_with_its_traceback() -> None:
    job = jobs.fail.enqueue("acme", "no such feed")
    work()
    assert fresh(job).state == State.FAILED
    assert "ValueError: no such feed" in job.error
    assert job.tenant_queue.current_job == 0


def test_a_rollback_leaves_no_job() -> None:
    with transaction.atomic():
        jobs.add.enqueue(1, 2, tenant="acme")
        transaction.set_rollback(True)
    assert not TenantJob.objects.exists()
    assert in_rq("reports") == 0


def test_nothing_is_admitted_before_the_commit() -> None:
    with transaction.atomic():
        job = jobs.add.enqueue(1, 2, tenant="acme")
        assert fresh(job).state == State.WAITING
    assert fresh(job).state == State.QUEUED


def test_the_first_job_of_a_tenant_makes_its_row_with_limit_1() -> None:
    jobs.add.enqueue(1, 2, tenant=42)
    row = TenantQueue.objects.get()
    assert (row.tenant, row.queue, row.max_job, row.current_job) == ("42", "reports", 1, 1)


def test_jobs_without_a_tenant_run_unlimited(caplog: pytest.LogCaptureFixture) -> None:
    for tenant in (None, ""):
        jobs.add.enqueue(1, 2, tenant=tenant)
    assert in_rq("reports") == 2
    assert "without a tenant" in caplog.text


def test_enqueue_many_keeps_the_order_and_serves_every_tenant() -> None:
    calls = [((n, 0), {"tenant": f"t{n % 2}"}) for n in range(6)]
    stored = jobs.add.enqueue_many(calls)
    assert [job.args[0] for job in stored] == list(range(6))
    assert in_rq("reports") == 2
    work()
    assert list(TenantJob.objects.order_by("pk").values_list("result", flat=True)) == list(range(6))


def test_enqueue_many_of_nothing_is_nothing() -> None:
    assert jobs.add.enqueue_many([]) == []


def test_using_overrides_tenant_queue_priority_and_key() -> None:
    job = jobs.add.using(tenant="other", queue="imports_bulk", priority=7, key="user-7").enqueue(1, 2, tenant="acme")
    assert (job.tenant_queue.tenant, job.tenant_queue.queue) == ("other", "imports_bulk")
    assert (job.priority, job.key) == (7, "user-7")


def test_a_job_for_later_is_scheduled_and_takes_no_slot() -> None:
    job = jobs.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 2, tenant="acme")
    assert fresh(job).state == State.SCHEDULED
    assert job.tenant_queue.current_job == 0


def test_raising_a_limit_admits_waiting_jobs() -> None:
    for _ in range(5):
        jobs.add.enqueue(1, 2, tenant="acme")
    TenantQueue.objects.get().set_limit(3)
    assert in_rq("reports") == 3
    assert counters_match()


def test_pausing_lets_nothing_start_and_resuming_does() -> None:
    row = tenant_queue(queue="reports")
    row.pause()
    job = jobs.add.enqueue(1, 2, tenant="acme")
    assert fresh(job).state == State.WAITING
    row.resume()
    assert fresh(job).state == State.QUEUED


def test_canceling_a_waiting_job_takes_it_out_of_line() -> None:
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


def test_a_row_with_jobs_cannot_be_deleted() -> None:
    jobs.add.enqueue(1, 2, tenant="acme")
    jobs.add.enqueue(1, 2, tenant="acme")
    with pytest.raises(TenantQueueInUse, match=r"1 jobs hold its slots and 1 wait"):
        TenantQueue.objects.get().delete()
    with pytest.raises(TenantQueueInUse):
        TenantQueue.objects.all().delete()
    assert TenantJob.objects.count() == 2


def test_a_row_whose_jobs_have_ended_can_be_deleted_with_them() -> None:
    jobs.add.enqueue(1, 2, tenant="acme")
    work()
    TenantQueue.objects.get().delete()
    assert not TenantJob.objects.exists()


def test_many_jobs_at_once_are_stored_like_single_ones() -> None:
    """On PostgreSQL they go another way, which must leave the same rows."""
    job = jobs.add.using(priority=3, key="user-7").enqueue(0, 1, tenant="acme")
    stored = jobs.add.using(priority=3, key="user-7").enqueue_many([((n, 1), {"tenant": "acme"}) for n in range(150)])
    names = [field.attname for field in TenantJob._meta.concrete_fields]
    own = {"id", "uuid", "args", "enqueued_at", "state", "attempt", "admitted_at"}
    assert [j.args[0] for j in TenantJob.objects.order_by("pk")[1:]] == list(range(150))
    assert [j.pk for j in stored] == sorted(j.pk for j in stored)
    last = TenantJob.objects.get(pk=stored[-1].pk)
    fresh(job)
    assert {n: getattr(last, n) for n in names if n not in own} == {n: getattr(job, n) for n in names if n not in own}
    assert last.enqueued_at == stored[-1].enqueued_at >= job.enqueued_at
    stored[-1].refresh_from_db()


@pytest.mark.django_db(transaction=True)
def test_a_waiting_job_can_be_moved_in_line() -> None:
    row = tenant_queue(max_job=1)
    holding, first, second = (jobs.record.enqueue("acme", name, "") for name in ("holding", "first", "second"))
    assert second.set_priority(5)
    released = slots.release(fresh(holding), state=State.FINISHED)
    assert [job.pk for job in released.admitted] == [second.pk]
    assert (fresh(first).state, fresh(row).current_job) == (State.WAITING, 1)


@pytest.mark.django_db(transaction=True)
def test_a_job_that_holds_a_slot_cannot_be_moved_in_line() -> None:
    job = jobs.record.enqueue("acme", "name", "")
    assert not job.set_priority(5)
    assert (job.priority, job.state) == (0, State.QUEUED)


@pytest.mark.parametrize("priority", ["high", True, 1.5, 1_000_001])
def test_a_priority_that_is_none_is_refused(priority: Any) -> None:
    job = waiting_job(tenant_queue())
    with pytest.raises(exceptions.InvalidOption, match="priority"):
        job.set_priority(priority)
