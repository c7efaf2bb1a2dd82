"""Somebody holds rows of hundreds of tenants with each of which something is wrong: a sweep goes on with the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test import override_settings

from tenant_slots.db.clock import in_seconds
from tenant_slots.db.transactions import patience
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import SweepClaim, TenantJob, TenantQueue
from tenant_slots.repair import claims, one_row, row_of_all, silence, steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.one_row import unless_locked
from tenant_slots.repair.report import Report
from tenant_slots.repair.sweeper import SHARE_OF_LEASE, Sweeper
from tests.factories import another_process, dead_process, fresh, running_job, tenant_queue
from tests.processes import test_database_url as database_url

pytestmark = pytest.mark.django_db(transaction=True)

HUNDREDS = 300


class Waits:
    """How long each change has waited for its row, which somebody holds. Nobody really waits."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def for_tenant_queue(self) -> None:
        self.seconds.append(patience.get())
        raise TenantQueueLocked(tenant_queue=1, seconds=patience.get())

    def for_counter(self) -> None:
        self.seconds.append(patience.get())
        raise OperationalError from psycopg.errors.LockNotAvailable()


def one_after_the_other(waits: Waits) -> Callable[..., None]:
    def step(report: Report, contact: Contact) -> None:
        for _ in range(HUNDREDS // 2):
            unless_locked(waits.for_tenant_queue)
            row_of_all.unless_held("nothing is counted", waits.for_counter)

    return step


@pytest.mark.parametrize("is_bounded", [True, pytest.param(False, id="control: each is waited for as long")])
def test_all_that_are_held_are_waited_for_together(is_bounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_bounded:
        monkeypatch.setattr("tenant_slots.repair.sweeper.waiting_together", nullcontext)
    waits = Waits()
    Sweeper("test").run([one_after_the_other(waits), one_after_the_other(waits)])
    assert len(waits.seconds) == 2 * HUNDREDS
    assert waits.seconds[0] == one_row.LOCK_TIMEOUT_SECONDS
    assert (sum(waits.seconds) < 3) is is_bounded
    assert min(waits.seconds) > 0, "zero is for ever to PostgreSQL"


@pytest.mark.parametrize("lease", [20, 5])
def test_where_leases_are_short_they_are_waited_for_less_long(lease: float) -> None:
    """A sweep is then given up sooner, too, and would never come to what is after them."""
    waits = Waits()
    with override_settings(TENANT_SLOTS={"LEASE_TTL": lease}):
        Sweeper("test").run([one_after_the_other(waits)])
    assert sum(waits.seconds) < lease * SHARE_OF_LEASE / 2


def test_the_next_sweep_waits_for_them_anew() -> None:
    one, waits = Sweeper("test"), Waits()
    one.run([one_after_the_other(waits)])
    one.run([one_after_the_other(waits)])
    assert waits.seconds[HUNDREDS] == one_row.LOCK_TIMEOUT_SECONDS


def test_who_does_not_sweep_waits_for_each_as_long() -> None:
    """A worker that counts a lost run, say."""
    waits = Waits()
    for _ in range(20):
        row_of_all.unless_held("nothing is counted", waits.for_counter)
    assert set(waits.seconds) == {one_row.LOCK_TIMEOUT_SECONDS}


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
def test_a_row_that_nobody_holds_is_had_when_that_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_row, "_waited", one_row.ContextVar("test", default=one_row.SECONDS_FOR_ALL))
    row = tenant_queue()
    TenantQueue.objects.update(paused=True, resume_at=in_seconds(-1))
    steps.end_what_is_over(Report(), Contact())
    row.refresh_from_db()
    assert not row.paused


def test_whether_it_is_silent_waits_no_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_row, "_waited", one_row.ContextVar("test", default=one_row.SECONDS_FOR_ALL))
    seen: list[float] = []
    monkeypatch.setattr(silence, "check_deferred", lambda alias: seen.append(patience.get()))
    job = running_job(tenant_queue(), another_process())
    assert unless_locked(silence.is_silent, job, TenantJob.objects.running())
    assert seen == [one_row.SHORTEST_LOOK]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
def test_a_heartbeat_that_is_kept_out_counts_for_as_long_as_it_has_waited() -> None:
    """Or a lock of the whole table would leave no time for what is asked after that."""
    job = running_job(tenant_queue(), another_process())
    with psycopg.connect(database_url()) as session, one_row.waiting_together():
        session.execute("SELECT 1 FROM tenant_slots_tenantjob FOR UPDATE")
        for _ in range(10):
            assert unless_locked(silence.is_silent, job, TenantJob.objects.running()) is None
        assert one_row.seconds_to_wait() > one_row.LOCK_TIMEOUT_SECONDS * 0.9


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
@pytest.mark.parametrize("is_passed_over", [True, pytest.param(False, id="control: each claim waits for its row")])
def test_who_holds_the_claims_of_sweeps_costs_one(
    is_passed_over: bool, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.TENANT_SLOTS = {"LEASE_TTL": 6, "SWEEP_INTERVAL": 1}  # the second sweep has two seconds and more
    if not is_passed_over:
        monkeypatch.setattr(claims, "claim_unless_held", claims.claim)
    Sweeper("before").sweep()
    SweepClaim.objects.update(until=in_seconds(-1))
    job = running_job(tenant_queue(), dead_process())
    one = Sweeper("test")
    with psycopg.connect(database_url()) as session:
        session.execute("SELECT 1 FROM tenant_slots_sweepclaim FOR UPDATE")
        assert one._briefly(one.sweep) is None, "control: the first one waits for it"
        report = one._briefly(one.sweep)
    assert (report is not None and report.reclaimed == 1) is is_passed_over
    assert (fresh(job).attempt == 2) is is_passed_over


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
def test_a_claim_that_is_held_and_not_over_is_another_sweepers() -> None:
    assert Sweeper("another").sweep() is not None
    SweepClaim.objects.update(until=in_seconds(3))
    with psycopg.connect(database_url()) as session:
        session.execute("SELECT 1 FROM tenant_slots_sweepclaim FOR UPDATE")
        assert not claims.claim_unless_held("everywhere", "test")
