"""The database's clock: now, times before and after it, and whole periods, the same on PostgreSQL and SQLite.

Every lease and every due time is compared with this clock, never with that of a worker's host.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.models import BooleanField, DateTimeField, ExpressionWrapper, Func, IntegerField
from django.db.models.functions import Now

from tenant_slots.conf import app_settings
from tenant_slots.validation import EARLIEST, LATEST


def now() -> datetime:
    """The database's clock at this moment, asked: for what Python has to compare with it."""
    connection = connections[app_settings.DATABASE]
    with connection.cursor() as cursor:
        cursor.execute(SECONDS_SINCE_1970[connection.vendor])
        seconds = float(cursor.fetchone()[0])
    return datetime.fromtimestamp(seconds, tz=UTC if settings.USE_TZ else None)


SECONDS_SINCE_1970 = {
    "postgresql": "SELECT EXTRACT(EPOCH FROM CLOCK_TIMESTAMP())",
    "sqlite": "SELECT ROUND((JULIANDAY('NOW') - 2440587.5) * 86400000.0) / 1000.0",
}
"""SQLite's clock has milliseconds. Its days as a float lose some microseconds of that, in either direction."""


class InUTC(DateTimeField):  # type: ignore[type-arg]  # it takes none when it runs
    """A time that is read in UTC, whatever ``DATABASES`` says of the session's zone.

    Between two times of the same zone Python computes by what its clocks show: where these are changed it is off by
    an hour.
    """

    def get_db_converters(self, connection: Any) -> Any:
        """None where they are read so anyway: a page reads thousands of times."""
        return [*super().get_db_converters(connection), *([] if connection.timezone is UTC else [_in_utc])]


def _in_utc(value: datetime | None, expression: object, connection: object) -> datetime | None:
    return value if value is None or value.tzinfo is None else value.astimezone(UTC)


class DatabaseNow(Now):
    """The database's clock at this moment; ``Now`` is the start of the transaction on PostgreSQL."""

    output_field = InUTC()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="CLOCK_TIMESTAMP()", **context)


def ago(seconds: float) -> Any:
    """A time by the database's clock, as of the start of the query: an index can be searched for it.

    The clock itself, `in_seconds`, may differ from row to row, so PostgreSQL reads every row to compare it.
    """
    return ExpressionWrapper(Now() - timedelta(seconds=seconds), output_field=DateTimeField())


def in_seconds(seconds: float) -> Any:
    """A time from this very moment on, for a field's new value."""
    return from_now(timedelta(seconds=seconds))


def from_now(duration: Any) -> Any:
    """As `in_seconds`, from a timedelta or an expression that gives one."""
    return ExpressionWrapper(DatabaseNow() + duration, output_field=DateTimeField())


def within_calendar(sql: str) -> str:
    """PostgreSQL's expression of a time, with what no time zone expresses cut off; it is there three times then."""
    return f"(CASE WHEN {sql} < '{EARLIEST}' THEN '{EARLIEST}' WHEN {sql} > '{LATEST}' THEN '{LATEST}' ELSE {sql} END)"


def is_a_time(sql: str) -> str:
    """SQLite's condition that a text is a time to Python; the text is there four times then.

    SQLite takes the 30th of February for one, too, and the hour 24; of other values Django could not even tell.
    """
    date, hour = f"SUBSTR({sql}, 1, 10)", f"SUBSTR({sql}, 12, 2)"
    return f"(DATE({date}, '+0 days') = {date} AND {hour} < '24' AND TIME(SUBSTR({sql}, 12, 8)) IS NOT NULL)"


class IsNoTime(Func):
    """Whether there is something else in a column for a time. PostgreSQL has nothing else there."""

    output_field = BooleanField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return "FALSE", ()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        sql, parameters = compiler.compile(self.source_expressions[0])
        return f"({sql} IS NOT NULL AND {is_a_time(sql)} IS NOT TRUE)", parameters * 5


class InCalendar(Func):
    """A time to compute with: PostgreSQL has infinite ones, whose distance from now is no number."""

    output_field = DateTimeField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        sql, parameters = compiler.compile(self.source_expressions[0])
        return within_calendar(sql), (*parameters, *parameters, *parameters)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return compiler.compile(self.source_expressions[0])


class PeriodsAgo(Func):
    """How many whole periods ago a time was: 0 within the last one."""

    output_field = IntegerField()

    def __init__(self, time: Any, seconds: int = 60, **extra: Any) -> None:
        super().__init__(Now(), InCalendar(time), seconds=int(seconds), **extra)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "FLOOR(DATE_PART('epoch', %(expressions)s) / %(seconds)s)::bigint"
        return self.as_sql(compiler, connection, template=template, arg_joiner=" - ", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "CAST((JULIANDAY(%(expressions)s)) * 86400.0 / %(seconds)s AS INTEGER)"
        return self.as_sql(compiler, connection, template=template, arg_joiner=") - JULIANDAY(", **context)


class MinuteOf(Func):
    """The number of the whole minute of a time, from 1970 on. SQLite's arithmetic would round some to the next one."""

    output_field = IntegerField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "FLOOR(EXTRACT(EPOCH FROM %(expressions)s) / 60)::bigint"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "CAST(STRFTIME('%%%%s', SUBSTR(%(expressions)s, 1, 16)) AS INTEGER) / 60"
        return self.as_sql(compiler, connection, template=template, **context)


def minute_of(time: datetime) -> int:
    """The same in Python."""
    return int(time.timestamp() // 60)


def start_of(minute: int) -> datetime:
    """When the minute of this number began."""
    return datetime.fromtimestamp(60 * minute, tz=UTC)
