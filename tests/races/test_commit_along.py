"""A worker starts a job, or hands a slot on, in two round trips: the commit goes with what is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection, connections, transaction

from tenant_slots import hand_over, locks, moves, slots
from tenant_slots.conf import app_settings
from tenant_slots.db import prepared
from tenant_slots.db.sessions import PrivateConnection
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.moves import NotAsExpected
from tenant_slots.owners import Owner
from tests.factories import counters_match, fresh, owner, tenant_queue, waiting_job
from tests.test_prepared import psycopg_parameters

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite takes one statement at a time"),
]


@pytest.fixture
def session() -> Iterator[None]:
    """One of a worker, which has prepared something by now, so that it prepares what it needs."""
    own = PrivateConnection(5, is_silent=True)
    with own.used():
        row = tenant_queue("warm", max_job=prepared.USES + 1)
        for _ in range(prepared.USES + 1):
            waiting_job(row)
            start(row)
        assert prepared.is_read_by_index(connections[app_settings.DATABASE])
        TenantJob.objects.all().delete()
        TenantQueue.objects.all().delete()
        yield
    own.close()


def start(row: TenantQueue, choosing: Callable[[TenantJob], object] = lambda job: None) -> TenantJob | None:
    who = owner()
    return _with_token(slots.admit_and_start(row.pk, row.queue, who, choosing).started, who)


def hand_on(job: TenantJob, choosing: Callable[[TenantJob], object] = lambda job: None) -> TenantJob | None:
    who = owner()
    released = slots.release_and_start(job, "", who, choosing, state=State.FINISHED)
    return _with_token(released.admission.started if released.admission else None, who)


def _with_token(started: TenantJob | None, who: Owner) -> TenantJob | None:
    if started is not None:
        started.token = who.token
    return started


@contextmanager
def sent() -> Iterator[list[str]]:
    """What is sent to the server, a round trip each: statements, and the commits and rollbacks of the driver."""
    found: list[str] = []
    execute, command = psycopg.Cursor.execute, psycopg.Connection._exec_command

    def executed(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
        found.append(str(query))
        return execute(cursor, query, *args, **options)

    def commanded(session: Any, query: Any, *args: Any) -> Any:
        found.append(query.decode())
        return command(session, query, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", executed)
        patch.setattr(psycopg.Connection, "_exec_command", commanded)
        yield found


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each time that something was done: whether step by step."""
    found: list[bool] = []

    def note(module: Any, name: str, is_by_steps: bool) -> None:
        original = getattr(module, name)

        def noted(*args: Any) -> Any:
            found.append(is_by_steps)
            return original(*args)

        monkeypatch.setattr(module, name, noted)

    note(hand_over, "start", True)
    note(hand_over, "leave_and_start", True)
    note(hand_over, "start_at_once", False)
    note(hand_over, "leave_and_start_at_once", False)
    return found


@pytest.mark.usefixtures("session")
def test_a_start_and_a_hand_over_are_two_round_trips_each() -> None:
    row = tenant_queue()
    for _ in range(3):
        waiting_job(row)
    with sent() as of_start:
        first = start(row)
    assert first is not None
    with sent() as of_hand_over:
        second = hand_on(first)
    assert second is not None
    assert (len(of_start), len(of_hand_over)) == (2, 2), (of_start, of_hand_over)
    assert (fresh(first).state, fresh(second).state) == (State.FINISHED, State.RUNNING)
    assert (second.attempt, second.tenant_queue.pk, fresh(second).token) == (1, row.pk, second.token)
    assert counters_match()


def test_control_where_nothing_is_prepared_the_commit_is_a_third_one() -> None:
    row = tenant_queue()
    waiting_job(row)
    with sent() as of_start:
        assert start(row)
    assert len(of_start) == 3, of_start


@pytest.mark.usefixtures("session")
def test_a_job_whose_cancel_is_requested_as_it_is_handed_on_is_canceled_and_the_next_one_starts(
    ways: list[bool],
) -> None:
    first = first_of_two(ways)
    second = hand_on(first, once("UPDATE tenant_slots_tenantjob SET cancel_requested_at = now() WHERE id = %s", first))
    assert second is not None
    assert ways[:2] == [False, True]
    assert (fresh(first).state, fresh(second).state) == (State.CANCELED, State.RUNNING)
    assert counters_match()


def first_of_two(ways: list[bool]) -> TenantJob:
    """It runs, and the other one waits for its slot; how that came about is not in question."""
    row = tenant_queue()
    for _ in range(2):
        waiting_job(row)
    first = start(row)
    assert first is not None
    ways.clear()
    return first


def once(sql: str, job: TenantJob) -> Callable[[TenantJob], object]:
    """Said in another session as a job is chosen, which is before anything is written, the first time."""
    left = [sql]

    def say(chosen: TenantJob) -> None:
        while left:
            with psycopg.connect(**psycopg_parameters(), autocommit=True) as other:
                other.execute(left.pop(), [job.pk])

    return say


@pytest.mark.usefixtures("session")
def test_whoever_has_lost_its_run_hands_nothing_on_but_starts_what_has_room(ways: list[bool]) -> None:
    first = first_of_two(ways)
    first.token += 1
    assert hand_on(first) is None
    assert ways[:2] == [False, True]
    assert TenantJob.objects.filter(state=State.RUNNING).count() == 1
    assert counters_match()


@pytest.mark.usefixtures("session")
def test_a_job_whose_row_is_deleted_as_it_starts_takes_no_slot(ways: list[bool]) -> None:
    row = tenant_queue()
    job = waiting_job(row)
    ways.clear()
    assert start(row, once("DELETE FROM tenant_slots_tenantjob WHERE id = %s", job)) is None
    assert ways == [False, True]
    assert fresh(row).current_job == 0


@pytest.mark.usefixtures("session")
def test_a_commit_that_is_refused_has_started_nothing() -> None:
    row = tenant_queue()
    waiting_job(row)
    with trigger("AFTER UPDATE", "CONSTRAINT", "DEFERRABLE INITIALLY DEFERRED", "RAISE EXCEPTION 'no'"):
        with pytest.raises(DatabaseError, match="no"):
            start(row)
        assert connections[app_settings.DATABASE].get_autocommit()
    assert TenantJob.objects.get().state == State.WAITING
    assert fresh(row).current_job == 0
    assert start(row), "the session goes on"
    assert counters_match()


@pytest.mark.usefixtures("session")
def test_the_project_may_have_a_trigger_that_writes_the_tenant_queue_of_a_job(
    step_by_step: set[str], ways: list[bool]
) -> None:
    row = tenant_queue(max_job=2)
    for _ in range(3):
        waiting_job(row)
    ways.clear()
    touch = "UPDATE tenant_slots_tenantqueue SET max_job_per_key = NULL WHERE id = NEW.tenant_queue_id"
    with trigger("BEFORE UPDATE", "", "", touch):
        first = start(row)
        assert first is not None
        assert step_by_step == {app_settings.DATABASE}
        assert hand_on(first)
    assert ways == [False, True, False], "it is learnt once"
    assert counters_match()


@contextmanager
def trigger(moment: str, kind: str, deferred: str, body: str) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE FUNCTION of_project() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NEW; END $$"
        )
        cursor.execute(
            f"CREATE {kind} TRIGGER of_project {moment} ON tenant_slots_tenantjob {deferred} "
            "FOR EACH ROW EXECUTE FUNCTION of_project()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER of_project ON tenant_slots_tenantjob; DROP FUNCTION of_project")


@pytest.mark.usefixtures("session")
def test_where_a_tenant_waits_for_tokens_when_it_has_one_is_asked_before_the_commit() -> None:
    row = tenant_queue(max_job=5)
    row.set_rate(1, per=timedelta(minutes=1))
    for _ in range(2):
        waiting_job(row)
    with sent() as found:
        admission = slots.admit_and_start(row.pk, row.queue, owner(), lambda job: None)
    assert admission.started is not None
    assert admission.wakes_in is not None
    assert 50 < admission.wakes_in <= 60
    assert found[-1] == "COMMIT"


@pytest.mark.usefixtures("session")
def test_nothing_is_committed_in_a_transaction_of_the_callers() -> None:
    row = tenant_queue()
    waiting_job(row)
    with transaction.atomic(using=app_settings.DATABASE):
        assert start(row)
        transaction.set_rollback(True, using=app_settings.DATABASE)
    assert TenantJob.objects.get().state == State.WAITING
    assert fresh(row).current_job == 0


@pytest.mark.usefixtures("session")
def test_control_what_is_not_as_expected_is_undone_in_the_middle() -> None:
    """The statement alone: the row that it has changed is as it was."""
    row = tenant_queue()
    job = waiting_job(row)
    taking = moves.counting(row, 0, 1)
    gone = moves.starting(TenantJob(pk=job.pk + 1), owner())
    with pytest.raises(NotAsExpected), locks.locked(row.pk):
        moves.at_once(*taking, gone, is_last=True)
    assert fresh(row).current_job == 0
    with locks.locked(row.pk):
        moves.at_once(*taking, moves.starting(job, owner()), is_last=True)
    assert (fresh(row).current_job, fresh(job).state) == (1, State.RUNNING)
