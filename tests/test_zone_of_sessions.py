"""`DATABASES` may give its sessions a time zone whose clocks are changed twice a year."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connections

from tenant_slots import charges
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.models import State, TenantJob
from tests.factories import fresh, tenant_queue, waiting_job

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connections["default"].vendor != "postgresql", reason="SQLite has no sessions with a zone"),
]

BERLIN = ZoneInfo("Europe/Berlin")

HALF_PAST_TWO = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
"""In Berlin, as it is again an hour later."""

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _sessions_in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    session = connections["default"]
    session.close()
    monkeypatch.setitem(session.settings_dict, "TIME_ZONE", BERLIN.key)
    monkeypatch.setattr(session, "timezone", BERLIN)
    monkeypatch.setattr(session, "timezone_name", BERLIN.key)
    yield
    session.close()


def run(**values: Any) -> Any:
    job = waiting_job(tenant_queue())
    TenantJob.objects.filter(pk=job.pk).update(state=State.RUNNING, **values)
    return fresh(job)


def test_a_run_that_goes_on_while_clocks_are_set_back_took_what_it_took() -> None:
    read = run(started_at=HALF_PAST_TWO, ended_at=HALF_PAST_TWO + HOUR)
    assert read.ended_at - read.started_at == HOUR


def test_control_python_takes_both_for_the_same_time_in_that_zone() -> None:
    first, second = HALF_PAST_TWO.astimezone(BERLIN), (HALF_PAST_TWO + HOUR).astimezone(BERLIN)
    assert second - first == timedelta(0)


def test_what_is_computed_from_a_time_stays_in_its_hour() -> None:
    read = run(beat_at=HALF_PAST_TWO + HOUR)
    assert read.beat_at + timedelta(milliseconds=1) > HALF_PAST_TWO + HOUR


def test_a_dead_run_is_charged_for_its_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: HALF_PAST_TWO + HOUR)
    started = HALF_PAST_TWO + HOUR - timedelta(seconds=10)
    assert charges.unmeasured(run(started_at=started, beat_at=started, beats=True)) == app_settings.BEAT_INTERVAL


def test_the_databases_own_clock_is_read_so_too() -> None:
    now = TenantJob.objects.filter(pk=run().pk).values_list(DatabaseNow(), flat=True).get()
    assert (now.tzinfo, abs(now - clock.now()) < HOUR / 2) == (UTC, True)
