"""A trigger of the project fails for one tenant as servers fail that are away: others do not wait for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import django_rq
import pytest
from django.db import connection
from rq import Worker
from rq.worker import WorkerStatus

from tenant_slots.models import State
from tests import jobs
from tests.factories import fresh, tenant_queue
from tests.faults.conftest import FaultWorkers
from tests.history import History
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about triggers of PostgreSQL"),
]

CLASSES = pytest.mark.parametrize(
    "worker_class", ["tenant_slots.workers.TenantPreforkWorker", "tenant_slots.workers.TenantWorker"]
)

ASKED = {
    sqlstate: f"RAISE EXCEPTION 'could not connect to server \"shard_7\"' USING ERRCODE = '{sqlstate}'"
    for sqlstate in ("08001", "25006", "53100", "57P03", "P0001")
}
"""As postgres_fdw and dblink pass it on: it is away, takes no writes, has no room, or begins only now."""

FAILS = pytest.mark.parametrize(
    "fails",
    [
        *(pytest.param(ASKED[sqlstate], id=sqlstate) for sqlstate in list(ASKED)[:-1]),
        pytest.param("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", id="25001 of our own server"),
        pytest.param("COPY (SELECT 1) TO '/dev/full'", id="53100 of our own server"),
        pytest.param(ASKED["P0001"], id="control: of a function"),
    ],
)


@pytest.fixture
def refuse_whale(transactional_db: None) -> Iterator[Callable[[str, str], None]]:
    """What is refused, as a condition, and how."""

    def refuse(condition: str, fails: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"""
                CREATE FUNCTION ask_shard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    IF {condition} AND (
                        SELECT tenant FROM tenant_slots_tenantqueue WHERE id = NEW.tenant_queue_id) = 'whale'
                    THEN {fails}; END IF;
                    RETURN NEW; END $$;
                CREATE TRIGGER ask_shard BEFORE UPDATE ON tenant_slots_tenantjob
                    FOR EACH ROW EXECUTE FUNCTION ask_shard()""")  # noqa: S608 - of this test

    yield refuse
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER ask_shard ON tenant_slots_tenantjob; DROP FUNCTION ask_shard")


@CLASSES
@FAILS
def test_i8_others_run_while_a_tenants_jobs_cannot_be_admitted(
    workers: FaultWorkers,
    history: History,
    refuse_whale: Callable[[str, str], None],
    fails: str,
    worker_class: str,
) -> None:
    """Taken for an outage of our own database, it left its tenant first in the order, and the worker asked again.

    Or it was due again when the worker had waited for the database to be back.
    """
    refuse_whale("NEW.state IN ('queued', 'running')", fails)
    for tenant in ("whale", "acme"):
        tenant_queue(tenant, max_job=2)
    jobs.record.enqueue("whale", "whale", history.path)
    others = [jobs.record.enqueue("acme", f"{nth}", history.path, 0.2) for nth in range(8)]
    workers.start(1, worker_class=worker_class)
    wait_until(lambda: all(fresh(job).state == State.FINISHED for job in others), 20, "others wait for the whale")


@FAILS
@pytest.mark.parametrize("worker_class", ["tenant_slots.workers.TenantPreforkWorker", "rq.Worker"])
def test_i8_others_run_while_a_tenants_job_cannot_be_started(
    workers: FaultWorkers,
    history: History,
    refuse_whale: Callable[[str, str], None],
    fails: str,
    worker_class: str,
) -> None:
    """An idle worker finds it in RQ's list."""
    refuse_whale("NEW.state = 'running'", fails)
    for tenant in ("whale", "acme"):
        tenant_queue(tenant, max_job=1)
    workers.start(1, worker_class=worker_class)
    redis = django_rq.get_connection("imports")
    wait_until(lambda: [one.get_state() for one in Worker.all(connection=redis)] == [WorkerStatus.IDLE])
    jobs.record.enqueue("whale", "whale", history.path)
    wait_until(lambda: not django_rq.get_queue("imports").job_ids, message="nobody takes it")
    other = jobs.record.enqueue("acme", "acme", history.path)
    wait_until(lambda: fresh(other).state == State.FINISHED, 10, "it waits for the whale")


@pytest.mark.parametrize("worker_class", ["tenant_slots.workers.TenantPreforkWorker", "rq.Worker"])
def test_i8_others_run_while_a_disk_is_full_for_a_tenants_plain_rq_job(
    workers: FaultWorkers,
    history: History,
    refuse_whale: Callable[[str, str], None],
    worker_class: str,
) -> None:
    refuse_whale("NEW.state = 'queued'", "COPY (SELECT 1) TO '/dev/full'")
    for tenant in ("whale", "acme"):
        tenant_queue(tenant, max_job=1)
    imports = django_rq.get_queue("imports")
    imports.enqueue(jobs.record, "whale", "whale", history.path)
    workers.start(1, worker_class=worker_class)
    wait_until(lambda: not imports.job_ids, message="nobody takes it")
    other = jobs.record.enqueue("acme", "acme", history.path)
    wait_until(lambda: fresh(other).state == State.FINISHED, 15, "it waits for the whale")


SPACE = """
    CREATE TABLE disk (path text); INSERT INTO disk VALUES ('/dev/full'); CREATE SEQUENCE tries;
    CREATE FUNCTION write_audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM nextval('tries');
        EXECUTE format('COPY (SELECT 1) TO %L', (SELECT path FROM disk));
        RETURN NEW; END $$;
    CREATE TRIGGER write_audit BEFORE UPDATE ON tenant_slots_tenantjob
        FOR EACH ROW WHEN (NEW.state = '{state}') EXECUTE FUNCTION write_audit()"""

NO_SPACE = """
    DROP TRIGGER write_audit ON tenant_slots_tenantjob;
    DROP FUNCTION write_audit; DROP SEQUENCE tries; DROP TABLE disk"""

TRIES = 8
"""More than a refusal gets."""


def sql(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


def tries() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM tries")
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("state", ["running", "finished"])
@pytest.mark.parametrize("worker_class", ["tenant_slots.workers.TenantPreforkWorker", "rq.Worker"])
def test_i3_a_disk_that_is_full_for_a_while_fails_no_job(
    workers: FaultWorkers, history: History, worker_class: str, state: str
) -> None:
    sql(SPACE.format(state=state))
    try:
        done = [jobs.record.enqueue(tenant, tenant, history.path) for tenant in "abc"]
        workers.start(2, worker_class=worker_class)
        if worker_class == "rq.Worker":
            workers.processes.append(workers.start_sweeper())
        wait_until(lambda: tries() >= TRIES, 30, "nobody tries again")
        sql("UPDATE disk SET path = '/dev/null'")
        wait_until(lambda: all(fresh(job).has_ended for job in done), 30, "they are not run when there is room again")
    finally:
        sql(NO_SPACE)
    assert {(fresh(job).state, fresh(job).attempt, fresh(job).crashes) for job in done} == {(State.FINISHED, 1, 0)}


@CLASSES
@FAILS
def test_i2_i8_a_dead_jobs_slot_comes_back_behind_an_end_that_is_kept(
    workers: FaultWorkers,
    history: History,
    refuse_whale: Callable[[str, str], None],
    fails: str,
    worker_class: str,
) -> None:
    refuse_whale("NEW.state NOT IN ('waiting', 'queued', 'running')", fails)
    for tenant in ("whale", "acme"):
        tenant_queue(tenant, max_job=1)
    workers.start(1, worker_class=worker_class)
    jobs.record.enqueue("whale", "whale", history.path)
    wait_until(lambda: "whale" in [event.tenant for event in history.events() if event.kind == "end"])
    dead = jobs.kill_self.enqueue("acme", history.path, 0.0)
    wait_until(lambda: history.started("acme"), 20)
    wait_until(lambda: fresh(dead).crashes, 12, "the slot of a job whose process died is not given back")
