"""Whoever had to wait for a tenant queue lets the next one have it before the disk is done, and waits for it then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from threading import Thread

import psycopg
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from tenant_slots import locks, slots
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.factories import admit, counters_match, fresh, owner, running_job, tenant_queue, waiting_job
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.processes import test_database_url as database_url

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]

OF_COMMITS = (locks.COMMIT_AT_ONCE, "COMMIT", locks.WAIT_FOR_DISK)


@contextmanager
def somebody_holding(row: TenantQueue) -> Iterator[None]:
    with psycopg.connect(database_url()) as session:
        session.execute("SELECT 1 FROM tenant_slots_tenantqueue WHERE id = %s FOR NO KEY UPDATE", [row.pk])
        yield
        session.rollback()


def statements_of(action: Callable[[], object]) -> list[str]:
    """What it said about its commit, in the order in which it did.

    Django writes down a COMMIT at the end of each transaction; the driver sends none where that is over already.
    """
    with CaptureQueriesContext(connection) as queries:
        action()
    said = [part for query in queries for part in query["sql"].split("; ") if part in OF_COMMITS]
    return [part for before, part in pairwise(["", *said]) if not before == part == "COMMIT"]


def in_thread_while_held(row: TenantQueue, action: Callable[[], object]) -> list[str]:
    found: list[str] = []

    def run() -> None:
        try:
            found.extend(statements_of(action))
        finally:
            connection.close()

    thread = Thread(target=run)
    with somebody_holding(row):
        thread.start()
        wait_until(somebody_waits_for_a_lock)
    thread.join(20)
    return found


def test_a_release_that_had_to_wait_frees_the_row_first_and_then_waits_for_the_disk() -> None:
    row = tenant_queue()
    job = running_job(row, owner())
    said = in_thread_while_held(row, lambda: slots.release(job, state=State.FINISHED))
    assert said == list(OF_COMMITS)
    assert (fresh(job).state, fresh(row).current_job) == (State.FINISHED, 0)
    assert counters_match()


def test_so_does_one_that_knows_its_tenant_queue_and_tries_to_do_all_in_one_statement() -> None:
    row = tenant_queue()
    job = running_job(row, owner())
    assert job.tenant_queue.current_job
    said = in_thread_while_held(row, lambda: slots.release(job, state=State.FINISHED))
    assert said == ["COMMIT", *OF_COMMITS], "the first one has changed nothing"
    assert locks._sought[row.pk] == locks.SOUGHT_FOR - 1
    assert (fresh(job).state, fresh(row).current_job) == (State.FINISHED, 0)
    assert counters_match()


def test_so_does_a_worker_that_starts_the_next_job_in_the_same_transaction() -> None:
    row = tenant_queue()
    job, successor = running_job(row, owner()), waiting_job(row)

    def go_on() -> None:
        slots.release_and_start(job, "imports", owner(), lambda chosen: None, state=State.FINISHED)

    assert in_thread_while_held(row, go_on) == list(OF_COMMITS)
    assert (fresh(job).state, fresh(successor).state) == (State.FINISHED, State.RUNNING)
    assert counters_match()


def test_so_does_an_admission_and_one_that_found_nothing_to_do() -> None:
    row = tenant_queue()
    waiting_job(row)
    assert in_thread_while_held(row, lambda: admit(row)) == list(OF_COMMITS)
    assert in_thread_while_held(row, lambda: admit(row)) == list(OF_COMMITS)


def test_who_is_next_is_asked_together_with_the_lock_and_answered_once_it_is_there() -> None:
    row = tenant_queue()
    gone, successor = waiting_job(row), waiting_job(row)
    started: list[TenantJob | None] = []

    def take() -> None:
        try:
            with CaptureQueriesContext(connection) as queries:
                started.append(slots.admit_and_start(row.pk, "imports", owner(), lambda chosen: None).started)
            asked.extend("tenantjob" in query["sql"] for query in queries if "FOR NO KEY UPDATE" in query["sql"])
        finally:
            connection.close()

    asked: list[bool] = []
    thread = Thread(target=take)
    with psycopg.connect(database_url()) as session:
        session.execute("SELECT 1 FROM tenant_slots_tenantqueue WHERE id = %s FOR NO KEY UPDATE", [row.pk])
        thread.start()
        wait_until(somebody_waits_for_a_lock)
        session.execute("UPDATE tenant_slots_tenantjob SET state = 'canceled' WHERE id = %s", [gone.pk])
        session.commit()
    thread.join(20)
    assert started == [successor], "what was true before the lock was there does not count"
    assert asked == [True, True], "no round trip of its own while others wait for the row"


def test_one_that_found_the_row_free_commits_as_the_project_has_it() -> None:
    row = tenant_queue()
    job = running_job(row, owner())
    assert statements_of(lambda: slots.release(job, state=State.FINISHED)) == ["COMMIT"]


def test_who_has_waited_for_it_does_not_look_first_whether_it_is_free_for_some_time() -> None:
    row = tenant_queue()
    in_thread_while_held(row, lambda: admit(row))
    said = [statements_of(lambda: admit(row)) for _ in range(locks.SOUGHT_FOR + 1)]
    assert said == [*[list(OF_COMMITS)] * locks.SOUGHT_FOR, ["COMMIT"]]
    assert statements_of(lambda: admit(tenant_queue("other"))) == ["COMMIT"]


def test_no_more_than_so_many_rows_are_kept_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "MOST_SOUGHT", 1)
    first, second = tenant_queue("first"), tenant_queue("second")
    for row in (first, second):
        in_thread_while_held(row, lambda row=row: admit(row))
    assert statements_of(lambda: admit(first)) == ["COMMIT"]
    assert statements_of(lambda: admit(second)) == list(OF_COMMITS)


def test_nothing_is_changed_about_the_commit_of_a_caller() -> None:
    """It is the caller's, and the row stays locked until then anyway."""
    row = tenant_queue()
    waiting_job(row)

    def in_a_transaction() -> None:
        with transaction.atomic():
            admit(row)

    assert in_thread_while_held(row, in_a_transaction) == ["COMMIT"]
    assert counters_match()
