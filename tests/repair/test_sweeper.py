"""The sweep repairs what is broken and touches nothing else."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import django_rq
import psycopg
import pytest
from django.conf import settings
from django.db import DatabaseError, OperationalError, connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from tenant_slots import fair_order, owners, queue_directory, redis_servers, signals, slots
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.db.clock import in_seconds
from tenant_slots.interruptions import SweepTimeout
from tenant_slots.models import State, SweepClaim, TenantJob, TenantQueue
from tenant_slots.releases import Admission
from tenant_slots.repair import claims, findings, steps, sweeper
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.repair.sweeper import Sweeper
from tenant_slots.running.run import Run
from tenant_slots.workers import TenantPreforkWorker, TenantWorker
from tests.factories import admit, age, another_process, fresh, owner, running_job, tenant_queue, waiting_job
from tests.processes import test_database_url as database_url
from tests.processes import wait_until
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.usefixtures("within_one_minute")
def test_a_healthy_system_is_left_alone_and_no_row_is_locked() -> None:
    row = tenant_queue(max_job=1)
    running_job(row, another_process())
    waiting_job(row)
    contact = Contact()
    sweep_now(contact)
    with CaptureQueriesContext(connection) as queries:
        assert not sweep_now(contact)
    statements = [query["sql"] for query in queries][1:]  # the first one ends the claim of the sweep before
    assert not [sql for sql in statements if "FOR NO KEY UPDATE" in sql]
    assert not [sql for sql in statements if sql.startswith("UPDATE") and "sweepclaim" not in sql]
    assert len(statements) <= 20, statements


def test_after_an_outage_no_owner_is_stale_before_it_could_have_sent_a_heartbeat() -> None:
    row = tenant_queue()
    job = running_job(row, owner("far", host="elsewhere"))
    age(job, beat_at=3600)
    assert sweep_now(Contact()).reclaimed == 0
    assert fresh(job).state == State.RUNNING


def test_contact_counts_from_the_last_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(sweeper.time, "monotonic", lambda: now)
    contact = Contact()
    for _ in range(4):
        now += 5
        contact.kept()
    assert contact.covers_a_lease()
    contact.broken()
    assert not contact.covers_a_lease()
    now += 60
    contact.kept()
    assert not contact.covers_a_lease(), "a sweeper that was stopped has not watched"


def test_a_tenant_that_is_deleted_during_a_sweep_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (tenant_queue(f"tenant {number}") for number in range(3))
    left = [waiting_job(row) for row in (first, third)]
    gone, original = waiting_job(second), slots.admit

    def delete_then_admit(*turn: Any) -> Admission:
        monkeypatch.setattr(slots, "admit", original)
        gone.cancel()
        second.delete()
        return original(*turn)

    monkeypatch.setattr(slots, "admit", delete_then_admit)
    assert sweep_now().admitted == 2
    assert {fresh(job).state for job in left} == {State.QUEUED}


def test_one_sweep_at_a_time() -> None:
    first, second = Sweeper("first"), Sweeper("second")
    assert first.sweep() is not None
    assert second.sweep() is None


@pytest.mark.parametrize(("seconds", "left"), [(0, 4), (2, 2), (3.9, 1)])
def test_the_next_sweep_does_not_come_later_because_one_was_long(
    seconds: float, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interval is 5 s: a worker that asks 5 s after its last sweep began must not be refused."""

    monotonic = sweeper.time.monotonic

    def long(*_: Any) -> None:
        SweepClaim.objects.update(until=in_seconds(4 - seconds))
        monkeypatch.setattr(sweeper.time, "monotonic", lambda: monotonic() + seconds)

    monkeypatch.setattr(steps, "STEPS", (long,))
    Sweeper("first").sweep()
    claim = SweepClaim.objects.get(name="everywhere")
    assert left - 0.5 < (claim.until - clock.now()).total_seconds() < left + 0.5


def test_the_claim_of_a_sweeper_that_died_runs_out() -> None:
    SweepClaim.objects.create(name="everywhere", sweeper="dead", until=in_seconds(-1))
    assert Sweeper("heir").sweep() is not None


def test_a_sweep_that_fails_does_not_stop_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        monkeypatch.setattr(connection, "is_usable", lambda: False)  # SQLite's always is
        raise DatabaseError("gone")

    monkeypatch.setattr(steps, "STEPS", (broken,))
    assert Sweeper("worker").sweep_if_due() is None


@pytest.mark.parametrize(("database_is_away", "breaks"), [(False, 0), pytest.param(True, 1, id="control")])
def test_a_sweep_that_took_too_long_for_another_reason_than_the_database_breaks_no_contact(
    database_is_away: bool, breaks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a Redis that stands still, or a callable of the project, would keep all that is stale from being reclaimed."""

    def too_long(report: Report, contact: Contact) -> None:
        if database_is_away:
            monkeypatch.setattr(slots, "beat", raises(OperationalError("no answer")))
        raise SweepTimeout

    monkeypatch.setattr(steps, "STEPS", (too_long,))
    one = Sweeper("test")
    assert one.sweep_if_due() is None
    assert one.contact.breaks == breaks


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no locks of tables")
def test_one_that_was_cut_off_behind_a_lock_of_the_whole_table_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock answers all the same. No heartbeat does, so that a healthy run was taken for lost, and ran twice."""

    def too_long(report: Report, contact: Contact) -> None:
        raise SweepTimeout

    monkeypatch.setattr(steps, "STEPS", (too_long,))
    one = Sweeper("test")
    with psycopg.connect(database_url()) as migration:
        migration.execute("LOCK TABLE tenant_slots_tenantjob IN ACCESS EXCLUSIVE MODE")
        assert one.sweep_if_due() is None
        migration.rollback()
    assert one.contact.breaks == 1


def raises(error: Exception) -> Callable[..., Any]:
    def function(*_: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize("is_last", [False, pytest.param(True, id="control")])
def test_counters_are_repaired_before_a_sweep_asks_what_may_take_too_long(
    is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_long(*_: object) -> None:
        raise SweepTimeout

    monkeypatch.setattr(fair_order, "charge", too_long)
    if is_last:
        others = [step for step in steps.STEPS if step is not steps.repair_counters]
        monkeypatch.setattr(steps, "STEPS", (*others, steps.repair_counters))
    row = TenantQueue.objects.create(tenant="acme", queue="imports", max_job=1, current_job=1)
    Sweeper("test").sweep_if_due()
    row.refresh_from_db()
    assert row.current_job == is_last


@pytest.mark.parametrize("kind", [TenantPreforkWorker, TenantWorker])
def test_what_a_sweep_aside_has_learnt_of_servers_is_known_to_the_next_one(
    kind: type[TenantPreforkWorker] | type[TenantWorker],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        url = f"redis://127.0.0.1:{frozen.getsockname()[1]}/0"
        with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "reports": {"URL": url}}):
            server = redis_servers.server_of(queue_directory.queue_named("reports").connection)
            worker = kind([django_rq.get_queue("imports")])
            worker.sweep()
            worker._note_swept(app_settings.LEASE_TTL)
            assert list(worker._absences) == [server]
            assert worker._absences[server].pause > app_settings.SWEEP_INTERVAL
            assert redis_servers.absences() == {}, "who pushes there does not wait for so long until it tries again"


def test_a_sweep_that_repaired_something_says_so() -> None:
    reports: list[Report] = []

    def receive(report: Report, **_: Any) -> None:
        reports.append(report)

    signals.swept.connect(receive)
    try:
        sweep_now()
        waiting_job(tenant_queue())
        sweep_now()
    finally:
        signals.swept.disconnect(receive)
    assert [report.admitted for report in reports] == [1]


def test_an_idle_worker_sweeps(workers: Any) -> None:
    workers.start(1)
    job = waiting_job(tenant_queue(queue="imports"))
    wait_until(lambda: fresh(job).state == State.FINISHED, timeout=20)


@pytest.mark.parametrize(("seconds_since_the_last_sweep", "reclaimed"), [(25, 0), (5, 1)])
def test_a_sweeper_that_was_kept_from_sweeping_judges_nobody_by_it(
    seconds_since_the_last_sweep: float, reclaimed: int
) -> None:
    """As by an outage that it met while it recorded the end of its own job. The second case is the control."""
    running_job(tenant_queue(), owner("far", host="elsewhere"))
    age(TenantJob.objects.get(), beat_at=60)
    contact = Contact()
    contact._since -= 3600
    contact._last -= seconds_since_the_last_sweep
    assert sweep_now(contact).reclaimed == reclaimed


def test_an_outage_while_a_worker_records_breaks_its_contact(monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = slots.release, [OperationalError("the server closed the connection")]

    def release(*args: Any, **changes: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*args, **changes)

    contact = Contact()
    contact._since -= 3600
    row = tenant_queue()
    job = waiting_job(row)
    admit(row)
    run = Run("worker", on_outage=contact.broken)
    assert run.begin(job.uuid, 1)
    assert contact.covers_a_lease()
    monkeypatch.setattr(slots, "release", release)
    run.end({"state": State.FINISHED})
    assert not contact.covers_a_lease()
    assert fresh(job).state == State.FINISHED


def test_an_owner_that_is_heard_of_before_it_would_be_killed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced: its heartbeat comes between the sweep's question and its deed."""
    job = running_job(tenant_queue(), another_process())
    age(job, beat_at=60)
    without_heartbeat = findings.without_heartbeat

    def stale_then_heard_of() -> list[TenantJob]:
        found = list(without_heartbeat())
        assert slots.beat(job.pk, job.token)
        return found

    monkeypatch.setattr(findings, "without_heartbeat", stale_then_heard_of)
    monkeypatch.setattr(owners, "kill", lambda job: pytest.fail("a healthy process was killed"))
    assert sweep_now().reclaimed == 0
    assert fresh(job).state == State.RUNNING


def test_the_claims_of_hosts_that_are_gone_go_when_another_host_comes() -> None:
    for name, seconds in (("gone", -30 * 24 * 3600), ("here", -1)):
        SweepClaim.objects.create(name=name, until=in_seconds(seconds))
    assert claims.claim("another", "worker")
    assert set(SweepClaim.objects.values_list("name", flat=True)) == {"here", "another"}
