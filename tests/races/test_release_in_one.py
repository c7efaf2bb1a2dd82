"""A release that has no other consequence is one statement: what it finds, and what it leaves to more than one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from tenant_slots import locks, slots
from tenant_slots.db.compiled import Statement
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.releases import Release
from tenant_slots.statements import FREE
from tests.factories import counters_match, fresh, owner, running_job, tenant_queue, waiting_job
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.processes import test_database_url as database_url

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite takes one statement at a time"),
]

DOOR = 42
"""Of an advisory lock, which whoever releases waits for before it locks the row."""


class Slowly:
    """`FREE`, for which the statement has looked at the table before it waits."""

    def __init__(self, statement: Statement) -> None:
        self._statement = statement

    def bound(self, alias: str, values: dict[str, Any]) -> Any:
        return self._statement.bound(alias, values)

    def compiled(self, alias: str) -> Any:
        class Compiled:
            sql = self._statement.compiled(alias).sql.replace(" FROM ", f" FROM pg_advisory_lock_shared({DOOR}), ", 1)

        Compiled.sql = Compiled.sql.replace("FOR NO KEY UPDATE", 'FOR NO KEY UPDATE OF "tenant_slots_tenantqueue"')
        return Compiled


@contextmanager
def door_closed() -> Iterator[None]:
    with psycopg.connect(database_url(), autocommit=True) as session:
        session.execute("SELECT pg_advisory_lock(%s)", [DOOR])
        yield


def running(row: TenantQueue | None = None) -> TenantJob:
    """A job as whoever runs it has it, with its tenant queue."""
    job = running_job(row or tenant_queue(), owner())
    assert job.tenant_queue.current_job
    return job


def statements_of(job: TenantJob) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        assert slots.release(job, state=State.FINISHED)
    return [query["sql"] for query in queries if query["sql"] not in ("BEGIN", "COMMIT")]


def test_what_others_commit_between_its_look_and_its_lock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL locks the row as it is by then, and updates that one."""
    monkeypatch.setattr(locks, "FREE", Slowly(FREE))
    row = tenant_queue(max_job=5)
    job = running(row)
    released: list[Release] = []

    def release() -> None:
        try:
            released.append(slots.release(job, state=State.FINISHED))
        finally:
            connection.close()

    thread = Thread(target=release)
    with door_closed():
        thread.start()
        wait_until(somebody_waits_for_a_lock)
        running_job(row, owner())
        TenantQueue.objects.filter(pk=row.pk).update(max_job=F("max_job") + 1)
    thread.join(20)
    assert released == [Release(State.FINISHED)]
    assert (fresh(row).current_job, fresh(row).max_job) == (1, 6)
    assert counters_match()


def test_it_is_one_statement() -> None:
    job = running()
    assert len(statements_of(job)) == 1
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.FINISHED, 0)


def test_control_where_somebody_has_the_row_it_is_more() -> None:
    job = running()
    locks._note_sought(job.tenant_queue_id)
    assert len(statements_of(job)) > 1
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.FINISHED, 0)


def test_whoever_has_lost_the_run_gives_back_nothing() -> None:
    job = running()
    TenantJob.objects.filter(pk=job.pk).update(token=job.token + 1)
    assert not slots.release(job, state=State.FINISHED)
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.RUNNING, 1)


def test_a_job_that_is_to_be_canceled_has_not_finished() -> None:
    job = running()
    TenantJob.objects.filter(pk=job.pk).update(cancel_requested_at=job.enqueued_at)
    assert slots.release(job, state=State.FINISHED).state == State.CANCELED
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.CANCELED, 0)


def test_a_counter_that_was_wrong_is_not_lowered_below_0() -> None:
    job = running()
    TenantQueue.objects.update(current_job=0)
    assert slots.release(job, state=State.FINISHED)
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.FINISHED, 0)


def test_that_others_wait_for_its_end_is_said() -> None:
    job = running()
    TenantJob.objects.filter(pk=job.pk).update(awaited=True)
    assert slots.release(job, state=State.FINISHED) == Release(State.FINISHED, is_awaited=True)


def test_it_is_undone_with_the_callers_transaction() -> None:
    job = running()
    with transaction.atomic():
        assert slots.release(job, state=State.FINISHED)
        transaction.set_rollback(True)
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.RUNNING, 1)


def test_it_is_done_where_the_server_binds_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    connection.close()
    job = running()
    assert len(statements_of(job)) > 1
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.FINISHED, 0)
    connection.close()


def test_the_tenant_goes_on() -> None:
    row = tenant_queue()
    job, successor = running(row), waiting_job(row)
    assert slots.release(job, state=State.FINISHED)
    assert slots.admit_and_start(row.pk, "imports", owner(), lambda chosen: None).started == successor
    assert counters_match()
