"""Projects set what their policies or their path need in every session, by a receiver of `connection_created`.

No receiver is called for the sessions in which a worker keeps its books, and they see the same all the same.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import rq
from django.db import DatabaseError, DataError, OperationalError, connection
from django.db.backends.signals import connection_created

from tenant_slots import tenant_job
from tenant_slots.db import session_settings
from tenant_slots.db.leftovers import note_sessions
from tenant_slots.db.sessions import private_connection, settings_of_project
from tenant_slots.models import State
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tests.factories import fresh
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.servers import Postgres
from tests.processes import test_database_url as database_url
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about sessions of PostgreSQL"),
]

TABLES = ("tenant_slots_tenantjob", "tenant_slots_tenantqueue")


def allow(connection: Any, **_: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config(%s, %s, false)", ["app.sees_all", "yes"])


def allow_in_another_way(**_: Any) -> None:
    """Where Django finds the connection, behind a comment, among other columns, and one after the other."""
    with connection.cursor() as cursor:
        with suppress(DatabaseError):
            cursor.execute("SET setting_of_a_later_version = '60s'")
        cursor.execute("/* app */ -- of ours\nSET app.one = 'a'")
        cursor.execute("SELECT 1, set_config('app.two', 'b', false)")
        cursor.execute(b"SET app.four = 'd'")
        cursor.executemany("SELECT set_config(%s, %s, false)", [["app.three", "c"], ["app.sees_all", "yes"]])


def allow_when_asked_again(connection: Any, **_: Any) -> None:
    """As one that asks for a secret elsewhere, and gets no answer twice."""
    asked = Path(os.environ["ASKED_FOR_SECRET"])
    with asked.open("a") as file:
        file.write(".")
    if len(asked.read_text()) <= 2:
        raise RuntimeError("503 Service Unavailable")
    allow(connection)


def own_path(connection: Any, **_: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET search_path = own, public")


def hang(**_: Any) -> None:
    time.sleep(3600)


def with_receiver(receiver: Callable[..., None], worker_class: Any) -> Any:
    class Connected(worker_class):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            connection_created.connect(receiver)
            super().__init__(*args, **kwargs)

    return Connected


AllowedStock = with_receiver(allow, rq.Worker)
AllowedWorker = with_receiver(allow, TenantWorker)
AllowedPreforkWorker = with_receiver(allow, TenantPreforkWorker)
AllowedSimpleWorker = with_receiver(allow, TenantSimpleWorker)
AllowedInAnotherWay = with_receiver(allow_in_another_way, TenantPreforkWorker)
SimpleAllowedInAnotherWay = with_receiver(allow_in_another_way, TenantSimpleWorker)
AllowedWhenAskedAgain = with_receiver(allow_when_asked_again, TenantPreforkWorker)
SimpleAllowedWhenAskedAgain = with_receiver(allow_when_asked_again, TenantSimpleWorker)
StockOnOwnPath = with_receiver(own_path, rq.Worker)
WorkerOnOwnPath = with_receiver(own_path, TenantWorker)
PreforkWorkerOnOwnPath = with_receiver(own_path, TenantPreforkWorker)
HangingWorker = with_receiver(hang, TenantWorker)
HangingPreforkWorker = with_receiver(hang, TenantPreforkWorker)


@tenant_job("imports", tenant="tenant")
def takes(tenant: str, seconds: float) -> None:
    time.sleep(seconds)


def sql(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def _policy(workers: FaultWorkers) -> Iterator[None]:
    """Workers connect as a role that sees rows in sessions with a setting only. Roles are of all databases."""
    role = f"app_{os.getpid()}"
    sql(
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA public TO {role}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
    )
    for table in TABLES:
        sql(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        sql(f"CREATE POLICY mine ON {table} USING (current_setting('app.sees_all', true) = 'yes')")
    workers.variables["DATABASE_URL"] = re.sub(r"://[^@/]*@", f"://{role}@", database_url())
    yield
    workers.stop()
    for table in TABLES:
        sql(f"DROP POLICY mine ON {table}", f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    sql(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.usefixtures("_policy")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("AllowedStock", id="control: RQ's worker"),
        "AllowedWorker",
        "AllowedPreforkWorker",
        "AllowedSimpleWorker",
        "AllowedInAnotherWay",
        "SimpleAllowedInAnotherWay",
        "AllowedWhenAskedAgain",
        "SimpleAllowedWhenAskedAgain",
    ],
)
def test_i7_i11_a_policy_that_shows_rows_to_sessions_of_the_project(
    workers: FaultWorkers, tmp_path: Path, name: str
) -> None:
    """The worker's own saw no row of the job that it ran: it took its lease for lost, and killed it."""
    workers.variables["ASKED_FOR_SECRET"] = str(tmp_path / "asked")
    workers.start(1, worker_class=f"tests.faults.test_session_settings.{name}")
    job = takes.enqueue("acme", 4)
    wait_until(lambda: fresh(job).has_ended, 25)
    assert (job.state, job.attempt, job.crashes, job.error) == (State.FINISHED, 1, 0, "")


@pytest.fixture
def _schema(workers: FaultWorkers) -> Iterator[None]:
    """Our tables are in a schema that sessions of the project have on their path."""

    def move(old: str, new: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA IF NOT EXISTS own")
            cursor.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename ~ '^tenant_slots'", [old]
            )
            for (table,) in cursor.fetchall():
                cursor.execute(f'ALTER TABLE "{old}"."{table}" SET SCHEMA "{new}"')

    move("public", "own")
    own_path(connection)
    connection_created.connect(own_path)
    yield
    workers.stop()
    connection_created.disconnect(own_path)
    move("own", "public")
    connection.close()


@pytest.mark.usefixtures("_schema")
@pytest.mark.parametrize(
    "name",
    [pytest.param("StockOnOwnPath", id="control: RQ's worker"), "WorkerOnOwnPath", "PreforkWorkerOnOwnPath"],
)
def test_a_worker_finds_tables_on_the_path_that_the_project_sets(workers: FaultWorkers, name: str) -> None:
    (worker,) = workers.start(1, worker_class=f"tests.faults.test_session_settings.{name}")
    job = takes.enqueue("acme", 0)
    wait_until(lambda: fresh(job).has_ended or worker.poll() is not None, 25)
    assert (job.state, worker.poll()) == (State.FINISHED, None)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What it executes in each new session."""
    monkeypatch.setattr(session_settings, "_known", None)
    statements: list[str] = []

    def execute(connection: Any, **_: Any) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    connection_created.connect(execute, weak=False)
    yield statements
    connection_created.disconnect(execute)


def test_settings_are_made_again_and_nothing_else(receiver: list[str]) -> None:
    kept = [
        "SET app.one = 'a'",
        "set session app.two = 'b'",
        "WITH wanted AS (SELECT 'app.three' AS name) SELECT set_config(name, 'c', false) FROM wanted",
        "VALUES (set_config('app.four', 'd', false))",
        "RESET statement_timeout; -- of a role\n /* or more */ SET app.five = 'e'",
        "SELECT 1; SELECT set_config('app.six', 'f', false)",
    ]
    receiver += [
        *kept,
        "SELECT 1",
        "SET LOCAL app.four = 'x'",
        "SELECT 2; SET LOCAL app.five = 'x'",
        "CREATE TEMPORARY TABLE own_table (id int)",
    ]
    made = settings_of_project(5)
    assert made == kept
    session_settings.learn(made)
    with private_connection(5, is_silent=True), connection.cursor() as cursor:
        names = ("one", "two", "three", "four", "five", "six")
        cursor.execute("SELECT " + ", ".join(f"current_setting('app.{name}')" for name in names))
        assert cursor.fetchone() == ("a", "b", "c", "d", "e", "f")


@pytest.mark.parametrize("statement", ["SELECT 1", "SET app.one = 'a'"])
def test_many_comments_before_a_statement_are_read_at_once(statement: str) -> None:
    """In twice the time for each further one, thirty would take hours."""
    began = time.process_time()
    sets = session_settings.SETS.search("/* a line of a header */\n" * 22 + statement)
    assert bool(sets) == statement.startswith("SET")
    assert time.process_time() - began < 0.5


def test_a_session_of_our_own_is_not_begun_before_they_are_known(
    receiver: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who needs one asks: the worker may wait in the midst of a job's start until the database is back."""
    answers = [None, ["SET app.one = 'a'"]]
    monkeypatch.setattr(session_settings, "_ask", lambda: answers.pop(0))
    with private_connection(5, is_silent=True):
        with pytest.raises(OperationalError, match="not known yet"):
            sql("SELECT 1")
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('app.one')")
            assert cursor.fetchone() == ("a",)
    assert answers == []


def test_a_session_in_which_they_cannot_be_made_is_not_used(receiver: list[str]) -> None:
    session_settings.learn(["SET statement_timeout = 'nonsense'"])
    with private_connection(5, is_silent=True):
        for _ in range(2):
            with pytest.raises(DataError):
                sql("SELECT 1")


def test_our_own_receiver_sets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has run a job would have to ask somebody for what nobody has set."""
    monkeypatch.setattr(session_settings, "_known", None)
    monkeypatch.setattr(session_settings, "_ask", lambda: None)
    monkeypatch.setattr(connection_created, "receivers", [])
    note_sessions()
    assert connection_created.receivers, "the control: it is there"
    assert session_settings.ensure_known()


def test_what_a_job_connects_later_is_no_setting_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker would wait for ever to learn of it."""
    monkeypatch.setattr(session_settings, "_known", None)
    monkeypatch.setattr(connection_created, "receivers", [])
    assert session_settings.ensure_known()
    connection_created.connect(allow)
    try:
        assert session_settings.ensure_known()
    finally:
        connection_created.disconnect(allow)


@pytest.mark.parametrize("name", ["AllowedWorker", "AllowedPreforkWorker", "AllowedSimpleWorker"])
def test_i8_a_worker_that_begins_while_the_database_is_away_runs_jobs_once_it_is_back(
    postgres: Postgres, workers: FaultWorkers, name: str
) -> None:
    """It asked once before it looked for jobs, and never again."""
    postgres.proxy.cut()
    workers.start(1, worker_class=f"tests.faults.test_session_settings.{name}")
    postgres.proxy.heal()
    job = takes.enqueue("acme", SHORT["LEASE_TTL"] + 1)
    wait_until(lambda: fresh(job).has_ended, 25)
    assert (job.state, job.attempt, job.crashes, job.interruptions) == (State.FINISHED, 1, 0, 0)


@pytest.mark.parametrize("name", ["HangingWorker", "HangingPreforkWorker"])
def test_i8_a_receiver_that_hangs_does_not_keep_a_worker_from_its_jobs(workers: FaultWorkers, name: str) -> None:
    workers.start(1, worker_class=f"tests.faults.test_session_settings.{name}")
    job = takes.enqueue("acme", 0)
    wait_until(lambda: fresh(job).state == State.FINISHED, 25)
