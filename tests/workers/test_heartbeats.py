"""A lost lease ends the run; a database that is out of reach is not a lost lease; a heartbeat waits for nobody."""

from __future__ import annotations

import os
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test import override_settings

from tenant_slots import slots
from tenant_slots.models import State, TenantJob
from tenant_slots.witness import Witness
from tenant_slots.workers import heartbeats
from tenant_slots.workers.heartbeats import Heartbeats
from tests.factories import age, another_process, fresh, in_thread, running_job, tenant_queue

pytestmark = pytest.mark.django_db(transaction=True)


class Run:
    """A running job with its witness and heartbeats; counts how often it was ended."""

    def __init__(self) -> None:
        self.job = running_job(tenant_queue(), another_process())
        self.witness = Witness()
        self.witness.taking(self.job.pk, self.job.token, os.getpid())
        self.witness.holding()
        self.horse = 0
        self.ended = 0
        self.outages = 0
        self.heartbeats = Heartbeats(self._runs, self._end, self._outage)

    def _runs(self) -> dict[tuple[int, int], int]:
        seen = self.witness.read()
        return {(seen.job_id, seen.token): self.horse} if seen.phase else {}

    def _end(self, _: object) -> None:
        self.ended += 1

    def _outage(self) -> None:
        self.outages += 1


def unreachable(*_: Any) -> bool:
    raise OperationalError("no route")


def test_a_heartbeat_renews_the_lease() -> None:
    run = Run()
    age(run.job, beat_at=19)
    before = run.job.beat_at
    assert run.heartbeats.beat() == 5
    assert fresh(run.job).beat_at > before
    assert not run.ended


def test_a_heartbeat_names_the_work_horse_that_was_forked_after_the_start() -> None:
    run = Run()
    assert run.job.horse == 0
    run.horse = 4711
    run.heartbeats.beat()
    assert fresh(run.job).horse == 4711


def test_a_lost_lease_ends_the_run_and_releases_nothing() -> None:
    run = Run()
    slots.release(run.job, state=State.WAITING)
    run.heartbeats.beat()
    assert run.ended == 1
    assert TenantJob.objects.get().state == State.WAITING


def test_a_run_that_ends_during_the_heartbeat_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()

    def ends_meanwhile(*_: Any) -> bool:
        run.witness.idle()
        return False

    monkeypatch.setattr(slots, "beat", ends_meanwhile)
    run.heartbeats.beat()
    assert not run.ended


def test_a_run_that_somebody_has_asked_to_stop_is_ended() -> None:
    run = Run()
    run.job.cancel()
    run.heartbeats.beat()
    assert run.ended == 1


@pytest.mark.parametrize(("choice", "ends"), [("continue", 0), ("stop", 1)])
def test_a_database_out_of_reach_follows_the_setting(choice: str, ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    now = heartbeats.time.monotonic()
    monkeypatch.setattr(slots, "beat", unreachable)
    with override_settings(TENANT_SLOTS={"ON_LOST_DATABASE": choice}):
        run.heartbeats.beat()
        assert (run.ended, run.outages) == (0, 1)
        monkeypatch.setattr(heartbeats.time, "monotonic", lambda: now + 21)
        run.heartbeats.beat()
    assert run.ended == ends


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
def test_a_heartbeat_waits_for_nobody_who_holds_the_row() -> None:
    """A job may lock its own row for longer than a lease. The control: with patience, the heartbeat does wait."""
    run = Run()
    with transaction.atomic():
        TenantJob.objects.select_for_update().get()
        assert in_thread(run.heartbeats.beat) == 20 * heartbeats.AGAIN_SHARE
    assert not run.ended
    assert run.heartbeats.beat() == 5
