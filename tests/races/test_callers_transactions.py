"""What a caller changes in a transaction of its own deadlocks with nobody, and holds up no sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import QuerySet

from tenant_slots import slots
from tenant_slots.db import transactions
from tenant_slots.enqueueing import cancel, priority, retry
from tenant_slots.exceptions import NotRetryable, TenantQueueLocked
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import pruning, steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tests.factories import admit, age, another_process, fresh, running_job, tenant_queue, waiting_job
from tests.processes import somebody_waits_for_a_lock, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


def meanwhile(action: Callable[[], object], errors: list[Exception]) -> Thread:
    def run() -> None:
        try:
            action()
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    thread = Thread(target=run)
    thread.start()
    return thread


@contextmanager
def only_its_own_row(tenant_queue_id: int) -> Iterator[None]:
    """In place of `locked`: a transaction that does not hold the tenant queue."""
    with transaction.atomic():
        yield


@contextmanager
def collecting(errors: list[Exception]) -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        errors.append(error)


def test_a_priority_that_is_changed_while_the_job_is_admitted() -> None:
    row = tenant_queue(max_job=1)
    first, second = waiting_job(row), waiting_job(row)
    assert errors_while_its_priority_is_changed(first, second) == []
    assert (fresh(first).state, fresh(second).state) == (State.QUEUED, State.CANCELED)
    assert TenantQueue.objects.get().current_job == 1


def test_control_a_priority_that_is_changed_without_the_tenant_queue_is_a_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(priority, "locked", only_its_own_row)
    row = tenant_queue(max_job=1)
    assert errors_while_its_priority_is_changed(waiting_job(row), waiting_job(row))


def errors_while_its_priority_is_changed(first: TenantJob, second: TenantJob) -> list[Exception]:
    errors: list[Exception] = []
    with transaction.atomic():
        first.set_priority(-5)
        admission = meanwhile(partial(admit, first.tenant_queue), errors)
        wait_until(somebody_waits_for_a_lock)
        with collecting(errors):
            second.cancel()
    admission.join(20)
    return errors


def test_a_running_job_that_is_canceled_while_it_ends() -> None:
    row = tenant_queue(max_job=1)
    running, waiting = running_job(row, another_process()), waiting_job(row)
    assert errors_while_it_is_canceled(running, waiting) == []
    assert (fresh(running).state, fresh(waiting).state) == (State.CANCELED, State.CANCELED)
    assert TenantQueue.objects.get().current_job == 0


def test_control_a_running_job_that_is_canceled_without_the_tenant_queue_is_a_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancel, "locked", only_its_own_row)
    row = tenant_queue(max_job=1)
    assert errors_while_it_is_canceled(running_job(row, another_process()), waiting_job(row))


def errors_while_it_is_canceled(running: TenantJob, waiting: TenantJob) -> list[Exception]:
    errors: list[Exception] = []
    with transaction.atomic():
        running.cancel()
        end = meanwhile(partial(slots.release, running, state=State.FINISHED), errors)
        wait_until(somebody_waits_for_a_lock)
        with collecting(errors):
            waiting.cancel()
    end.join(20)
    return errors


@contextmanager
def kept_open(change: Callable[[], object]) -> Iterator[None]:
    """Another session's transaction, which ends when the block does."""
    changed, go_on = Event(), Event()

    @transaction.atomic
    def change_and_wait() -> None:
        change()
        changed.set()
        assert go_on.wait(20)

    errors: list[Exception] = []
    thread = meanwhile(change_and_wait, errors)
    try:
        assert changed.wait(20)
        yield
    finally:
        go_on.set()
        thread.join(20)
    assert errors == []


@contextmanager
def whether_or_not_they_are_locked(
    jobs: QuerySet[TenantJob], *, to_delete: bool = False
) -> Iterator[QuerySet[TenantJob]]:
    """In place of `unlocked`."""
    with transaction.atomic():
        pks = list(jobs.select_for_update(no_key=not to_delete).values_list("pk", flat=True))
        yield TenantJob.objects.filter(pk__in=pks)


@pytest.mark.parametrize("passes_over", [True, pytest.param(False, id="control")])
@pytest.mark.parametrize(
    ("step", "state", "change", "left"),
    [
        (steps.promote, State.SCHEDULED, TenantJob.cancel, State.WAITING),
        (steps.prune, State.FAILED, TenantJob.retry, None),
    ],
)
def test_a_sweep_passes_over_a_job_that_an_open_transaction_has_changed(
    step: steps.Step,
    state: State,
    change: Callable[[TenantJob], object],
    left: State | None,
    passes_over: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if not passes_over:
        for module in (steps, pruning):
            monkeypatch.setattr(module, "unlocked", whether_or_not_they_are_locked)
    row = tenant_queue(max_job=0)
    locked, other = waiting_job(row, state=state), waiting_job(row, state=state)
    for job in (locked, other):
        age(job, run_after=1, ended_at=10**7)
    with kept_open(partial(change, fresh(locked))), connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '100ms'")
        try:
            step(Report(), Contact())
        finally:
            cursor.execute("SET lock_timeout = 0")
        assert ("due to lock timeout" not in caplog.text) is passes_over
        if passes_over:
            assert TenantJob.objects.filter(pk=other.pk).values_list("state", flat=True).first() == left


@pytest.fixture
def _impatient() -> Iterator[None]:
    token = transactions.patience.set(0.2)
    yield
    transactions.patience.reset(token)


def lock_timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return str(cursor.fetchone()[0])


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("change", [TenantJob.cancel, TenantJob.retry, lambda job: job.set_priority(3)])
def test_a_change_in_a_callers_transaction_waits_for_a_locked_row_no_longer_than_our_patience(
    change: Callable[[TenantJob], object],
) -> None:
    row = tenant_queue(max_job=0)
    job = waiting_job(row, state=State.CANCELED if change is TenantJob.retry else State.WAITING)
    with kept_open(partial(fresh(row).set_limit, 0)):
        with transaction.atomic():
            other = waiting_job(tenant_queue("other", max_job=0))
            with pytest.raises(TenantQueueLocked, match=f"queue {row.pk} .* locked for 0.2 s"):
                change(job)
            assert lock_timeout() == "0"
        assert TenantJob.objects.filter(pk=other.pk).exists()  # the caller's transaction went on
    change(job)
    assert lock_timeout() == "0"


@contextmanager
def without_bound(alias: str) -> Iterator[tuple[str, ...]]:
    """In place of a part of the caller's transaction that has one."""
    with transaction.atomic(using=alias):
        yield ()


def test_control_without_a_bound_it_waits_for_as_long_as_the_row_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "within_patience", without_bound)
    row, errors = tenant_queue(max_job=0), list[Exception]()
    job = waiting_job(row)

    @transaction.atomic
    def cancel_impatiently() -> None:
        with transactions.waiting_at_most(0.2):
            job.cancel()

    with kept_open(partial(fresh(row).set_limit, 0)):
        caller = meanwhile(cancel_impatiently, errors)
        wait_until(somebody_waits_for_a_lock)
        caller.join(1)
        assert caller.is_alive()
    caller.join(20)
    assert (errors, fresh(job).state) == ([], State.CANCELED)


@pytest.mark.usefixtures("_impatient")
def test_a_callers_own_lock_timeout_is_kept() -> None:
    row = tenant_queue(max_job=0)
    with kept_open(partial(fresh(row).set_limit, 0)), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(TenantQueueLocked):
            row.set_limit(2)
        assert lock_timeout() == "50ms"


@pytest.mark.parametrize("error", [TenantQueueLocked, pytest.param(OperationalError, id="control")])
def test_two_transactions_that_change_two_tenants_in_opposite_orders_end_one_of_them_with_an_error_of_ours(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    if error is OperationalError:
        monkeypatch.setattr(transactions, "LOCKED_OUT", (transactions.LOCK_TIMEOUT,))
    first, second = tenant_queue("first"), tenant_queue("second")
    errors: list[Exception] = []

    @transaction.atomic
    def backwards() -> None:
        fresh(second).set_limit(7)
        fresh(first).set_limit(7)

    with transaction.atomic():
        first.set_limit(5)
        other = meanwhile(backwards, errors)
        wait_until(somebody_waits_for_a_lock)
        try:
            second.set_limit(5)
        except OperationalError as raised:
            errors.append(raised)
            second = fresh(second)
    other.join(20)
    assert [type(raised) for raised in errors] == [error]
    limits = {row.tenant: row.max_job for row in TenantQueue.objects.all()}
    assert limits in ({"first": 5, "second": 5}, {"first": 7, "second": 7})


def test_a_retry_locks_the_tenant_queue_before_its_job_as_every_change_does() -> None:
    assert errors_while_it_is_retried() == [NotRetryable]
    assert TenantQueue.objects.get().max_job == 2


def test_control_one_that_locks_its_job_only_is_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "locked", only_its_own_row)
    assert any(issubclass(error, OperationalError) for error in errors_while_it_is_retried())


def errors_while_it_is_retried() -> list[type[Exception]]:
    row = tenant_queue(max_job=0)
    job = waiting_job(row, state=State.FAILED)
    errors: list[Exception] = []

    @transaction.atomic
    def limit_then_retry() -> None:
        fresh(row).set_limit(1)
        fresh(job).retry()

    with transaction.atomic():
        job.retry()
        other = meanwhile(limit_then_retry, errors)
        wait_until(somebody_waits_for_a_lock)
        with collecting(errors):
            row.set_limit(2)
    other.join(20)
    return [type(error) for error in errors]
