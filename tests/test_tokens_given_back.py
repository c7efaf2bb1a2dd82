"""A job that was admitted, and whose function is never called, has not started: its token goes back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import django_rq
import pytest
from django.db import connection, transaction

from tenant_slots import rates, slots, transitions
from tenant_slots.db import clock
from tenant_slots.models import QueueTotal, State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs
from tenant_slots.repair.lost_runs import ByHand
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tests import jobs
from tests.factories import (
    admit,
    age,
    counters_match,
    fresh,
    owner,
    redis_forgets,
    running_job,
    somebody_sweeps,
    tenant_queue,
    waiting_job,
    work,
)
from tests.history import History
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.races.test_callers_transactions import meanwhile
from tests.repair.sweeps import sweep_now

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


# --- an admitted job that no worker has taken ----------------------------------------------------------------------


def admitted(row: TenantQueue) -> TenantJob:
    waiting_job(row)
    (job,) = admit(row)
    assert (fresh(job).state, taken(row)) == (State.QUEUED, 1)
    return job


def flush(rq_id: str) -> None:
    django_rq.get_connection("imports").flushall()


def delete_in_rq(rq_id: str) -> None:
    queue = django_rq.get_queue("imports")
    queue.fetch_job(rq_id).delete()
    queue.remove(rq_id)


def cancel_in_rq(rq_id: str) -> None:
    django_rq.get_queue("imports").fetch_job(rq_id).cancel()


LOSSES = pytest.mark.parametrize("lose", [flush, delete_in_rq, cancel_in_rq])
DELETIONS = pytest.mark.parametrize(
    "delete", [TenantJob.delete, lambda job: TenantJob.objects.filter(pk=job.pk).delete()], ids=["one", "many"]
)


@LOSSES
def test_a_plain_job_that_rq_lost_before_it_began_takes_none_and_has_not_crashed(
    row: TenantQueue, history: History, lose: Callable[[str], None]
) -> None:
    row.set_limit(0)
    rq_id = django_rq.get_queue("imports").enqueue(jobs.record, row.tenant, "waited", history.path).id
    work()
    row.set_limit(1)
    job = TenantJob.objects.get()
    assert (job.state, taken(row)) == (State.QUEUED, 1), "the control: it was admitted"
    lose(rq_id)
    age(job, admitted_at=30)
    sweep_now()
    assert (fresh(job).has_ended, job.crashes, job.interruptions) == (True, 0, 0)
    assert not QueueTotal.objects.exclude(crashes=0, interruptions=0).exists()
    assert (history.started(), taken(row)) == ([], 0)
    assert counters_match()


def test_one_whose_slot_is_taken_by_force_before_it_began_takes_none_and_has_not_crashed(row: TenantQueue) -> None:
    job = admitted(row)
    assert lost_runs.release_by_hand(fresh(job), "stuck", force=True) is ByHand.RELEASED
    assert (fresh(job).state, job.crashes, job.error) == (State.FAILED, 0, "attempt 1: stuck")
    assert not QueueTotal.objects.exclude(crashes=0).exists()
    assert taken(row) == 0
    assert counters_match()


def test_one_whose_slot_is_taken_by_force_while_it_runs_has_taken_one(row: TenantQueue) -> None:
    job = running_job(row, owner())
    assert lost_runs.release_by_hand(fresh(job), "stuck", force=True) is ByHand.RELEASED
    assert (fresh(job).state, job.crashes, taken(row)) == (State.FAILED, 1, 1)


def test_the_slot_of_one_that_has_ended_is_not_taken_once_more(row: TenantQueue) -> None:
    job = admitted(row)
    assert job.cancel()
    running_job(row, owner())
    assert lost_runs.release_by_hand(fresh(job), "stuck", force=True) is ByHand.NO_SLOT
    assert (fresh(job).state, taken(row), counters_match()) == (State.CANCELED, 1, True)


def test_one_that_began_since_it_was_read_keeps_its_slot_and_its_token(row: TenantQueue) -> None:
    seen = admitted(row)
    assert slots.start(TenantJob.objects.get(), owner())
    assert lost_runs.release_by_hand(seen, "stuck", force=True) is ByHand.NO_SLOT
    assert (fresh(seen).state, taken(row)) == (State.RUNNING, 1)


@DELETIONS
def test_one_that_is_deleted_before_it_began_takes_none(row: TenantQueue, delete: Callable[[TenantJob], None]) -> None:
    delete(admitted(row))
    assert (taken(row), counters_match()) == (0, True)


@DELETIONS
def test_one_that_is_deleted_while_it_runs_has_taken_one(row: TenantQueue, delete: Callable[[TenantJob], None]) -> None:
    job = admitted(row)
    assert slots.start(job, owner())
    delete(job)
    assert (taken(row), counters_match()) == (1, True)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
@DELETIONS
def test_one_that_begins_while_it_is_deleted_has_taken_one(
    row: TenantQueue, delete: Callable[[TenantJob], None]
) -> None:
    job = admitted(row)
    errors: list[Exception] = []
    with transaction.atomic():
        assert slots.start(TenantJob.objects.get(), owner())
        deletion = meanwhile(partial(delete, job), errors)
        wait_until(somebody_waits_for_a_lock)
    deletion.join(20)
    assert errors == []
    assert not TenantJob.objects.exists()
    assert (taken(row), counters_match()) == (1, True)
