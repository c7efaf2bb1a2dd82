"""Times before now, singly and grouped into whole periods, the same way on PostgreSQL and SQLite."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import DateTimeField, ExpressionWrapper, Func, IntegerField
from django.db.models.functions import Now


def ago(seconds: float) -> Any:
    """A time by the database's clock, as of the start of the query: an index can be searched for it.

    The clock itself, `slots.in_seconds`, may differ from row to row, so PostgreSQL reads every row to compare it.
    """
    return ExpressionWrapper(Now() - timedelta(seconds=seconds), output_field=DateTimeField())


class PeriodsAgo(Func):
    """How many whole periods ago a time was: 0 within the last one."""

    output_field = IntegerField()

    def __init__(self, time: Any, seconds: int = 60, **extra: Any) -> None:
        super().__init__(Now(), time, seconds=int(seconds), **extra)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "FLOOR(EXTRACT(EPOCH FROM (%(expressions)s)) / %(seconds)s)::integer"
        return self.as_sql(compiler, connection, template=template, arg_joiner=" - ", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "CAST((JULIANDAY(%(expressions)s)) * 86400.0 / %(seconds)s AS INTEGER)"
        return self.as_sql(compiler, connection, template=template, arg_joiner=") - JULIANDAY(", **context)
