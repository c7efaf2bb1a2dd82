"""A tenant's row that is deleted while somebody enqueues takes no committed job with it, and no open transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from threading import Event, Thread
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots import receivers, tenants
from tenant_slots.db import transactions
from tenant_slots.enqueueing import bulk
from tenant_slots.enqueueing.queue_deletion import Unused, delete_unused, lock_free
from tenant_slots.exceptions import TenantQueueInUse, TenantQueueLocked
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import fresh, in_thread, tenant_queue, waiting_job
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.races.test_callers_transactions import kept_open, meanwhile
from tests.races.test_strict_levels import LEVELS, execute

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]

PATIENCE = 0.2


@pytest.fixture
def _impatient() -> Iterator[None]:
    with transactions.waiting_at_most(PATIENCE):
        yield


def of_two_tenants() -> list[TenantJob]:
    return jobs.add.enqueue_many([((1, 2), {"tenant": tenant}) for tenant in ("acme", "other")])


def after_another_tenants(number: int) -> TenantJob:
    done = waiting_job(TenantQueue.objects.get(tenant="other"), state=State.FINISHED, ended_at=timezone.now())
    return jobs.add.using(after=[done]).enqueue(number, 2, tenant="acme")


ENQUEUES: list[Any] = [
    pytest.param("reports", lambda: [jobs.add.enqueue(1, 2, tenant="acme")], id="plain"),
    pytest.param("reports", lambda: jobs.add.enqueue_many([((1, 2), {"tenant": "acme"})] * 3), id="many"),
    pytest.param("reports", of_two_tenants, id="of two tenants"),
    pytest.param("reports", lambda: [after_another_tenants(1)], id="after"),
    pytest.param("reports", lambda: [after_another_tenants(n) for n in range(2)], id="after, several"),
    pytest.param("imports", lambda: [jobs.import_once.enqueue("acme")], id="unique"),
    pytest.param("imports", lambda: jobs.import_once.enqueue_many([(("acme",), {}), (("b",), {})]), id="unique many"),
    pytest.param("imports", lambda: [jobs.index_shop.enqueue("acme", 1)], id="debounced"),
    pytest.param(
        "imports", lambda: jobs.index_shop.enqueue_many([(("acme", 1), {}), (("b", 2), {})]), id="debounced many"
    ),
]
Enqueue = Callable[[], list[TenantJob]]


def rows_of(queue: str, **values: Any) -> list[TenantQueue]:
    return [tenant_queue(tenant, queue=queue, **values) for tenant in ("acme", "b", "other")]


def delete(row: TenantQueue) -> object:
    """What comes of it: somebody who waits no longer than `PATIENCE`, on another session."""

    def deletion() -> object:
        with transactions.waiting_at_most(PATIENCE):
            try:
                return TenantQueue.objects.get(pk=row.pk).delete()
            except TenantQueueLocked as error:
                return error

    return in_thread(deletion)


# --- the enqueue comes first ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queue", "enqueue"), ENQUEUES)
def test_a_row_that_an_open_transaction_has_enqueued_for_is_not_deleted(queue: str, enqueue: Enqueue) -> None:
    first, *_ = rows_of(queue)
    with transaction.atomic():
        enqueued = enqueue()
        assert isinstance(delete(first), TenantQueueLocked)
    assert {fresh(job).tenant_queue.tenant for job in enqueued} <= {"acme", "b", "other"}
    assert fresh(enqueued[0]).tenant_queue_id == first.pk


def test_a_deletion_that_waits_for_an_enqueue_is_refused_once_that_has_committed() -> None:
    row = tenant_queue(queue="reports")
    errors: list[Exception] = []
    with transaction.atomic():
        job = jobs.add.enqueue(1, 2, tenant="acme")
        deletion = meanwhile(row.delete, errors)
        wait_until(somebody_waits_for_a_lock)
    deletion.join(20)
    assert [type(error) for error in errors] == [TenantQueueInUse]
    assert fresh(job).state == State.QUEUED


def test_a_deletion_of_many_leaves_a_row_that_an_open_transaction_has_enqueued_for() -> None:
    first, second, third = rows_of("reports")
    everybody = [row.pk for row in (first, second, third)]
    with kept_open(of_two_tenants), transaction.atomic():
        assert lock_free(everybody) == [second]
    with transaction.atomic():
        assert lock_free(everybody) == [first, second, third]


def test_a_row_is_kept_no_longer_than_the_transaction_that_enqueues() -> None:
    row = tenant_queue(queue="reports")
    with transaction.atomic():
        jobs.add.enqueue(1, 2, tenant="acme")
        transaction.set_rollback(True)
    assert row.delete()


def test_workers_have_the_row_of_a_transaction_that_has_enqueued() -> None:
    row = tenant_queue(queue="reports", max_job=5)
    with kept_open(lambda: jobs.add.enqueue(1, 2, tenant="acme")), transactions.waiting_at_most(PATIENCE):
        assert fresh(jobs.add.enqueue(1, 2, tenant="acme")).state == State.QUEUED
        row.set_limit(7)
    assert fresh(row).max_job == 7


# --- the deletion comes first ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queue", "enqueue"), ENQUEUES)
def test_a_row_that_is_deleted_after_the_caller_has_read_it_is_made_anew(queue: str, enqueue: Enqueue) -> None:
    """Read at the beginning of the caller's transaction, which sees what others commit."""
    first, *_ = rows_of(queue)
    with transaction.atomic():
        list(TenantQueue.objects.all())
        assert not isinstance(delete(first), TenantQueueLocked)
        enqueued = enqueue()
    assert fresh(enqueued[0]).tenant_queue.tenant == "acme"
    assert enqueued[0].tenant_queue_id != first.pk


@pytest.mark.parametrize("in_transaction", [True, False], ids=["in a transaction", "by itself"])
@pytest.mark.parametrize(("queue", "enqueue"), ENQUEUES)
def test_an_enqueue_that_meets_a_deletion_makes_the_row_anew(
    queue: str, enqueue: Enqueue, in_transaction: bool
) -> None:
    first, *_ = rows_of(queue)
    enqueued: list[TenantJob] = []
    errors: list[Exception] = []

    def caller() -> None:
        with transaction.atomic() if in_transaction else nullcontext():
            enqueued.extend(enqueue())

    with transaction.atomic():
        first.delete()
        thread = meanwhile(caller, errors)
        wait_until(somebody_waits_for_a_lock)
    thread.join(20)
    assert errors == []
    assert fresh(enqueued[0]).tenant_queue.tenant == "acme"
    assert enqueued[0].tenant_queue_id != first.pk


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize(("queue", "enqueue"), ENQUEUES)
@pytest.mark.usefixtures("_impatient")
def test_an_enqueue_waits_for_a_row_that_somebody_keeps_only_for_a_while(
    queue: str, enqueue: Enqueue, in_transaction: bool
) -> None:
    first, *_ = rows_of(queue)
    lock = partial(TenantQueue.objects.select_for_update().get, pk=first.pk)
    with kept_open(lock), transaction.atomic() if in_transaction else nullcontext():
        with pytest.raises(TenantQueueLocked):
            enqueue()
        assert not TenantJob.objects.filter(tenant_queue=first).exists(), "the caller's transaction goes on"
    assert enqueue()


def test_a_unique_job_waits_for_its_duplicate_for_longer_than_for_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the end of the other transaction says what becomes of it."""
    tenant_queue()
    tries, found, errors = [], [], []
    insert = bulk._insert_one

    def insert_and_note(*args: Any) -> None:
        tries.append(args)
        insert(*args)

    def enqueue() -> None:
        with transactions.waiting_at_most(PATIENCE / 10):
            found.append(jobs.import_once.enqueue("acme"))

    with transaction.atomic():
        first = jobs.import_once.enqueue("acme")
        monkeypatch.setattr(bulk, "_insert_one", insert_and_note)
        thread = meanwhile(enqueue, errors)
        wait_until(lambda: len(tries) == 2, message="its patience was over")
        wait_until(somebody_waits_for_a_lock)
    thread.join(20)
    assert errors == []
    assert found == [first]


# --- strict isolation levels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_at_a_strict_level_a_row_that_others_change_meanwhile_can_be_enqueued_for(level: str) -> None:
    row = tenant_queue(queue="reports", max_job=3)
    with transaction.atomic():
        execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        list(TenantQueue.objects.all())
        in_thread(partial(row.set_limit, 5))
        job = jobs.add.enqueue(1, 2, tenant="acme")
        assert isinstance(delete(row), TenantQueueLocked)
    assert fresh(job).state == State.QUEUED


@pytest.mark.parametrize("level", LEVELS)
def test_at_a_strict_level_a_row_that_was_deleted_meanwhile_is_a_conflict_to_try_again(level: str) -> None:
    row = tenant_queue(queue="reports")

    @transaction.atomic
    def enqueue_late() -> None:
        execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        list(TenantQueue.objects.all())
        delete(row)
        jobs.add.enqueue(1, 2, tenant="acme")

    with pytest.raises(OperationalError, match="could not serialize access"):
        enqueue_late()
    assert jobs.add.enqueue(1, 2, tenant="acme")


# --- outside of a transaction ---------------------------------------------------------------------------------------


def test_an_enqueue_that_meets_a_deletion_creates_the_row_again(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue(queue="reports")
    checked, go_on = Event(), Event()
    original = receivers.refuse_to_delete_in_use

    def check_then_hold(**facts: object) -> None:
        original(**facts)
        checked.set()
        assert go_on.wait(20)

    receivers.pre_delete.disconnect(original, sender=TenantQueue)
    receivers.pre_delete.connect(check_then_hold, sender=TenantQueue)
    try:
        deletion = Thread(target=lambda: (row.delete(), connection.close()))
        deletion.start()
        assert checked.wait(20)
        enqueued: list[TenantJob] = []
        enqueue = Thread(target=lambda: (enqueued.append(jobs.add.enqueue(1, 2, tenant="acme")), connection.close()))
        enqueue.start()
        wait_until(somebody_waits_for_a_lock)
        go_on.set()
        deletion.join(20)
        enqueue.join(20)
    finally:
        go_on.set()
        receivers.pre_delete.disconnect(check_then_hold, sender=TenantQueue)
        receivers.pre_delete.connect(original, sender=TenantQueue)
    (job,) = enqueued
    assert fresh(job).state == State.QUEUED
    assert job.tenant_queue_id != row.pk


@pytest.mark.parametrize(("queue", "enqueue"), ENQUEUES)
def test_a_row_that_is_deleted_between_the_look_and_the_insert_is_made_anew(
    queue: str, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has no limit for its backlog is looked for by the statement that stores a single job."""
    first, *_ = rows_of(queue, max_waiting=10)
    look, deleted = tenants.tenant_queues_for, []

    def look_then_delete(*args: Any) -> Any:
        found = look(*args)
        if not deleted:
            deleted.append(delete(first))
        return found

    monkeypatch.setattr(tenants, "tenant_queues_for", look_then_delete)
    enqueued = enqueue()
    assert fresh(enqueued[0]).tenant_queue.tenant == "acme"
    was_kept = isinstance(deleted[0], TenantQueueLocked)  # where the look was in the transaction that inserts
    assert (enqueued[0].tenant_queue_id == first.pk) == was_kept


# --- what enqueueing keeps, and for how long ------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
@pytest.mark.parametrize("what", ["duplicate", "table"])
def test_whoever_enqueues_waits_no_longer_than_the_project_lets_its_statements(setting: str, what: str) -> None:
    rows_of("imports")

    def keep() -> None:
        if what == "duplicate":
            jobs.import_once.enqueue("acme")
        else:
            execute("LOCK TABLE tenant_slots_tenantjob IN ACCESS EXCLUSIVE MODE")

    def impatiently() -> None:
        execute(f"SET {setting} = '300ms'")
        with transactions.waiting_at_most(0.1):
            jobs.import_once.enqueue("acme")

    with kept_open(keep), pytest.raises(OperationalError) as error:
        in_thread(impatiently)
    assert not isinstance(error.value, TenantQueueLocked)


@pytest.mark.parametrize("how", ["one", "many"])
def test_a_tenant_queue_is_not_deleted_while_somebody_enqueues_after_its_ended_jobs(how: str) -> None:
    *_, other = rows_of("reports")
    done = waiting_job(other, state=State.FINISHED, ended_at=timezone.now())

    def delete_many() -> int:
        with transaction.atomic():
            return delete_unused(Unused(lock_free([done.tenant_queue_id])))

    with kept_open(lambda: jobs.add.using(after=[done]).enqueue(1, 2, tenant="acme")):
        came_of = delete(done.tenant_queue) if how == "one" else in_thread(delete_many)
        assert isinstance(came_of, TenantQueueLocked) or came_of == 0
        assert in_thread(lambda: jobs.add.enqueue(1, 2, tenant="other")).pk, "nobody keeps it locked meanwhile"
    assert TenantQueue.objects.filter(pk=done.tenant_queue_id).exists()


def test_debouncing_in_a_transaction_makes_no_savepoint_for_each_job() -> None:
    rows_of("imports")

    def savepoints(*tenants: str) -> int:
        with transaction.atomic(), CaptureQueriesContext(connection) as captured:
            jobs.index_shop.enqueue_many([((tenant, 1), {}) for tenant in tenants])
        return sum("SAVEPOINT" in query["sql"] for query in captured)

    assert savepoints("acme", "b") == savepoints("c", "d", "e", "f")
