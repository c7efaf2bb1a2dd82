"""What becomes of a job that is enqueued."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import django_rq
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots.exceptions import ArgumentNotJSON
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import fresh, in_rq, pretend_idle, redis_forgets, work

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_runs_and_keeps_its_result() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    assert fresh(job).state == State.QUEUED
    work()
    assert fresh(job).state == State.FINISHED
    assert job.result == 3
    assert job.enqueued_at <= job.admitted_at <= job.started_at <= job.ended_at
    assert job.tenant_queue.current_job == 0


WRITES = re.compile(r"(SELECT set_config\([^;]+; )?(INSERT|UPDATE|DELETE) ")
"""A statement that is a transaction by itself, with the time-out for its locks in the same round trip."""


def commits(action: Callable[[], object]) -> int:
    """How many transactions of the database something writes in."""
    number, is_open = 0, False
    with CaptureQueriesContext(connection) as queries:
        action()
    for query in queries.captured_queries:
        if query["sql"].startswith("BEGIN"):
            is_open = True
        elif query["sql"].startswith("COMMIT"):
            number, is_open = number + 1, False
        elif not is_open and WRITES.match(query["sql"]):
            number += 1
    return number


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(("idle", "expected"), [(0, 1), (1, 2), (50, 2)])
def test_a_call_is_one_commit_and_one_more_where_a_worker_is_idle(idle: int, expected: int) -> None:
    """Whoever enqueues admits the job for that worker."""
    jobs.add.enqueue(1, 2, tenant="acme").cancel()
    redis_forgets()
    if idle:
        pretend_idle(idle)
    assert commits(partial(jobs.add.enqueue, 1, 2, tenant="acme")) == expected
    assert TenantJob.objects.queued().exists() is bool(idle)


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


def test_using_overrides_tenant_queue_priority_and_key() -> None:
    job = jobs.add.using(tenant="other", queue="imports_bulk", priority=7, key="user-7").enqueue(1, 2, tenant="acme")
    assert (job.tenant_queue.tenant, job.tenant_queue.queue) == ("other", "imports_bulk")
    assert (job.priority, job.key) == (7, "user-7")


def test_a_job_for_later_is_scheduled_and_takes_no_slot() -> None:
    job = jobs.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 2, tenant="acme")
    assert fresh(job).state == State.SCHEDULED
    assert job.tenant_queue.current_job == 0


def test_many_calls_may_come_from_a_generator_that_uses_its_containers_again() -> None:
    def calls() -> Iterator[tuple[list[str], dict[str, Any]]]:
        args, kwargs = ["acme"], dict[str, Any]()
        for name in ("one", "two", "three"):
            kwargs |= {"name": name, "history": "/dev/null"}
            yield args, kwargs

    enqueued = jobs.record.enqueue_many(calls())
    assert [job.kwargs["name"] for job in enqueued] == ["one", "two", "three"]


def test_many_calls_may_be_made_by_the_function_for_type_checkers() -> None:
    enqueued = jobs.add.using(priority=3).enqueue_many(jobs.add.call(1, b=n, tenant="acme") for n in range(2))
    assert [(job.args, job.kwargs, job.priority) for job in enqueued] == [
        ([1], {"b": n, "tenant": "acme"}, 3) for n in range(2)
    ]
    with pytest.raises(TypeError, match="missing a required argument"):
        jobs.add.enqueue_many([jobs.add.call(1)])  # type: ignore[call-arg]


def test_many_calls_are_read_no_further_than_to_the_first_bad_one() -> None:
    read: list[int] = []

    def calls() -> Iterator[tuple[list[object], dict[str, Any]]]:
        for number in range(1000):
            read.append(number)
            yield ["acme", object(), "/dev/null"], {}

    with pytest.raises(ArgumentNotJSON):
        jobs.record.enqueue_many(calls())
    assert read == [0]
