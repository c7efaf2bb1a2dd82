"""What a worker's own session has planned once: which statements, in which sessions, and what becomes of a loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from django.db import NotSupportedError, OperationalError, connection, connections, transaction

from tenant_slots import locks, slots, statements
from tenant_slots.backlog import asked_for
from tenant_slots.conf import app_settings
from tenant_slots.db import prepared, transactions
from tenant_slots.db.compiled import Statement
from tenant_slots.db.sessions import PrivateConnection
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.owners import Owner
from tenant_slots.refusals import is_refusal
from tests.factories import counters_match, fresh, owner, tenant_queue, waiting_job

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no sessions that keep statements"),
]

RUNS = 3 * prepared.USES


@pytest.fixture(autouse=True)
def _no_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "_losses", 0)


@contextmanager
def session(*, is_silent: bool = True) -> Iterator[None]:
    """One of a worker, which nobody else uses; as a control, one in which the project's code runs."""
    own = PrivateConnection(5, is_silent=is_silent)
    try:
        with own.used():
            yield
    finally:
        own.close()


def names() -> dict[str, str]:
    """The statements that the session of this thread has prepared, by name."""
    with connections[app_settings.DATABASE].cursor() as cursor:
        cursor.execute("SELECT name, statement FROM pg_prepared_statements")
        return dict(cursor.fetchall())


def execute(sql: str) -> list[Any]:
    with connections[app_settings.DATABASE].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def psycopg_parameters() -> dict[str, Any]:
    """Of a session that has nothing to do with Django."""
    own = ("cursor_factory", "context", "client_encoding", "prepare_threshold")
    return {name: value for name, value in connection.get_connection_params().items() if name not in own}


def plan_of(name: str, values: str) -> str:
    return "\n".join(line for (line,) in execute(f"EXPLAIN EXECUTE {name}({values})"))


def start_next(row: TenantQueue, who: Owner) -> TenantJob:
    started = slots.admit_and_start(row.pk, row.queue, who, lambda job: None).started
    assert started is not None
    started.token = who.token
    return started


def about_to_prepare(row: TenantQueue) -> None:
    """The next start is the use from which on its statements are prepared, and there are jobs for some more."""
    for _ in range(RUNS):
        waiting_job(row)
    for _ in range(prepared.USES - 1):
        start_next(row, owner())


def run_one(row: TenantQueue) -> None:
    waiting_job(row)
    assert slots.release(start_next(row, owner()), state=State.FINISHED)


def hand_on_all(row: TenantQueue, jobs: int) -> None:
    """Run so many jobs one after the other, each started by the release of the one before."""
    for _ in range(jobs):
        waiting_job(row)
    job = start_next(row, owner())
    for _ in range(jobs - 1):
        who = owner()
        released = slots.release_and_start(job, "", who, lambda job: None, state=State.FINISHED)
        assert released.admission is not None
        assert released.admission.started is not None
        job = released.admission.started
        job.token = who.token
    assert slots.release(job, state=State.FINISHED)


def test_what_every_job_needs_is_planned_once_for_a_session() -> None:
    row = tenant_queue()
    with session():
        for _ in range(RUNS):
            run_one(row)
        hand_on_all(row, RUNS)
        known = names()
        for _ in range(RUNS):
            run_one(row)
        assert names() == known
    assert {text.partition(" AS ")[2].split()[0] for text in known.values()} == {"SELECT", "WITH"}
    assert len(known) == 5, "lock, heads, take and start, release; and what hands a job on"
    assert counters_match()
    assert TenantJob.objects.filter(state=State.FINISHED).count() == 3 * RUNS


def test_a_session_that_lives_for_one_job_prepares_nothing() -> None:
    row = tenant_queue()
    with session():
        run_one(row)
        assert not names()


def test_control_nothing_is_prepared_where_the_code_of_the_project_runs() -> None:
    row = tenant_queue()
    with session(is_silent=False):
        for _ in range(RUNS):
            run_one(row)
        assert not names()
    for _ in range(RUNS):
        run_one(row)
    assert not names()


def test_nothing_is_prepared_behind_a_pooler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which says that another process of the server answers than does. Its sessions keep no setting of ours."""
    own = psycopg.ConnectionInfo.backend_pid
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda info: own.fget(info) + 1))  # type: ignore[attr-defined]
    row = tenant_queue()
    with session():
        for _ in range(RUNS):
            run_one(row)
        assert not names()
        assert execute("SHOW enable_seqscan") == [("on",)]


def all_prepared() -> Iterator[Statement]:
    for found in vars(statements).values():
        if isinstance(found, Statement) and found._is_prepared and found is not statements.GIVE_BACK_THEN:
            yield found  # but for that one, which is a part of another
    yield statements.first_waiting(2)
    for state in State:
        for later in (True, False):
            values = ("state", "result", "stats", "error", "failures", "crashes")
            yield statements.leaving((State.RUNNING,), state, later, not later, later, values)


def test_each_of_them_can_be_prepared() -> None:
    """PostgreSQL finds out by itself of which type its parameters are."""
    found = list(all_prepared())
    assert len(found) > 20
    with session(), transaction.atomic():
        for number, statement in enumerate(found):
            execute(f"PREPARE test_{number} AS {statement.compiled(app_settings.DATABASE).numbered}")
        assert len(names()) == len(found)


@pytest.fixture
def _prepared_while_empty() -> Iterator[TenantQueue]:
    """A worker's session, which has planned everything for an empty table, and knows that it is."""
    row = tenant_queue(max_job=1)
    with session():
        for _ in range(RUNS):
            run_one(row)
            TenantJob.objects.all().delete()
            execute("VACUUM ANALYZE tenant_slots_tenantjob")
        assert execute("SELECT pg_relation_size('tenant_slots_tenantjob')") == [(0,)]
        execute("DISCARD PLANS")
        for _ in range(RUNS):
            statements.first_waiting(2).rows(locks.AS_INDEXED, pk=row.pk, rq_queue="")
            statements.JOB.rows(uuid=None)
            statements.CLAIM.update(pk=1)
        yield row


def plans() -> str:
    with transaction.atomic():
        for setting in locks.AS_INDEXED:
            execute(setting)
        known = {text: name for name, text in names().items()}
        heads = next(name for text, name in known.items() if "LIMIT 2" in text)
        job = next(name for text, name in known.items() if '"uuid" = ' in text)
        claim = next(
            name for text, name in known.items() if "'waiting'" in text and "UPDATE" in text and "RETURNING" not in text
        )
        return "\n".join([plan_of(heads, "'', 1"), plan_of(job, "NULL"), plan_of(claim, "1")])


def test_a_plan_that_was_made_for_an_empty_table_is_good_for_a_full_one(_prepared_while_empty: TenantQueue) -> None:
    assert "Seq Scan" not in plans()
    assert "Sort" not in plans()


def test_control_such_a_plan_reads_the_whole_table(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(prepared, "BY_INDEX", "SELECT")
    request.getfixturevalue("_prepared_while_empty")
    assert "Seq Scan" in plans()


def lose_by_discarding() -> None:
    execute("DISCARD ALL")


def lose_by_migrating() -> None:
    """A column has another type by now, and comes back as another one."""
    with psycopg.connect(**psycopg_parameters()) as other:
        other.execute("ALTER TABLE tenant_slots_tenantqueue ALTER tenant TYPE varchar(400)")


@pytest.fixture
def _column_as_it_was() -> Iterator[None]:
    yield
    execute("ALTER TABLE tenant_slots_tenantqueue ALTER tenant TYPE varchar(255)")


@pytest.mark.usefixtures("_column_as_it_was")
@pytest.mark.parametrize("lose", [lose_by_discarding, lose_by_migrating])
def test_a_session_that_has_lost_them_is_told_from_a_row_that_is_refused(lose: Any) -> None:
    """And what was to be done is done when it is tried again, in the same session or in a new one."""
    row = tenant_queue(max_job=5)
    with session():
        for _ in range(RUNS):
            run_one(row)
        waiting_job(row)
        job = start_next(row, owner())
        lose()
        errors = []
        for _ in range(3):
            try:
                slots.release(job, state=State.FINISHED)
                waiting_job(row)
                start_next(row, owner())
            except OperationalError as error:
                errors.append(error)
        assert len(errors) == 1
        assert not is_refusal(errors[0])
        assert fresh(job).state == State.FINISHED
        assert counters_match()


def test_who_loses_them_again_and_again_prepares_no_more() -> None:
    """As behind a pooler that gives its clients the number of a process of the server."""
    row = tenant_queue()
    prepared_in = []
    for _ in range(prepared.MOST_LOSSES + 2):
        with session():
            for _ in range(RUNS):
                run_one(row)
            prepared_in.append(bool(names()))
            lose_by_discarding()
            waiting_job(row)
            with suppress(OperationalError):
                start_next(row, owner())
            for job in TenantJob.objects.filter(state=State.RUNNING):
                slots.release(job, state=State.FINISHED)
            TenantJob.objects.all().delete()
    assert prepared_in == [True] * prepared.MOST_LOSSES + [False] * 2


def test_what_a_rollback_takes_back_is_not_begun_in_a_transaction() -> None:
    """Where the use from which on a statement is prepared is the one that waits for a row, in vain."""
    row = tenant_queue(max_job=50)
    with session():
        about_to_prepare(row)
        with psycopg.connect(**psycopg_parameters()) as other, transactions.waiting_at_most(0.1):
            other.execute("SELECT 1 FROM tenant_slots_tenantqueue FOR UPDATE")
            with pytest.raises(TenantQueueLocked):
                start_next(row, owner())
        for _ in range(3):
            start_next(row, owner())
        assert names()
        assert execute("SHOW enable_seqscan") == [("off",)]


def test_to_prepare_a_statement_waits_for_no_migration() -> None:
    row = tenant_queue(max_job=50)
    with session():
        about_to_prepare(row)
        with psycopg.connect(**psycopg_parameters()) as other, transactions.waiting_at_most(0.2):
            other.execute("LOCK tenant_slots_tenantqueue, tenant_slots_tenantjob")
            for _ in range(3):
                with pytest.raises(TenantQueueLocked):
                    start_next(row, owner())
        start_next(row, owner())
        assert names()


def test_one_name_is_one_statement_in_all_sessions() -> None:
    """Behind a pooler that cannot be told from the server, a session may have what another one has prepared."""
    row = tenant_queue(max_job=50)
    known = []
    for statement, other in ((statements.TAKE, statements.GIVE_BACK), (statements.GIVE_BACK, statements.TAKE)):
        with session():
            for one in (statement, other):
                for _ in range(prepared.USES + 1):
                    one.update(pk=row.pk, slots=0)
            known.append({name: text.partition(" AS ")[2] for name, text in names().items()})
    assert known[0] == known[1]
    assert len(known[0]) == 2


def test_control_the_database_calls_it_something_that_it_cannot_do() -> None:
    row = tenant_queue()
    with session():
        execute(f"PREPARE one AS SELECT tenant FROM tenant_slots_tenantqueue WHERE id = {row.pk}")  # noqa: S608
        execute("EXECUTE one")
        lose_by_migrating()
        with pytest.raises(NotSupportedError) as raised:
            execute("EXECUTE one")
        assert is_refusal(raised.value)
    execute("ALTER TABLE tenant_slots_tenantqueue ALTER tenant TYPE varchar(255)")


def test_a_rule_that_came_later_is_no_loss() -> None:
    """The release is done step by step then, in this session too, which goes on with what it has prepared."""
    row = tenant_queue(max_job=5)
    with session():
        for _ in range(RUNS):
            run_one(row)
        execute(
            "CREATE RULE also AS ON UPDATE TO tenant_slots_tenantjob WHERE new.state = 'finished' "
            "DO ALSO INSERT INTO tenant_slots_keptchange SELECT * FROM tenant_slots_keptchange WHERE false"
        )
        try:
            run_one(row)
        finally:
            execute("DROP RULE also ON tenant_slots_tenantjob")
            locks._step_by_step.clear()
        assert names()
    assert counters_match()


def test_a_number_beyond_the_driver_s_guess_finds_its_row() -> None:
    """The type is that of the column: a primary key may be larger than most are."""
    row = tenant_queue()
    large = 2**40
    TenantJob.objects.filter(pk=waiting_job(row).pk).update(id=large)
    with session():
        for _ in range(RUNS):
            assert statements.CLAIM.update(pk=large + 1) == 0
        assert statements.CLAIM.update(pk=large) == 1


def test_the_question_sent_along_with_the_lock_is_prepared_too() -> None:
    row = tenant_queue()
    job = waiting_job(row)
    heads: list[Any] = []
    with session():
        for _ in range(RUNS):
            with locks.locked_and_asked(row.pk, *asked_for(row.pk, "")) as (locked, answers):
                heads.append((locked.pk, [head.pk for head in answers[0]]))
        assert len(names()) == 2
    assert heads == [(row.pk, [job.pk])] * RUNS
