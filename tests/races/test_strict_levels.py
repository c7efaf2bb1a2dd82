"""Unique jobs where the sessions of a project have a stricter isolation level than PostgreSQL's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.backends.signals import connection_created
from django.test import Client

from tenant_slots import chains, slots
from tenant_slots.db.clock import ago
from tenant_slots.enqueueing import bulk
from tenant_slots.models import EVERYWHERE, Kind, State, SweepClaim, TenantJob, TenantQueue
from tenant_slots.repair import claims
from tests import jobs
from tests.admin.site import change_page, loaded
from tests.factories import admit, age, fresh, owner, running_job, tenant_queue, waiting_job
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.races.test_callers_transactions import meanwhile

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one level"),
]

LEVELS = ["REPEATABLE READ", "SERIALIZABLE"]


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def of_level(level: str, action: Callable[[], object]) -> Callable[[], object]:
    """In a session with this level, as by the option ``isolation_level`` of a database."""

    def run() -> None:
        execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
        action()

    return run


@pytest.mark.parametrize("level", LEVELS)
def test_an_old_job_that_gets_a_heartbeat_meanwhile_is_no_error(level: str) -> None:
    row = tenant_queue()
    digest = jobs.import_once.enqueue("acme").unique_key
    TenantJob.objects.all().delete()
    first = running_job(row, owner(), unique_key=digest)
    age(first, enqueued_at=601)
    errors: list[Exception] = []
    with transaction.atomic():
        TenantJob.objects.filter(pk=first.pk).update(beat_at=None)
        caller = meanwhile(of_level(level, lambda: jobs.import_once.enqueue("acme")), errors)
        wait_until(somebody_waits_for_a_lock)
    caller.join(20)
    assert errors == []
    assert fresh(first).unique_key == ""
    assert TenantJob.objects.exclude(pk=first.pk).get().unique_key == digest


@pytest.mark.parametrize("task", [jobs.import_once, jobs.index_shop], ids=["unique", "debounced"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_job_that_stands_for_no_later_ones_any_more_is_no_error_in_a_strict_transaction(
    level: str, task: Any
) -> None:
    tenant_queue()
    first = task.enqueue("acme")
    digest = first.unique_key
    age(first, enqueued_at=601)
    TenantJob.objects.update(state=State.QUEUED)
    with transaction.atomic():
        execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        second = task.enqueue("acme")
    assert second.pk != first.pk
    assert (fresh(first).unique_key, fresh(second).unique_key) == ("", digest)


@pytest.fixture(params=LEVELS)
def level_of_all_sessions(request: pytest.FixtureRequest) -> Iterator[None]:
    """As by the option ``isolation_level`` of a database, or the default of a role."""

    def set_level(**_: Any) -> None:
        execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {request.param}")

    connection_created.connect(set_level)
    connection.close()
    yield
    connection_created.disconnect(set_level)
    connection.close()


@pytest.mark.usefixtures("level_of_all_sessions")
@pytest.mark.parametrize("task", [jobs.import_once, jobs.index_shop], ids=["unique", "debounced"])
def test_nor_is_it_one_where_all_sessions_of_the_project_are_strict(task: Any) -> None:
    """Ours that changed the job beside the caller could be put in no order with him, who has read it."""
    tenant_queue()
    first = task.enqueue("acme")
    age(first, enqueued_at=601)
    TenantJob.objects.update(state=State.QUEUED)
    with transaction.atomic():
        second = task.enqueue("acme")
    assert second.pk != first.pk
    assert fresh(first).unique_key == ""


@pytest.mark.parametrize("task", [jobs.import_once, jobs.index_shop], ids=["unique", "debounced"])
@pytest.mark.parametrize("level", LEVELS)
def test_nor_is_it_one_for_the_second_call_in_the_same_strict_transaction(level: str, task: Any) -> None:
    """Which still sees the job as it was, and would change it itself."""
    tenant_queue()
    first = task.enqueue("acme")
    age(first, enqueued_at=601)
    TenantJob.objects.update(state=State.QUEUED)
    with transaction.atomic():
        execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        second = task.enqueue("acme")
        assert task.enqueue("acme").pk == second.pk
    assert second.pk != first.pk


@pytest.mark.parametrize("level", LEVELS)
def test_a_debounced_job_that_somebody_changes_meanwhile_takes_over_the_call(level: str) -> None:
    first = jobs.index_shop.enqueue("acme", 1)
    errors: list[Exception] = []
    with transaction.atomic():
        TenantJob.objects.filter(pk=first.pk).update(priority=1)
        caller = meanwhile(of_level(level, lambda: jobs.index_shop.enqueue("acme", 2)), errors)
        wait_until(somebody_waits_for_a_lock)
    caller.join(20)
    assert errors == []
    assert TenantJob.objects.get().args == ["acme", 2]


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first INSERT is undone as one that cannot be put in an order with others."""
    tries: list[int] = []
    insert = bulk.insert

    def undone_once(some: Any) -> None:
        tries.append(len(some))
        if len(tries) == 1:
            execute("DO $$ BEGIN RAISE EXCEPTION 'no order' USING ERRCODE = 'serialization_failure'; END $$")
        insert(some)

    monkeypatch.setattr(bulk, "insert", undone_once)
    return tries


def test_what_was_undone_because_of_others_is_tried_again(undone: list[int]) -> None:
    job = jobs.import_once.enqueue("acme")
    assert undone == [1, 1]
    assert TenantJob.objects.get() == job


def test_what_was_undone_with_a_transaction_of_the_caller_is_the_callers(undone: list[int]) -> None:
    with pytest.raises(OperationalError), transaction.atomic():
        jobs.import_once.enqueue("acme")
    assert undone == [1]
    assert not TenantJob.objects.exists()


@pytest.mark.parametrize("what", ["a job", "a tenant queue", "tenant queues"])
@pytest.mark.parametrize("level", LEVELS)
def test_what_waits_for_a_tenant_queue_is_deleted_though_that_has_changed_meanwhile(level: str, what: str) -> None:
    row = tenant_queue(max_job=2)
    gone = waiting_job(row) if what == "a job" else row
    delete = TenantQueue.objects.all().delete if what == "tenant queues" else gone.delete
    errors: list[Exception] = []
    with transaction.atomic():
        row.set_limit(3)
        caller = meanwhile(of_level(level, delete), errors)
        wait_until(somebody_waits_for_a_lock)
    caller.join(20)
    assert errors == []
    assert not type(gone).objects.exists()


@pytest.mark.parametrize("what", ["a job", "jobs"])
@pytest.mark.parametrize("level", LEVELS)
def test_an_ended_job_is_deleted_though_it_has_changed_meanwhile(level: str, what: str) -> None:
    gone = waiting_job(tenant_queue(), state=State.FAILED)
    errors: list[Exception] = []
    with transaction.atomic():
        TenantJob.objects.filter(pk=gone.pk).update(error="")
        delete = gone.delete if what == "a job" else TenantJob.objects.ended().delete
        caller = meanwhile(of_level(level, delete), errors)
        wait_until(somebody_waits_for_a_lock)
    caller.join(20)
    assert errors == []
    assert not TenantJob.objects.exists()


@pytest.mark.parametrize("level", LEVELS)
def test_the_form_of_a_tenant_queue_is_saved_though_a_job_has_been_admitted_or_has_ended_meanwhile(
    level: str, boss: Client
) -> None:
    row = tenant_queue(max_job=2)
    sent = {**loaded(boss, row), "max_job": "3", "share": "4"}
    errors: list[Exception] = []
    with transaction.atomic():
        TenantQueue.objects.filter(pk=row.pk).update(current_job=1)
        caller = meanwhile(of_level(level, partial(boss.post, change_page(row), sent)), errors)
        wait_until(somebody_waits_for_a_lock)
    caller.join(20)
    assert errors == []
    row.refresh_from_db()
    assert (row.max_job, row.share) == (3, 4)


@pytest.mark.parametrize("level", LEVELS)
def test_a_job_is_awaited_though_it_has_changed_while_that_was_to_be_noted(level: str) -> None:
    first = jobs.add.enqueue(1, 2, tenant="acme")
    errors: list[Exception] = []
    with transaction.atomic():
        TenantJob.objects.filter(pk=first.pk).update(priority=1)
        caller = meanwhile(of_level(level, partial(chains.watch, [first.pk])), errors)
        wait_until(somebody_waits_for_a_lock)
    caller.join(20)
    assert errors == []
    assert TenantJob.objects.get(awaited=True) == first


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("level", LEVELS)
def test_a_job_is_started_though_it_has_changed_meanwhile(
    level: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "LOCK_SECONDS", 20)
    row = tenant_queue()
    waiting_job(row, kind=kind)
    (job,) = admit(row)
    errors: list[Exception] = []
    with transaction.atomic():
        TenantJob.objects.filter(pk=job.pk).update(awaited=True)
        caller = meanwhile(of_level(level, partial(slots.start, job, owner())), errors)
        wait_until(somebody_waits_for_a_lock)
    caller.join(20)
    assert errors == []
    assert fresh(job).state == State.RUNNING


@pytest.mark.parametrize("level", LEVELS)
def test_a_sweep_that_another_process_begins_in_the_same_moment_meets_no_error(level: str) -> None:
    """It would take that for an outage, and call no owner stale for a lease."""
    claimed: list[bool] = []
    errors: list[Exception] = []
    claims.claim(EVERYWHERE, "before")
    SweepClaim.objects.update(until=ago(1))
    with transaction.atomic():
        assert claims.claim(EVERYWHERE, "one")
        other = meanwhile(of_level(level, lambda: claimed.append(claims.claim(EVERYWHERE, "other"))), errors)
        wait_until(somebody_waits_for_a_lock)
    other.join(20)
    assert (claimed, errors) == ([False], [])
