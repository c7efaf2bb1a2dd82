"""The token bucket: never more starts than the rate allows, the same in SQL as in Python, whatever the clock does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, connections, transaction
from django.db.models import BigIntegerField, F, IntegerField, Value
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenant_slots import rates, slots
from tenant_slots.db import clock
from tenant_slots.db.compiled import Parameter, Statement
from tenant_slots.exceptions import InvalidRate
from tenant_slots.models import TenantQueue
from tenant_slots.repair import doctor
from tests.factories import fresh, tenant_queue, waiting_job

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)

a_rate = st.builds(
    lambda number, seconds, burst: rates.Rate(number, timedelta(seconds=seconds), burst),
    st.integers(1, 200),
    st.one_of(st.sampled_from([1, 60, 3600, 86400]), st.integers(1, 1000), st.floats(1, 20)),
    st.integers(1, 20),
)
example = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@contextmanager
def at(time: datetime) -> Iterator[None]:
    """The database's clock stands at this time, as far as rates look at it."""
    nanoseconds = Value(rates._since_1970(time), output_field=BigIntegerField())
    with mock.patch.object(rates, "NanosecondsNow", return_value=nanoseconds):
        yield


def limited(rate: rates.Rate | None, **values: Any) -> TenantQueue:
    row = TenantQueue.objects.filter(tenant="acme").first() or tenant_queue()
    TenantQueue.objects.filter(pk=row.pk).update(**{"rate_empty_at": None, **rates.fields_of(rate), **values})
    return fresh(row)


def take(row: TenantQueue, time: datetime, number: int = 1) -> bool:
    """Start so many jobs at a time, in one UPDATE together with the counter."""
    with at(time):
        rows = TenantQueue.objects.filter(rates.allows(number), pk=row.pk)
        return bool(rows.update(current_job=F("current_job") + number, **rates.taken(number)))


def give_back(row: TenantQueue, time: datetime, number: int = 1) -> None:
    with at(time):
        TenantQueue.objects.filter(pk=row.pk).update(**rates.given_back(number))


def left(row: TenantQueue, time: datetime) -> int | None:
    """In SQL, where it must be the same as in Python."""
    with at(time):
        tokens: int | None = TenantQueue.objects.annotate(left=rates.left()).get(pk=row.pk).left
    bucket = rates.bucket(fresh(row), time)
    assert tokens == (bucket and bucket.tokens)
    return tokens


def starts(row: TenantQueue, times: list[datetime]) -> list[datetime]:
    return [time for time in times if take(row, time)]


def most_within(found: list[datetime], window: timedelta) -> int:
    return max(sum(first <= time <= first + window for time in found) for first in found)


# --- the notation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number", "per", "burst"),
    [
        ("100/s", 100, SECOND, 100), ("100/sec", 100, SECOND, 100), ("100/second", 100, SECOND, 100),
        ("100/m", 100, MINUTE, 2), ("100/min", 100, MINUTE, 2), ("100/minute", 100, MINUTE, 2),
        ("10/h", 10, HOUR, 1), ("10/hour", 10, HOUR, 1), ("5/d", 5, DAY, 1), ("5/day", 5, DAY, 1),
        (" 7 / 15 minutes ", 7, 15 * MINUTE, 1), ("3/1.5s", 3, 1.5 * SECOND, 2), ("1/7d", 1, 7 * DAY, 1),
        ("5/D", 5, DAY, 1),
    ],
)  # fmt: skip
def test_the_notation_is_that_of_django_rest_framework(text: str, number: int, per: timedelta, burst: int) -> None:
    assert rates.parse(text) == rates.Rate(number, per, burst)
    assert rates.parse(text, burst=9).burst == 9


@pytest.mark.parametrize(
    "value",
    [
        "", "100", "100/", "/m", "0/m", "-1/m", "1.5/m", "100/month", "100/x", "100/0s", "100/0.5s", "1e3/m", "٣/m",
        "100/m/m", "1000001/s", "1/367d", "1/99999999d", 100, None, 1.5, True, ("100", "m"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_value_and_what_to_write(value: Any) -> None:
    with pytest.raises(InvalidRate, match="cannot be a rate: ") as refused:
        rates.parse(value)
    assert "write it as" in str(refused.value) or "give" in str(refused.value)


@pytest.mark.parametrize(
    ("number", "per", "burst"),
    [
        (0, MINUTE, 1), (True, MINUTE, 1), (10**6 + 1, MINUTE, 1), (1.5, MINUTE, 1), ("1", MINUTE, 1),
        (1, timedelta(0), 1), (1, -MINUTE, 1), (1, timedelta(days=367), 1), (1, 60, 1), (1, None, 1),
        (1, MINUTE, 0), (1, MINUTE, True), (1, MINUTE, 10**6 + 1), (1, MINUTE, 1.5), (5, DAY, 2000),
    ],
)  # fmt: skip
def test_a_rate_out_of_range_is_refused(number: Any, per: Any, burst: Any) -> None:
    with pytest.raises(InvalidRate):
        rates.Rate(number, per, burst)


@given(a_rate)
def test_what_a_rate_shows_is_read_as_the_same_rate(rate: rates.Rate) -> None:
    assert rates.parse(rate.notation, rate.burst) == rate


@pytest.mark.parametrize("text", ["100/s", "100/m", "10/h", "5/d", "10/15m", "10/90s", "1/7d", "3/1.5s"])
def test_the_shortest_notation_is_shown(text: str) -> None:
    assert rates.parse(text).notation == text
    assert str(rates.parse(text, burst=4)) == f"{text}, burst 4"


@pytest.mark.parametrize(
    ("value", "expected"),
    [("100/m", True), ("100", True), ("5 per day", True), ("shop.plans.rate", False), (None, False), (5, False)],
)
def test_a_rate_is_told_from_the_path_of_a_callable(value: Any, expected: bool) -> None:
    assert rates.is_notation(value) == expected


# --- the bucket ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_burst_starts_at_once_and_then_one_for_each_step() -> None:
    row = limited(rates.Rate(60, MINUTE, 3))
    every_100_ms = [NOON + timedelta(milliseconds=100 * number) for number in range(51)]
    found = starts(row, every_100_ms)
    assert [(time - NOON).total_seconds() for time in found] == [0, 0.1, 0.2, 1, 2, 3, 4, 5]
    assert fresh(row).current_job == 8


@pytest.mark.django_db
def test_100_a_minute_never_starts_more_than_its_burst_above_that_in_any_minute() -> None:
    row = limited(rates.parse("100/m"))
    found = starts(row, [NOON + timedelta(milliseconds=200 * number) for number in range(900)])
    assert most_within(found, MINUTE) <= 102
    assert len(found) >= 300


@pytest.mark.django_db
@example
@given(
    rate=a_rate,
    steps=st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 4)), min_size=1, max_size=25),
)
def test_no_window_has_more_starts_than_the_burst_and_what_the_rate_brings(
    rate: rates.Rate, steps: list[tuple[int, int]]
) -> None:
    row, time, found = limited(rate), NOON, []
    for microseconds, number in steps:
        time += timedelta(microseconds=microseconds)
        before = left(row, time)
        started = take(row, time, number)
        assert started == (before is not None and before >= number)
        found += [time] * number if started else []
    for index, first in enumerate(found):
        for count, last in enumerate(found[index:], start=1):
            # In whole numbers: count <= burst + number * (last - first) / per
            assert (count - rate.burst) * (rate.per // rates.MICROSECOND) <= rate.number * (
                (last - first) // rates.MICROSECOND
            ), (rate, found)


@pytest.mark.django_db
@example
@given(
    rate=a_rate,
    empty_at=st.one_of(st.none(), st.integers(-(10**15), 10**12)),
    number=st.integers(1, 10_000),
)
def test_sql_and_python_agree_on_every_bucket(rate: rates.Rate, empty_at: int | None, number: int) -> None:
    stored = None if empty_at is None else rates._since_1970(NOON) + empty_at
    row = limited(rate, rate_empty_at=stored)
    tokens = left(row, NOON)
    assert tokens is not None
    assert 0 <= tokens <= rate.burst
    assert take(row, NOON, number) == (tokens >= number)
    give_back(row, NOON, number)
    assert (left(row, NOON) or 0) >= tokens


@pytest.mark.django_db
@example
@given(rate=a_rate, taken=st.integers(1, 25), later=st.integers(0, 10**8))
def test_the_next_token_comes_exactly_when_it_was_announced(rate: rates.Rate, taken: int, later: int) -> None:
    row = limited(rate)
    starts(row, [NOON] * taken)
    now = NOON + timedelta(microseconds=later)
    bucket = rates.bucket(fresh(row), now)
    assert bucket is not None
    if bucket.next_at is None:
        assert bucket.tokens == rate.burst
    else:
        assert bucket.next_at > now
        assert left(row, bucket.next_at - rates.MICROSECOND) == bucket.tokens
        assert left(row, bucket.next_at) == bucket.tokens + 1


@pytest.mark.django_db
def test_what_is_given_back_can_be_taken_again_but_never_above_the_burst() -> None:
    row = limited(rates.Rate(1, HOUR, 2))
    assert starts(row, [NOON] * 3) == [NOON] * 2
    give_back(row, NOON)
    assert left(row, NOON) == 1
    give_back(row, NOON, 50)
    assert left(row, NOON) == 2
    assert starts(row, [NOON] * 3) == [NOON] * 2


@pytest.mark.django_db
def test_several_are_taken_together_or_none() -> None:
    row = limited(rates.Rate(1, HOUR, 3))
    assert not take(row, NOON, 4)
    assert take(row, NOON, 2)
    assert not take(row, NOON, 2)
    assert (left(row, NOON), fresh(row).current_job) == (1, 2)


@pytest.mark.django_db
def test_a_row_without_a_rate_allows_everything_and_keeps_nothing() -> None:
    row = limited(None)
    assert left(row, NOON) is None
    assert take(row, NOON, 500)
    give_back(row, NOON, 400)
    assert fresh(row).rate_empty_at is None
    assert rates.bucket(row, NOON) is None


@pytest.mark.django_db
def test_the_slowest_and_the_fastest_rate_fit_the_column() -> None:
    for rate in (
        rates.Rate(1, timedelta(days=366), 1),
        rates.Rate(10**6, SECOND, 10**6),
        rates.Rate(10**6, DAY, 10**6),
    ):
        row = limited(rate)
        assert take(row, NOON, rate.burst)
        assert left(row, NOON) == 0
        give_back(row, NOON, 10_000)
        assert left(row, NOON) == min(10_000, rate.burst)


# --- the clock -----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_clock_that_is_a_little_behind_gives_nothing_back() -> None:
    row = limited(rates.Rate(1, SECOND, 2))
    starts(row, [NOON] * 2)
    assert left(row, NOON - rates.SKEW) == 0
    assert starts(row, [NOON - 5 * SECOND]) == []
    assert starts(row, [NOON + SECOND]) == [NOON + SECOND]


@pytest.mark.django_db
def test_a_clock_that_was_set_back_far_does_not_stop_the_tenant() -> None:
    row = limited(rates.Rate(1, SECOND, 2))
    starts(row, [NOON] * 2)
    earlier = NOON - DAY
    assert left(row, earlier) == 2
    assert starts(row, [earlier] * 3) == [earlier] * 2
    assert starts(row, [earlier + SECOND]) == [earlier + SECOND]


@pytest.mark.django_db
@pytest.mark.parametrize("use_tz", [True, False])
def test_the_real_clock_of_the_database_is_the_same_in_sql_and_in_python(use_tz: bool) -> None:
    row = limited(rates.Rate(1, HOUR, 2))
    with override_settings(USE_TZ=use_tz):
        assert TenantQueue.objects.filter(rates.allows(1), pk=row.pk).update(**rates.taken(1)) == 1
        now = clock.now()
        bucket = rates.bucket(fresh(row), now)
        assert bucket is not None
        assert bucket.tokens == 1
        assert bucket.next_at is not None
        assert abs(bucket.next_at - now - HOUR) < MINUTE
    assert TenantQueue.objects.annotate(left=rates.left()).get(pk=row.pk).left == 1


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_only_those_with_a_token_start() -> None:
    row = limited(rates.Rate(1, HOUR, 5))

    def start(_: int) -> int:
        try:
            rows = TenantQueue.objects.filter(rates.allows(1), pk=row.pk)
            return int(rows.update(current_job=F("current_job") + 1, **rates.taken(1)))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(start, range(24))) == 5
    assert fresh(row).current_job == 5


@pytest.mark.django_db
def test_the_gate_can_be_a_compiled_statement() -> None:
    pk, number = Parameter("pk", IntegerField()), Parameter("number", IntegerField())
    take_some = Statement(
        lambda: TenantQueue.objects.filter(rates.allows(number), pk=pk).with_free(number),
        {"current_job": F("current_job") + number, **rates.taken(number)},
    )
    give_some_back = Statement(
        lambda: TenantQueue.objects.filter(pk=pk, current_job__gte=number),
        {"current_job": F("current_job") - number, **rates.given_back(number)},
    )
    row = limited(rates.Rate(1, HOUR, 3), max_job=9)
    assert [take_some.update(pk=row.pk, number=count) for count in (4, 2, 2, 1)] == [0, 1, 0, 1]
    assert give_some_back.update(pk=row.pk, number=2) == 1
    assert (left(row, clock.now()), fresh(row).current_job) == (2, 1)
    without = tenant_queue("beta", max_job=9)
    assert take_some.update(pk=without.pk, number=9) == 1
    assert (fresh(without).current_job, without.rate_empty_at) == (9, None)


# --- the row -------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    "values",
    [
        {"rate_number": 5}, {"rate_number": 5, "rate_per": MINUTE}, {"rate_burst": 5}, {"rate_per": MINUTE},
        {"rate_number": 0, "rate_per": MINUTE, "rate_burst": 1},
        {"rate_number": 1, "rate_per": MINUTE, "rate_burst": 0},
        {"rate_number": 1, "rate_per": timedelta(0), "rate_burst": 1},
        {"rate_number": 1, "rate_per": DAY, "rate_burst": 367},
        {"rate_number": 10, "rate_per": 366 * DAY, "rate_burst": 11},
        {"rate_number": 1, "rate_per": 366 * DAY, "rate_burst": 10**6},
    ],
)  # fmt: skip
def test_the_database_refuses_what_is_no_rate(values: Any) -> None:
    row = tenant_queue()
    with pytest.raises(IntegrityError), transaction.atomic():
        TenantQueue.objects.filter(pk=row.pk).update(**values)


@pytest.mark.django_db
@example
@given(number=st.integers(1, 10**6), seconds=st.integers(1, 366 * 86400))
def test_the_database_takes_each_burst_that_a_rate_may_have_and_none_above_it(number: int, seconds: int) -> None:
    rate = rates.Rate(number, seconds * SECOND, 1)
    highest = min(rates.HIGHEST_NUMBER, rates._nanoseconds(rates.LONGEST_PERIOD) // rate.step)
    row = limited(rates.Rate(number, rate.per, highest))
    row.full_clean()
    assert left(row, NOON) == highest
    row.rate_burst = highest + 1
    with pytest.raises(ValidationError):
        row.full_clean()
    with pytest.raises(IntegrityError), transaction.atomic():
        TenantQueue.objects.filter(pk=row.pk).update(rate_burst=highest + 1)


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "postgresql", reason="a duration is a number elsewhere")
@pytest.mark.parametrize(
    "rate",
    [
        "rate_number = 1, rate_burst = 1000000, rate_per = '-1 year 365 days 06:00:01'",
        "rate_number = 2, rate_burst = 1, rate_per = '1 year 2 days'",
    ],
    ids=["a second or six hours", "362, 367 or 367 1/4 days"],
)
def test_a_period_with_years_that_sql_has_written_is_a_rate_of_some_kind(rate: str) -> None:
    """To PostgreSQL a year is 360 days where it compares, and 365.25 where it computes; to Python it is 365."""
    row, well = tenant_queue(), tenant_queue("well")
    assert well.set_rate(7, per=timedelta(seconds=3))
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE tenant_slots_tenantqueue SET {rate} WHERE id = %s", [row.pk])  # noqa: S608
    spoilt = fresh(row)
    assert spoilt.rate is not None
    assert rates.bucket(spoilt, clock.now()) is not None
    assert [(one.tenant, "rate_per" in one.meaning) for one in doctor.findings("rows")] == [(row.tenant, True)]
    assert row.set_rate(None)
    assert doctor.findings("rows") == []


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "postgresql", reason="a duration is a number elsewhere")
@pytest.mark.parametrize("per", ["1 year", "365 days 6 hours"])
def test_who_waits_for_its_token_is_told_when_the_database_has_one(per: str) -> None:
    """Python has one six hours before where the period is a year: a worker would look again and again until then."""
    row = limited(rates.Rate(1, DAY, 1), rate_empty_at=rates._since_1970(clock.now() - timedelta(days=365.1)))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tenant_slots_tenantqueue SET rate_per = %s WHERE id = %s", [per, row.pk])
    waiting_job(row)
    admission = slots.admit(row.pk, row.queue)
    assert (admission.jobs, admission.waits_for_time) == ([], True)
    assert admission.wakes_in == pytest.approx(0.15 * 86400, abs=30)
