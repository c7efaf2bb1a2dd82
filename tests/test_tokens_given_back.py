"""A job that was admitted, and whose function is never called, has not started: its token goes back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import django_rq
import pytest
from django.db import connection

from tenant_slots import rates, transitions
from tenant_slots.db import clock
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tests import jobs
from tests.factories import (
    counters_match,
    fresh,
    redis_forgets,
    somebody_sweeps,
    tenant_queue,
    waiting_job,
    work,
)

pytestmark = pytest.mark.django_db(transaction=True)

BURST = 10


def ours(worker_class: type) -> Callable[[], object]:
    def run() -> None:
        queue = django_rq.get_queue("imports")
        worker_class([queue], connection=queue.connection).work(burst=True, logging_level="CRITICAL")

    return run


CLASSES = [ours(TenantSimpleWorker), ours(TenantWorker), ours(TenantPreforkWorker)]
NAMES = ["simple", "fork", "prefork"]

OURS = pytest.mark.parametrize("run_all", CLASSES, ids=NAMES)
WAYS = pytest.mark.parametrize("run_all", [work, *CLASSES], ids=["stock", *NAMES])


@pytest.fixture
def row() -> TenantQueue:
    return tenant_queue(max_job=1, rate_number=1, rate_per=timedelta(days=1), rate_burst=BURST)


def taken(row: TenantQueue) -> int:
    bucket = rates.bucket(fresh(row), clock.now())
    assert bucket is not None
    return BURST - bucket.tokens


def run(run_all: Callable[[], object], job: TenantJob) -> str:
    """Run it, and a job behind it that starts. No sweep comes before the worker."""
    behind = waiting_job(job.tenant_queue)
    somebody_sweeps()
    if run_all is not work:
        redis_forgets()  # so that the worker takes the tenant's turn
    transitions.offer(job.tenant_queue_id, "imports")
    run_all()
    assert fresh(behind).state == State.FINISHED, "the control: this one takes a token"
    assert fresh(job).attempt == 1, "the control: it was admitted"
    assert counters_match()
    state: str = job.state
    return state


@WAYS
def test_a_job_whose_function_the_worker_does_not_know_takes_none(
    row: TenantQueue, run_all: Callable[[], object]
) -> None:
    job = waiting_job(row)
    TenantJob.objects.filter(pk=job.pk).update(task="tests.jobs.of_the_next_release")
    assert run(run_all, job) == State.SCHEDULED
    assert taken(row) == 1


@WAYS
def test_nor_does_one_whose_time_is_over_before_it_begins(row: TenantQueue, run_all: Callable[[], object]) -> None:
    job = waiting_job(row, expires_at=clock.now())
    assert run(run_all, job) == State.CANCELED
    assert taken(row) == 1


@OURS
def test_nor_one_whose_row_cannot_be_read(row: TenantQueue, run_all: Callable[[], object]) -> None:
    job = waiting_job(row)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tenant_slots_tenantjob SET options = '3' WHERE id = %s", [job.pk])
    assert run(run_all, job) == State.FAILED
    assert taken(row) == 1


@WAYS
def test_each_start_of_a_job_that_is_tried_again_takes_one(row: TenantQueue, run_all: Callable[[], object]) -> None:
    job = jobs.throttled.enqueue(row.tenant, problem="the partner is away")
    run_all()
    assert (fresh(job).state, job.attempt) == (State.FAILED, 2)
    assert taken(row) == 2


@WAYS
def test_without_a_token_left_the_next_try_waits(row: TenantQueue, run_all: Callable[[], object]) -> None:
    assert TenantQueue.objects.filter(pk=row.pk).update(**rates.taken(BURST - 1))
    job = jobs.throttled.enqueue(row.tenant, problem="the partner is away")
    run_all()
    assert (fresh(job).state, job.attempt) == (State.WAITING, 1)
    assert taken(row) == BURST
