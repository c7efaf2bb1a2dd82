"""Times that PostgreSQL stores and Python cannot load: refused wherever one comes in, and harmless where one is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import Client, override_settings
from django.utils.timezone import make_aware
from rq import Retry

from tenant_slots import checks, exceptions, tenant_job
from tenant_slots.models import KeptChange, TenantJob, TenantQueue
from tenant_slots.repair import unreadable
from tenant_slots.running import runner
from tests import jobs
from tests.admin.site import JOBS, LIVE, QUEUES, change_page, confirmed, loaded
from tests.factories import fresh, tenant_queue, waiting_job
from tests.test_bad_input import good

NEW_YORK, TOKYO = ZoneInfo("America/New_York"), ZoneInfo("Asia/Tokyo")

FAR_AWAY = {
    "west of UTC": make_aware(datetime.max, NEW_YORK),
    "east of UTC": make_aware(datetime.min, TOKYO),
    "with an offset": datetime.fromisoformat("9999-12-31T23:59:59-05:00"),
    "not in every time zone": datetime.max.replace(tzinfo=UTC),
    "nor at the other end": datetime.min.replace(tzinfo=timezone(timedelta(hours=-23))),
}
IDS, TIMES = list(FAR_AWAY), list(FAR_AWAY.values())


@pytest.mark.parametrize("time", TIMES, ids=IDS)
def test_using_refuses_a_time_to_run_after_that_is_none_in_utc(time: datetime) -> None:
    with pytest.raises(exceptions.InvalidOption, match=r"run_after.*years"):
        jobs.add.using(run_after=time)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("hours", [23.9, 16, -16, -23.9])
def test_a_time_with_an_offset_that_postgresql_does_not_read_is_the_same_time_in_utc(hours: float) -> None:
    time = datetime(2090, 1, 1, tzinfo=timezone(timedelta(hours=hours)))
    assert fresh(jobs.add.using(run_after=time).enqueue(1, 2, tenant="acme")).run_after == time
    row = tenant_queue("acme")
    row.pause(until=time)
    row.set_override(3, time)
    assert (fresh(row).resume_at, row.override_until) == (time, time)
    assert KeptChange.objects.filter(until=time).count() == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", [TenantQueue.pause, lambda row, until: row.set_override(3, until)])
@pytest.mark.parametrize(
    "until", [*TIMES, datetime(2090, 1, 1), "tomorrow", date(2090, 1, 1)], ids=[*IDS, "naive", "a text", "a date"]
)
def test_a_change_until_a_time_that_is_none_is_refused_and_changes_nothing(
    change: Callable[..., object], until: Any
) -> None:
    row = tenant_queue()
    with pytest.raises((exceptions.InvalidTime, exceptions.TimeHasPassed)):
        change(row, until=until)
    assert fresh(row).version == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("time", TIMES, ids=IDS)
def test_the_tables_take_no_such_time_from_the_orm_either(time: datetime) -> None:
    row = tenant_queue()
    job = waiting_job(row)
    with pytest.raises(exceptions.InvalidTime):
        TenantJob.objects.filter(pk=job.pk).update(run_after=time)
    row.resume_at = time
    with pytest.raises(exceptions.InvalidTime):
        row.save()
    assert fresh(row).resume_at is None


@pytest.mark.django_db(transaction=True)
@override_settings(TIME_ZONE="America/New_York")
def test_the_forms_of_the_admin_refuse_a_time_that_is_none_in_utc(boss: Client) -> None:
    row = tenant_queue()
    latest = "9999-12-31T23:59"
    assert "This time" in confirmed(boss, QUEUES, "pause", row, until="2001-01-01T00:00").content.decode()  # control
    page = confirmed(boss, QUEUES, "pause", row, until=latest).content.decode()
    assert "Enter a valid date/time." in page
    for name in ("resume_at", "override_until"):
        changed = {**loaded(boss, row), "paused": "on", "max_job": "7", name: latest}
        page = boss.post(change_page(row), changed).content.decode()
        assert "Enter a valid date/time." in page, name
    assert fresh(row).version == 0
    assert confirmed(boss, QUEUES, "pause", row, until="9999-12-30T12:00").status_code == 200
    assert fresh(row).paused
    for url in (QUEUES, JOBS, change_page(row), f"{LIVE}?rows={row.pk}"):
        assert boss.get(url).status_code == 200, url


@pytest.mark.parametrize("name", ["RETENTION", "LEASE_TTL", "SWEEP_INTERVAL", "BEAT_INTERVAL", "RESCHEDULE_DELAY"])
@pytest.mark.parametrize("seconds", [float("inf"), 1e12, 10**400])
def test_a_setting_that_leads_out_of_the_calendar_is_an_error(name: str, seconds: float) -> None:
    with override_settings(TENANT_SLOTS={name: seconds}):
        assert [message.id for message in checks.check_settings()] == ["tenant_slots.E003"]


@pytest.mark.parametrize("weight", [float("inf"), float("nan")])
def test_a_weight_that_is_not_finite_is_an_error(weight: float) -> None:
    with override_settings(TENANT_SLOTS={"QUEUE_WEIGHTS": {"imports": weight}}):
        assert [message.id for message in checks.check_settings()] == ["tenant_slots.E003"]


@pytest.mark.parametrize("interval", [10**12, [0, 10**12]])
def test_a_retry_after_more_than_a_year_is_refused_at_import(interval: Any) -> None:
    with pytest.raises(exceptions.InvalidOption, match=r"retry.*interval"):
        tenant_job("imports", tenant="tenant", retry=Retry(1, interval))(good)


@pytest.mark.parametrize("seconds", [10**12, 10**30, float("inf")])
def test_a_job_that_asks_for_a_retry_in_thousands_of_years_runs_after_the_longest_time_there_is(seconds: float) -> None:
    outcome = runner._after_retry(TenantJob(), 1, [seconds], "again")
    assert outcome["later"] == 366 * 24 * 3600


# --- a row has such a time all the same ----------------------------------------------------------------------------

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite keeps texts")


def write(row: TenantQueue | TenantJob, column: str, value: str) -> None:
    """As from psql: our own columns refuse it."""
    table = connection.ops.quote_name(row._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = %s WHERE id = %s", [value, row.pk])  # noqa: S608 - names of ours


STORED = ["12024-01-01T00:00:00+00", "4000-01-01 00:00:00 BC", "infinity", "-infinity", "9999-12-31T23:59:59-05:00"]


@on_postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("value", STORED)
def test_a_stored_time_out_of_the_calendar_reads_as_the_nearest_one_that_is_shown_anywhere(value: str) -> None:
    job = waiting_job(tenant_queue())
    write(job, "run_after", value)
    expected = 1 if value.startswith("-") or value.endswith("BC") else 9999
    read = fresh(job).run_after
    assert read.year == expected
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        assert read.astimezone(ZoneInfo(zone)).year == expected
    assert TenantJob.objects.values_list("run_after", flat=True).get() == read
    write(job, "run_after", "2030-01-01T00:00:00+00")
    assert fresh(job).run_after == datetime(2030, 1, 1, tzinfo=UTC)
    TenantJob.objects.update(run_after=None)
    assert fresh(job).run_after is None


@pytest.mark.skipif(connection.vendor == "postgresql", reason="PostgreSQL reads them as other times in its SELECT")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("value", "year"),
    [("9999-12-31 23:59:59", 9999), ("0001-01-01 00:00:00", 1), ("infinity", None), ("2030-06-01 00:00:00", 2030)],
)
def test_a_text_of_sqlite_at_an_end_of_the_calendar_is_shown_anywhere_and_named(value: str, year: int | None) -> None:
    job = waiting_job(tenant_queue())
    write(job, "run_after", value)
    read = fresh(job).run_after
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        assert (read and read.astimezone(ZoneInfo(zone)).year) == year
    is_odd = year != 2030
    assert [columns for _, columns in unreadable.jobs()] == [["run_after"]] * is_odd
