"""Whatever keeps the database from changing a row of one tenant holds up no other; what is about all of them does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import Error, OperationalError, ProgrammingError, connection, transaction
from django.utils import timezone
from django_rq import get_queue
from rq.exceptions import StopRequested

from tenant_slots import backlog, fair_order, putting_off, slots
from tenant_slots.db.transactions import DEADLOCK, LOCK_TIMEOUT, sqlstate
from tenant_slots.fair_order import Turn
from tenant_slots.interruptions import SweepTimeout
from tenant_slots.models import Kind, State, TenantJob, TenantQueue
from tenant_slots.refusals import is_of_one, is_refusal
from tenant_slots.repair import doctor
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.finding import Finding
from tenant_slots.running import recording
from tenant_slots.running.run import Run
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, kept
from tenant_slots.workers.kept import Ending
from tests.factories import (
    admit,
    age,
    another_process,
    counters_match,
    feed_turn,
    fresh,
    running_job,
    tenant_queue,
    waiting_job,
)
from tests.processes import wait_until
from tests.refusals import ERRORS, any_change_of, refused
from tests.repair.sweeps import sweep_now

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="the trigger is PostgreSQL's"),
]

QUEUE = "imports"


@contextmanager
def sql(do: str, undo: str) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(do)
        try:
            yield
        finally:
            cursor.execute(undo)


NO_RIGHTS = ("CREATE ROLE looks_on; SET ROLE looks_on", "RESET ROLE; DROP ROLE looks_on")
READS_ALONE = (f"{NO_RIGHTS[0]}; RESET ROLE; GRANT pg_read_all_data TO looks_on; SET ROLE looks_on", NO_RIGHTS[1])
TABLE = TenantJob._meta.db_table
NO_TABLE = (f"ALTER TABLE {TABLE} RENAME TO elsewhere", f"ALTER TABLE elsewhere RENAME TO {TABLE}")
NO_COLUMN = (f"ALTER TABLE {TABLE} RENAME attempt TO tries", f"ALTER TABLE {TABLE} RENAME tries TO attempt")
OF_ALL = {"no rights": NO_RIGHTS, "reads alone": READS_ALONE, "no table": NO_TABLE, "no column": NO_COLUMN}


def in_order() -> list[int]:
    return list(fair_order.known(QUEUE, list(TenantJob.objects.values_list("tenant_queue", flat=True))))


def turn_of(job: TenantJob) -> Turn:
    fair_order.offer(QUEUE, [(job.tenant_queue_id, 1)])
    turn = fair_order.next_turn(QUEUE, fair_order.new_feeder())
    assert turn is not None
    return turn


@pytest.mark.parametrize("as_error", ERRORS)
def test_a_tenant_whose_next_job_is_refused_loses_its_turn(as_error: str) -> None:
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    with refused(any_change_of(job), as_error):
        assert feed_turn(turn) == []
    assert in_order() == [], "the next sweep offers it again"
    assert get_queue(QUEUE).count == 0
    assert counters_match()


def admission_of(job: TenantJob) -> str:
    """A condition of `refused`: for a worker of any kind."""
    return f"{any_change_of(job)} AND NEW.state IN ('queued', 'running')"


def take_turn(turn: Turn, *, at_once: bool) -> None:
    """As a worker of ours does, or for one that is not."""
    Run("w").take(turn) if at_once else feed_turn(turn)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("as_error", ERRORS)
def test_a_job_whose_admission_is_refused_is_put_off_and_those_behind_it_have_their_turn(
    as_error: str, at_once: bool
) -> None:
    row = tenant_queue()
    job, behind = waiting_job(row), waiting_job(row)
    turn = turn_of(job)
    with refused(admission_of(job), as_error):
        take_turn(turn, at_once=at_once)
    job = fresh(job)
    assert (job.state, job.attempt, job.error) == (
        State.SCHEDULED,
        0,
        "the database refuses its admission: not this one",
    )
    assert 50 < (job.run_after - timezone.now()).total_seconds() <= 60
    assert fresh(behind).state == State.QUEUED
    assert counters_match()
    assert [(one.kind, one.job, one.meaning) for one in doctor.findings("backlog")] == [
        ("refused", str(job.uuid), job.error)
    ]
    age(job, run_after=1)
    assert sweep_now().promoted == 1, "it is tried again"


def test_the_time_that_a_worker_spends_on_refused_jobs_is_their_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, float]] = []
    monkeypatch.setattr(fair_order, "cost", lambda *cost: told.append(cost))
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    with refused(admission_of(job), ERRORS[0]):
        take_turn(turn, at_once=True)
    ((rq_queue, tenant_queue_id, seconds),) = told
    assert (rq_queue, tenant_queue_id) == ("imports", job.tenant_queue_id)
    assert seconds > 0


AT_COMMIT = """
    CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
    CREATE CONSTRAINT TRIGGER never AFTER UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN ({condition}) EXECUTE FUNCTION never();
"""


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("changes", "become"),
    [(admission_of, [State.SCHEDULED, State.QUEUED]), (any_change_of, [State.WAITING, State.WAITING])],
)
def test_so_is_one_that_is_refused_at_the_commit(
    changes: Callable[[TenantJob], str], become: list[State], at_once: bool
) -> None:
    """If it may be put off, else its tenant loses the turn."""
    row = tenant_queue()
    job, behind = waiting_job(row), waiting_job(row)
    turn = turn_of(job)
    undo = f"DROP TRIGGER never ON {TABLE}; DROP FUNCTION never();"
    with sql(AT_COMMIT.format(table=TABLE, condition=changes(job)), undo):
        take_turn(turn, at_once=at_once)
    assert [fresh(one).state for one in (job, behind)] == become
    assert counters_match()


@pytest.mark.parametrize(
    ("spoilt", "first", "most"),
    [
        ((0, 1), Kind.JOB, 4),
        ((1, 2), Kind.JOB, 4),
        ((1, 3), Kind.JOB, 4),
        ((1, 2), Kind.RESERVATION, 4),
        ((1, 2), Kind.RESERVATION, 1),
    ],
)
def test_of_several_that_are_admitted_together_the_refused_ones_alone_are_put_off(
    spoilt: tuple[int, int], first: Kind, most: int
) -> None:
    """A reservation is admitted together with the job behind it."""
    row = tenant_queue(max_job=4)
    jobs = [waiting_job(row, kind=first), *(waiting_job(row) for _ in range(4))]
    turn = turn_of(jobs[0])._replace(jobs=most)
    refused_ones = [jobs[number] for number in spoilt]
    with refused(f"{any_change_of(*refused_ones)} AND NEW.state = 'queued'"):
        feed_turn(turn)
        while fresh(jobs[4]).state == State.WAITING and in_order():
            feed_turn(turn_of(jobs[4]))
    assert {job for job in jobs if fresh(job).state == State.SCHEDULED} == set(refused_ones)
    assert {job.state for job in jobs} == {State.SCHEDULED, State.QUEUED}
    assert counters_match()


def test_many_that_are_refused_take_no_turn_for_themselves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each other they would come before all other tenants, who wait for the same workers."""
    monkeypatch.setattr(putting_off, "MOST_PUT_OFF", 2)
    row = tenant_queue()
    jobs = [waiting_job(row) for _ in range(5)]
    turn = turn_of(jobs[0])
    with refused("NEW.state = 'queued'"):
        feed_turn(turn)
        assert in_order() == []
        assert TenantJob.objects.scheduled().count() == 2
        sweep_now()
        assert TenantJob.objects.scheduled().count() == 4
    sweep_now()
    assert fresh(jobs[4]).state == State.QUEUED


@pytest.mark.parametrize("refusing", ["any change", "the tenant queue", "a reservation"])
def test_nobody_is_put_off_who_cannot_be_or_is_not_to_blame(refusing: str) -> None:
    is_reservation = refusing == "a reservation"
    job = waiting_job(tenant_queue(), kind=Kind.RESERVATION if is_reservation else Kind.JOB)
    turn = turn_of(job)
    of_row = refusing == "the tenant queue"
    condition = any_change_of(job) if refusing == "any change" else admission_of(job)
    with refused("NEW.current_job > 0", model=TenantQueue) if of_row else refused(condition):
        feed_turn(turn)
    assert (fresh(job).state, in_order()) == (State.WAITING, [])
    assert counters_match()


@pytest.mark.parametrize("seconds", [putting_off.SECONDS_TO_PUT_OFF, math.inf], ids=["a while", "control: for ever"])
def test_those_whose_refusal_takes_long_are_left_to_further_turns(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a trigger that is ended by a statement_timeout: the tenant queue is locked, and a worker waits."""
    ticks = count(step=0.4)
    row = tenant_queue()
    jobs = [waiting_job(row) for _ in range(6)]
    turn = turn_of(jobs[0])
    monkeypatch.setattr(putting_off, "SECONDS_TO_PUT_OFF", seconds)
    monkeypatch.setattr(putting_off, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    with refused("NEW.state = 'queued'", "query_canceled"):
        feed_turn(turn)
    assert TenantJob.objects.scheduled().count() == (2 if seconds < math.inf else 6)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*given: object, **named: object) -> None:
        raise error

    return fail


def test_nor_is_anybody_while_the_database_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    job = waiting_job(tenant_queue())
    monkeypatch.setattr(putting_off, "START", SimpleNamespace(update=raising(OperationalError("it is gone"))))
    with pytest.raises(OperationalError, match="it is gone"):
        putting_off.put_off_refused(job.tenant_queue_id, "imports")
    assert fresh(job).state == State.WAITING


def test_so_does_one_of_whose_rows_something_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    monkeypatch.setattr(backlog, "wakes_in", raising(ValueError("what is that?")))
    assert feed_turn(turn) == []
    assert (in_order(), fresh(job).state) == ([], State.WAITING)
    assert counters_match()


def hidden_by_an_error(row: TenantQueue | TenantJob) -> tuple[str, str]:
    """A policy of the project that fails for one row, whatever is done with it."""
    table = row._meta.db_table
    return (
        f"""
        CREATE ROLE lives_here; GRANT pg_read_all_data, pg_write_all_data TO lives_here;
        CREATE FUNCTION seen(bigint) RETURNS boolean LANGUAGE plpgsql
        AS $$ BEGIN IF $1 = {row.pk} THEN RAISE EXCEPTION 'not this one'; END IF; RETURN true; END $$;
        ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
        CREATE POLICY seen ON {table} USING (seen(id));
        SET ROLE lives_here
        """,
        f"""
        RESET ROLE; DROP ROLE lives_here;
        DROP POLICY seen ON {table}; DROP FUNCTION seen;
        ALTER TABLE {table} DISABLE ROW LEVEL SECURITY
        """,
    )


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("model", [TenantQueue, TenantJob])
def test_nor_does_one_hold_up_others_of_whose_rows_the_database_gives_none(
    model: type[TenantQueue | TenantJob], at_once: bool
) -> None:
    """Which of its jobs are refused cannot be asked either, and that is no outage of the database."""
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    with sql(*hidden_by_an_error(job.tenant_queue if model is TenantQueue else job)):
        take_turn(turn, at_once=at_once)
    assert (in_order(), fresh(job).state) == ([], State.WAITING)
    assert counters_match()


@pytest.mark.parametrize("error", [StopRequested(), SweepTimeout(), SystemExit()])
def test_what_ends_the_admission_from_outside_is_let_through(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = turn_of(waiting_job(tenant_queue()))
    monkeypatch.setattr(backlog, "wakes_in", raising(error))
    with pytest.raises(type(error)):
        feed_turn(turn)


def test_what_was_admitted_is_not_taken_for_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    monkeypatch.setattr(fair_order, "drop", raising(ValueError("what is that?")))
    with pytest.raises(ValueError, match="what is that"):
        feed_turn(turn)
    assert fresh(job).state == State.QUEUED


@pytest.mark.parametrize("kind", OF_ALL.values(), ids=OF_ALL)
def test_it_keeps_its_place_where_nobodys_jobs_can_be_admitted(kind: tuple[str, str]) -> None:
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    with sql(*kind), pytest.raises(ProgrammingError):
        feed_turn(turn)
    assert in_order() == [job.tenant_queue_id]


@pytest.mark.parametrize("as_error", ERRORS)
def test_a_job_whose_start_is_refused_fails_at_once(as_error: str) -> None:
    (job,) = admit(waiting_job(tenant_queue()).tenant_queue)
    run = Run("w")
    with refused(f"{any_change_of(job)} AND NEW.state = 'running'", as_error):
        assert not run.begin(job.uuid, job.attempt)
    job = fresh(job)
    assert (job.state, job.error) == (State.FAILED, "the database refuses its start: not this one")
    assert counters_match()


def test_one_that_may_not_fail_either_is_canceled() -> None:
    (job,) = admit(waiting_job(tenant_queue()).tenant_queue)
    with refused(f"{any_change_of(job)} AND NEW.state IN ('running', 'failed')"):
        assert not Run("w").begin(job.uuid, job.attempt)
    job = fresh(job)
    assert (job.state, job.error) == (State.CANCELED, "the database refuses its start: not this one")
    assert counters_match()


def test_a_start_that_is_canceled_once_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = admit(waiting_job(tenant_queue()).tenant_queue)
    start = slots.start

    def canceled_first(*given: Any) -> bool:
        monkeypatch.setattr(slots, "start", start)
        with refused(any_change_of(job), "query_canceled"):
            return start(*given)

    monkeypatch.setattr(slots, "start", canceled_first)
    assert Run("w").begin(job.uuid, job.attempt)
    assert fresh(job).state == State.RUNNING


def test_one_that_the_database_does_not_let_end_either_is_left_to_the_sweep() -> None:
    (job,) = admit(waiting_job(tenant_queue()).tenant_queue)
    with refused(any_change_of(job)):
        assert not Run("w").begin(job.uuid, job.attempt)
    assert fresh(job).state == State.QUEUED
    assert Run("w").begin(job.uuid, job.attempt), "as soon as the database takes it"


@pytest.mark.parametrize("as_error", ERRORS)
def test_an_end_that_is_refused_is_kept_and_holds_up_no_other(as_error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "BRIEFLY", (0.0,))
    spoilt, well = (running_job(tenant_queue(tenant), another_process()) for tenant in ("poisoned", "well"))
    outcome = {"state": State.FINISHED}
    with refused(any_change_of(spoilt), as_error):
        assert recording.record_end_briefly(spoilt, outcome, lambda: None) is None
        through = list(kept.settle(Ending((job.pk, job.token), outcome) for job in (spoilt, well)))
    assert through == [(well.pk, well.token)]
    assert (fresh(spoilt).state, fresh(well).state) == (State.RUNNING, State.FINISHED)


@pytest.mark.parametrize("kind", OF_ALL.values(), ids=OF_ALL)
def test_an_end_is_kept_also_where_nobodys_can_be_recorded(kind: tuple[str, str]) -> None:
    job = running_job(tenant_queue(), another_process())
    with sql(*kind):
        assert recording.record_end_briefly(job, {"state": State.FINISHED}, lambda: None) is None


@pytest.mark.parametrize("as_error", ERRORS)
def test_a_check_that_the_database_refuses_keeps_no_other_from_telling_what_it_finds(
    as_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = waiting_job(tenant_queue(current_job=1))

    def changes_it() -> Iterator[Finding]:
        TenantJob.objects.update(state=State.WAITING)
        yield from ()

    monkeypatch.setitem(doctor.CHECKS, "counters", (changes_it, *doctor.CHECKS["counters"]))
    with refused(any_change_of(job), as_error):
        assert [one.kind for one in doctor.findings("counters")] == ["check failed", "counter"]


def test_nobody_is_asked_about_a_session_that_is_lost() -> None:
    with pytest.raises(Error) as raised, connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert not is_refusal(raised.value)
    connection.close()


@contextmanager
def trigger(does: str) -> Iterator[None]:
    """Of the project, for each change of a job."""
    do = f"""
        CREATE FUNCTION does() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does}; RETURN NEW; END $$;
        CREATE TRIGGER does BEFORE UPDATE ON {TABLE} FOR EACH ROW EXECUTE FUNCTION does();
    """
    undo = f"DROP TRIGGER does ON {TABLE}; DROP FUNCTION does();"
    with connection.cursor() as cursor:
        cursor.execute(do)
    try:
        yield
    finally:
        connection.close()  # in whatever state the test has left it
        with connection.cursor() as cursor:
            cursor.execute(undo)


CHANGE = f"UPDATE {TABLE} SET priority = 1"  # noqa: S608 - a name of ours


def change_error(begin: str = "") -> Error:
    """What a change of a job meets."""
    return error_of(begin or "SELECT 1", CHANGE)


def error_of(*statements: str, before_last: Callable[[], object] = lambda: None) -> Error:
    """What the last one of these meets, in a transaction."""
    *before, last = statements
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            for statement in before:
                cursor.execute(statement)
            before_last()
            cursor.execute(last)
    except Error as error:
        return error
    pytest.fail("it has met no error")


MET_BY_SERVER = {"25001": "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "26000": "EXECUTE 'DEALLOCATE nothing'"}
"""SQLSTATEs of sessions, without a word of RAISE."""


@pytest.mark.parametrize("state", MET_BY_SERVER)
def test_what_the_server_itself_meets_in_a_trigger_is_about_its_row(state: str) -> None:
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    with trigger(MET_BY_SERVER[state]):
        error = change_error()
        assert sqlstate(error) == state
        assert is_refusal(error)
        feed_turn(turn)
        assert in_order() == [], "its tenant has lost the turn"
    assert fresh(job).state == State.WAITING


@pytest.mark.parametrize("state", MET_BY_SERVER)
def test_control_the_same_of_our_own_statement_is_about_all(state: str) -> None:
    waiting_job(tenant_queue())
    error = error_of("SELECT 1", MET_BY_SERVER[state].removeprefix("EXECUTE '").removesuffix("'"))
    assert sqlstate(error) == state
    assert not is_refusal(error)


DISK_IS_FULL = "COPY (SELECT 1) TO '/dev/full'"


def test_a_disk_that_a_trigger_finds_full_is_about_all_and_holds_nobody_up_meanwhile() -> None:
    """It may be full for this tenant alone, as memory for its locks may be: the next turn is another one's."""
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    with trigger(DISK_IS_FULL):
        error = change_error()
        assert sqlstate(error) == "53100"
        assert not is_refusal(error)
        assert is_of_one(error)
        feed_turn(turn)
    assert in_order() == []
    assert (fresh(job).state, fresh(job).error) == (State.WAITING, ""), "it is not put off"
    wait_until(lambda: fair_order.next_turn(QUEUE, fair_order.new_feeder()), timeout=10)


def test_control_a_session_that_has_ended_is_of_all() -> None:
    waiting_job(tenant_queue())
    with trigger(DISK_IS_FULL):
        error = change_error()
    assert is_of_one(error), "the control: it lives"
    connection.connection.close()
    assert not is_of_one(error)
    connection.close()


IS_AWAY = "RAISE EXCEPTION 'the server of the audit is away' USING ERRCODE = '08001'"


RECORDING: dict[str, Callable[[TenantJob, Contact], object]] = {
    "start": lambda job, contact: Run("w", on_outage=contact.broken).begin(job.uuid, job.attempt),
    "put back": lambda job, contact: recording.put_back(job, contact.broken),
    "end": lambda job, contact: recording.record_end_briefly(job, {"state": State.FINISHED}, contact.broken),
}


@pytest.mark.parametrize("what", RECORDING)
@pytest.mark.parametrize("does", [IS_AWAY, DISK_IS_FULL])
def test_what_a_trigger_keeps_from_being_recorded_breaks_no_contact(
    what: str, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a worker would give back no dead one's slot as long as that lasts."""
    monkeypatch.setattr(recording, "PAUSES", (0.01,) * recording.MOST_TRIES)
    job = waiting_job(tenant_queue())
    admit(job.tenant_queue)
    if what == "end":
        Run("w").begin(job.uuid, 1)
    contact, job = Contact(), fresh(job)
    with trigger(does):
        RECORDING[what](job, contact)
        assert contact.breaks == 0
        monkeypatch.setattr(connection, "is_usable", lambda: False)
        RECORDING[what](job, contact)
        assert contact.breaks > 0, "the control: the session is lost"


@pytest.mark.parametrize("worker_class", [TenantSimpleWorker, TenantPreforkWorker])
@pytest.mark.parametrize("does", [IS_AWAY, DISK_IS_FULL])
def test_what_a_trigger_keeps_a_worker_from_between_two_jobs_breaks_no_contact(
    worker_class: type[TenantSimpleWorker | TenantPreforkWorker], does: str
) -> None:
    waiting_job(tenant_queue())
    queue = get_queue(QUEUE)
    worker = worker_class([queue], connection=queue.connection)
    with trigger(does):
        with pytest.raises(Error), worker._database():
            TenantJob.objects.update(priority=1)
        assert worker.sweeper.contact.breaks == 0
    with pytest.raises(OperationalError), worker._database():
        raise OperationalError("the connection is closed")
    assert worker.sweeper.contact.breaks == 1, "the control: an outage"


def test_control_where_no_trigger_has_met_it_the_tenant_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    away = raising(OperationalError("the connection is closed"))
    monkeypatch.setattr(slots, "admit", away)
    with pytest.raises(OperationalError):
        feed_turn(turn)
    assert in_order() == [job.tenant_queue_id]


@pytest.fixture
def other() -> Iterator[Any]:
    """A session that is in the way of the trigger."""
    session = connection.copy()
    with session.cursor() as cursor:
        cursor.execute("SET deadlock_timeout = '1min'; SELECT pg_advisory_lock(2)")  # so that we hear of the deadlock
        yield cursor
    session.close()


WAITS = "PERFORM pg_advisory_xact_lock(2)"


def test_a_trigger_that_waits_for_others_in_vain_is_not_to_blame(other: Any) -> None:
    waiting_job(tenant_queue())
    with trigger(WAITS):
        error = change_error("SET LOCAL lock_timeout = '100ms'")
        assert sqlstate(error) == LOCK_TIMEOUT
        assert not is_refusal(error)


def test_nor_is_one_that_comes_into_a_deadlock(other: Any) -> None:
    waiting_job(tenant_queue())
    with trigger(WAITS), ThreadPoolExecutor(1) as aside:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(1)")
        waits = aside.submit(other.execute, "SELECT pg_advisory_lock(1)")
        wait_until(lambda: sql_value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
        error = change_error()
        assert sqlstate(error) == DEADLOCK
        assert not is_refusal(error)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock_all()")
        waits.result()


def test_nor_is_one_whose_strict_transaction_others_have_come_before(other: Any) -> None:
    waiting_job(tenant_queue())
    row = TenantQueue._meta.db_table
    with trigger(f"UPDATE {row} SET share = 3"):  # noqa: S608 - a name of ours
        error = error_of(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "SELECT 1",
            CHANGE,
            before_last=lambda: other.execute(f"UPDATE {row} SET share = 2"),  # noqa: S608 - the same
        )
    assert sqlstate(error) == "40001"
    assert not is_refusal(error)


def test_nobody_is_asked_about_a_session_that_ends_within_a_trigger() -> None:
    """The server stops while one is called: what is said of where that was blames no row."""
    waiting_job(tenant_queue())
    with trigger("PERFORM pg_terminate_backend(pg_backend_pid())"):
        error = change_error()
        assert sqlstate(error) in ("57P01", None), "older ones of psycopg do not tell"
        assert "does()" in str(error)
        assert not is_refusal(error)


def sql_value(statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]
