"""A lost lease ends the run; a database that is out of reach is not a lost lease."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError
from django.test import override_settings

from tenant_slots import slots
from tenant_slots.models import State, TenantJob
from tenant_slots.running.witness import Witness
from tenant_slots.workers import lease
from tenant_slots.workers.lease import Lease
from tests.factories import age, another_process, fresh, running_job, tenant_queue

pytestmark = pytest.mark.django_db(transaction=True)


class Run:
    """A running job with its witness and lease; counts how often it was ended."""

    def __init__(self) -> None:
        self.job = running_job(tenant_queue(), another_process())
        self.witness = Witness()
        self.witness.taking(self.job.pk, self.job.token)
        self.witness.holding()
        self.ended = 0
        self.lease = Lease(self.witness, self._end)

    def _end(self) -> None:
        self.ended += 1


def unreachable(*_: Any) -> bool:
    raise OperationalError("no route")


def test_a_heartbeat_renews_the_lease() -> None:
    run = Run()
    age(run.job, beat_at=19)
    before = run.job.beat_at
    assert run.lease.beat()
    assert fresh(run.job).beat_at > before
    assert not run.ended


def test_a_lost_lease_ends_the_run_and_releases_nothing() -> None:
    run = Run()
    slots.release(run.job, state=State.WAITING)
    assert TenantJob.objects.get().attempt == 2
    run.lease.beat()
    assert run.ended == 1
    assert TenantJob.objects.get().state == State.QUEUED


def test_a_run_that_ends_during_the_heartbeat_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()

    def ends_meanwhile(*_: Any) -> bool:
        run.witness.idle()
        return False

    monkeypatch.setattr(slots, "beat", ends_meanwhile)
    run.lease.beat()
    assert not run.ended


@pytest.mark.parametrize(("choice", "ends"), [("continue", 0), ("stop", 1)])
def test_a_database_out_of_reach_follows_the_setting(choice: str, ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    now = lease.time.monotonic()
    monkeypatch.setattr(slots, "beat", unreachable)
    with override_settings(TENANT_SLOTS={"ON_LOST_DATABASE": choice}):
        assert not run.lease.beat()
        assert not run.ended
        monkeypatch.setattr(lease.time, "monotonic", lambda: now + 21)
        run.lease.beat()
    assert run.ended == ends


def test_a_process_without_a_job_sends_no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "beat", unreachable)
    lease = Lease(Witness(), lambda: None)
    assert lease.beat()
