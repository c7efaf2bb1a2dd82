"""The server ends sessions that nobody uses for a while, and a sweep that waits for others uses none."""

from __future__ import annotations

from types import SimpleNamespace

import psycopg
import pytest
from django.db import connection

from tenant_slots.db import sessions
from tenant_slots.models import State, TenantJob
from tenant_slots.repair import silence, steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.repair.sweeper import Sweeper
from tests.factories import age, fresh, owner, running_job, tenant_queue
from tests.processes import test_database_url as database_url
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about sessions of PostgreSQL"),
]


def be_idle_for_too_long(*_: object) -> None:
    connection.ensure_connection()
    session = connection.connection
    with psycopg.connect(database_url()) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [session.info.backend_pid])
    wait_until(lambda: sessions._has_ended(session))


def test_owners_that_are_given_time_to_say_that_they_live_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "time", SimpleNamespace(sleep=be_idle_for_too_long))
    monkeypatch.setattr(Contact, "covers_a_lease", lambda self: True)
    job = running_job(tenant_queue(), owner("far", host="elsewhere"))
    age(job, beat_at=3600)
    one = Sweeper("test")
    assert one.run([steps.reclaim_stale]).reclaimed == 1
    assert (fresh(job).state == State.RUNNING, one.contact.breaks) == (False, 0)


def test_a_step_that_waits_for_others_ends_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count(report: Report, contact: Contact) -> None:
        counted.append(TenantJob.objects.count())

    assert Sweeper("test").run([be_idle_for_too_long, count]).failed == []
    assert counted == [0]
