"""A migration locks the table of jobs for longer than a lease: whoever cannot send heartbeats meanwhile is not dead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from django.db import connection, transaction

from tenant_slots.models import State, SweepClaim, TenantJob
from tests.factories import fresh, tenant_queue
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer
from tests.locks import kept_out
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer"),
]

MODES = pytest.mark.parametrize("mode", ["SHARE", "SHARE ROW EXCLUSIVE", "ACCESS EXCLUSIVE"])
CLASSES = pytest.mark.parametrize("worker_class", ["TenantPreforkWorker", "TenantWorker", "TenantSimpleWorker"])
SECONDS = 6
"""Three leases."""


def sweeps() -> int:
    return sum(SweepClaim.objects.values_list("sweeps", flat=True))


def wait_for_sweeps(number: int) -> None:
    before = sweeps()
    wait_until(lambda: sweeps() >= before + number, 60)


@MODES
@CLASSES
def test_i4_i11_nobody_is_killed_whose_heartbeats_a_lock_keeps_out(
    workers: FaultWorkers, observer: Observer, door: Path, mode: str, worker_class: str
) -> None:
    for tenant in ("one", "two"):
        tenant_queue(tenant, max_job=1)
    workers.start(2, worker_class=f"tenant_slots.workers.{worker_class}")
    workers.start(1, queues=("reports",), worker_class=f"tenant_slots.workers.{worker_class}")
    held = [jobs.hold.enqueue(tenant, tenant, observer.path, str(door)) for tenant in ("one", "two")]
    for tenant in ("one", "two"):
        observer.process_of(tenant)
    wait_for_sweeps(4)  # somebody has watched for a lease
    with kept_out(mode):
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > SECONDS)
    wait_for_sweeps(4)
    assert [(fresh(job).state, job.attempt, job.crashes, job.interruptions) for job in held] == [
        ("running", 1, 0, 0)
    ] * 2
    assert all(process.poll() is None for process in workers.processes)
    door.touch()
    wait_until(lambda: all(fresh(job).has_ended for job in held), 20)
    assert {job.state for job in held} == {State.FINISHED}


AUDIT = """
    CREATE TABLE audit (job bigint);
    CREATE FUNCTION write_audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO audit VALUES (NEW.id);
        IF EXISTS (SELECT FROM audit WHERE job = 0) THEN COPY (SELECT 1) TO '/dev/full'; END IF;
        RETURN NEW; END $$;
    CREATE TRIGGER write_audit {when} EXECUTE FUNCTION write_audit()"""

WHEN = {
    "of any": "BEFORE UPDATE ON tenant_slots_tenantjob FOR EACH ROW",
    "of what changes something": (
        "AFTER UPDATE ON tenant_slots_tenantjob FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*)"
    ),
}

NO_AUDIT = "DROP TRIGGER write_audit ON tenant_slots_tenantjob; DROP FUNCTION write_audit; DROP TABLE audit"


def sql(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


@contextmanager
def locked_audit() -> Iterator[None]:
    with transaction.atomic():
        sql("LOCK TABLE audit IN SHARE MODE")
        yield


@contextmanager
def full_disk() -> Iterator[None]:
    sql("INSERT INTO audit VALUES (0)")
    yield
    sql("DELETE FROM audit")


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("kept_out", [locked_audit, full_disk])
def test_i4_i11_nobody_is_killed_whose_heartbeats_a_trigger_keeps_out(
    workers: FaultWorkers,
    observer: Observer,
    door: Path,
    kept_out: Callable[[], AbstractContextManager[None]],
    when: str,
) -> None:
    """One worker is idle, and all that it asks is answered."""
    sql(AUDIT.format(when=WHEN[when]))
    try:
        tenant_queue("one", max_job=1)
        workers.start(2, worker_class="tenant_slots.workers.TenantPreforkWorker")
        held = jobs.hold.enqueue("one", "one", observer.path, str(door))
        observer.process_of("one")
        wait_for_sweeps(4)
        with kept_out():
            began = time.monotonic()
            wait_until(lambda: time.monotonic() - began > SECONDS)
        wait_for_sweeps(4)
        assert (fresh(held).state, held.attempt, held.crashes, held.interruptions) == ("running", 1, 0, 0)
        door.touch()
        wait_until(lambda: fresh(held).state == State.FINISHED, 20)
        workers.stop()
    finally:
        sql(NO_AUDIT)


SUPPRESS = (
    "CREATE TRIGGER suppress BEFORE UPDATE ON tenant_slots_tenantjob FOR EACH ROW"
    " EXECUTE FUNCTION suppress_redundant_updates_trigger()"
)
"""PostgreSQL's own: what changes nothing is not done."""


@pytest.mark.parametrize("suppresses", [True, False])
def test_control_i2_a_run_that_stands_still_is_ended_after_such_a_lock(
    workers: FaultWorkers, observer: Observer, door: Path, *, suppresses: bool
) -> None:
    if suppresses:
        sql(SUPPRESS)
    tenant_queue("one", max_job=1)
    workers.start(1, worker_class="tests.faults.workers.ElsewhereWorker")
    held = jobs.hold.enqueue("one", "one", observer.path, str(door))
    observer.process_of("one")
    workers.start(1, queues=("reports",), worker_class="tenant_slots.workers.TenantPreforkWorker")
    with kept_out("SHARE"):
        workers.kill(0)
    wait_until(lambda: fresh(held).interruptions == 1, 20)
    door.touch()
    workers.stop()
    sql("DROP TRIGGER IF EXISTS suppress ON tenant_slots_tenantjob")


WHALE_IS_REFUSED = """
    CREATE TABLE refused (nothing int);
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT FROM refused) AND {when} AND
            (SELECT tenant FROM tenant_slots_tenantqueue WHERE id = NEW.tenant_queue_id) = 'whale'
        THEN {fails}; END IF;
        RETURN NEW; END $$;
    CREATE TRIGGER refuse BEFORE UPDATE ON tenant_slots_tenantjob FOR EACH ROW EXECUTE FUNCTION refuse()"""

WHALE_IS_TAKEN = "DROP TRIGGER refuse ON tenant_slots_tenantjob; DROP FUNCTION refuse; DROP TABLE refused"


@pytest.mark.parametrize(
    "fails", ["COPY (SELECT 1) TO '/dev/full'", "RAISE EXCEPTION 'no'", pytest.param("PERFORM 1", id="control")]
)
def test_i2_a_dead_jobs_slot_comes_back_while_another_tenants_heartbeats_are_refused(
    workers: FaultWorkers, observer: Observer, door: Path, fails: str
) -> None:
    """They are no outage: who runs that job may judge others."""
    sql(WHALE_IS_REFUSED.format(when="TRUE", fails=fails))
    try:
        for tenant in ("acme", "whale"):
            tenant_queue(tenant, max_job=1)
        workers.start(1, worker_class="tests.faults.workers.ElsewhereWorker")
        lost = jobs.hold.enqueue("acme", "acme", observer.path, str(door))
        observer.process_of("acme")
        workers.start(1, worker_class="tenant_slots.workers.TenantPreforkWorker")
        held = jobs.hold.enqueue("whale", "whale", observer.path, str(door))
        observer.process_of("whale")
        wait_for_sweeps(4)
        sql("INSERT INTO refused VALUES (1)")
        wait_for_sweeps(2)
        workers.kill(0)
        wait_until(lambda: fresh(lost).interruptions == 1, 20, "nobody judges")
        sql("DELETE FROM refused")
        assert (fresh(held).state, held.attempt) == ("running", 1)
        door.touch()
        wait_until(lambda: fresh(held).has_ended, 20)
        workers.stop()
    finally:
        sql(WHALE_IS_TAKEN)


IS_AWAY = "RAISE EXCEPTION 'could not connect to server \"audit\"' USING ERRCODE = '08001'"
"""As postgres_fdw and dblink pass it on."""


@pytest.mark.parametrize("worker_class", ["TenantPreforkWorker", "TenantSimpleWorker"])
@pytest.mark.parametrize(
    ("when", "fails"),
    [
        ("running", IS_AWAY),
        ("finished", IS_AWAY),
        ("finished", "COPY (SELECT 1) TO '/dev/full'"),
        pytest.param("finished", "PERFORM 1", id="control"),
    ],
)
def test_i2_a_dead_jobs_slot_comes_back_while_starts_or_ends_of_another_tenant_are_refused(
    workers: FaultWorkers, observer: Observer, door: Path, when: str, fails: str, worker_class: str
) -> None:
    """They are no outage either."""
    sql(WHALE_IS_REFUSED.format(when=f"NEW.state = '{when}'", fails=fails))
    try:
        tenant_queue("acme", max_job=1)
        tenant_queue("whale", max_job=1000)
        observer.promise = 1000
        workers.start(1, worker_class="tests.faults.workers.ElsewhereWorker")
        lost = jobs.hold.enqueue("acme", "acme", observer.path, str(door))
        observer.process_of("acme")
        workers.start(1, worker_class=f"tenant_slots.workers.{worker_class}")
        wait_for_sweeps(4)
        sql("INSERT INTO refused VALUES (1)")
        workers.kill(0)
        began, number = time.monotonic(), 0

        def is_judged_while_the_whale_goes_on() -> bool:
            nonlocal number
            if time.monotonic() >= began + number:  # twice in a lease
                number += 1
                jobs.quick.enqueue("whale", f"whale-{number}", observer.path)
            return fresh(lost).interruptions == 1

        wait_until(is_judged_while_the_whale_goes_on, 20, "nobody judges")
        sql("DELETE FROM refused")
        door.touch()
        wait_until(lambda: not TenantJob.objects.holding().exists(), 30)
        workers.stop()
    finally:
        sql(WHALE_IS_TAKEN)
