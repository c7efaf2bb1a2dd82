"""Columns that can always be loaded, whatever SQL from outside has put there: one row spoils no list of them.

And foreign keys of which no router of the project is asked. To migrations they are Django's own fields.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.core.checks import CheckMessage
from django.db import models
from django.db.models.expressions import Col
from django.db.models.fields.related_descriptors import ForwardManyToOneDescriptor

from tenant_slots.conf import app_settings
from tenant_slots.db.clock import InUTC, is_a_time, within_calendar
from tenant_slots.exact_json import ExactEncoder
from tenant_slots.exceptions import InvalidTime
from tenant_slots.validation import EARLIEST, LATEST, is_in_calendar


class Moment(InUTC):
    """A time that every time zone can express.

    PostgreSQL keeps times that Python has no number for, and psycopg then loads none of the rows that a query finds.
    Such a time reads as the nearest one that can be loaded; the doctor names its row. None is written from here.

    SQLite keeps texts: of one that is no time nothing is read, however well it is formed, and one at an end of the
    calendar is put right when it is.
    """

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        if compiler.connection.vendor != "postgresql":
            return f"(CASE WHEN {is_a_time(sql)} THEN {sql} END)", (*params, *params, *params, *params, *params)
        return within_calendar(sql), (*params, *params, *params)

    def get_db_converters(self, connection: Any) -> Any:
        """None where `select_format` has done it: a page reads thousands of times."""
        return [*([] if connection.vendor == "postgresql" else [_in_calendar]), *super().get_db_converters(connection)]

    def get_prep_value(self, value: Any) -> Any:
        """In UTC: PostgreSQL reads no offset of 16 hours or more."""
        value = super().get_prep_value(value)
        is_time = isinstance(value, datetime) and value.utcoffset() is not None and is_in_calendar(value)
        return value.astimezone(UTC) if is_time else value

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        if isinstance(value, datetime) and not is_in_calendar(value):
            raise InvalidTime(value=value, problem="it is not within the years 1 to 9999 in every time zone")
        return super().get_db_prep_save(value, connection)


def _in_calendar(value: datetime | None, expression: object, connection: object) -> datetime | None:
    if value is None or is_in_calendar(value):
        return value
    nearest = EARLIEST if value.year < LATEST.year else LATEST
    return nearest.replace(tzinfo=value.tzinfo)


class Derived(models.GeneratedField):
    """A stored column that the database computes from others.

    Every database that we support has such columns. Django 6.1 asks the server for its version before it checks that,
    so that without it no system check could be run, and no command that begins with one.
    """

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.GeneratedField", args, kwargs

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return super().check(**{**kwargs, "databases": []})


class _ToOurRow(ForwardManyToOneDescriptor):  # type: ignore[type-arg]
    """A row that is not stored yet goes where the one is to which it belongs, or else to our database.

    Django asks a router of the project instead, which may name another one, and refuses that they belong together.
    """

    def __set__(self, instance: Any, value: Any) -> None:
        if isinstance(value, models.Model):
            value._state.db = value._state.db or app_settings.DATABASE
            instance._state.db = instance._state.db or value._state.db
        super().__set__(instance, value)


class ToOurRow(models.ForeignKey):  # type: ignore[type-arg]
    """A foreign key to a row of ours, of which the project's routers are not asked."""

    forward_related_accessor_class = _ToOurRow

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.ForeignKey", args, kwargs


class Unreadable:
    """What is read in place of a JSON value that is none of ours: empty, so that nobody stumbles over it."""

    problem: str


class UnreadableList(Unreadable, list[Any]): ...


class UnreadableDict(Unreadable, dict[str, Any]): ...


DEEPEST = 900
"""Levels of lists and objects in each other: about what Python 3.11 reads. Later ones read more and cannot write it."""


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            child
            for one in level
            for child in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
        ]
        if not level:
            return False
    return True


class StoredJSON(models.JSONField):
    """JSON that comes back equal, numbers included.

    Args:
        fits: whether a value is what the column is for.
        empty: what is read instead of one that does not fit, or that Python cannot read; None for None.
    """

    def __init__(
        self,
        *args: Any,
        fits: Callable[[Any], bool] = lambda value: True,
        empty: Callable[[], Unreadable] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **{**kwargs, "encoder": ExactEncoder})
        self._fits, self._empty = fits, empty

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        del kwargs["encoder"]
        return name, "django.db.models.JSONField", args, kwargs

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        try:
            read = super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError) as error:
            return self._unreadable(f"it cannot be read: {error}")
        if isinstance(value, str) and value.count("[") + value.count("{") > DEEPEST and _is_deeper(read, DEEPEST):
            return self._unreadable(f"it is nested more than {DEEPEST} levels deep")
        is_part = not isinstance(expression, Col)
        if is_part or (read is None and self.null) or self._fits(read):
            return read
        return self._unreadable("it is not of the form that is written there")

    def _unreadable(self, problem: str) -> Any:
        if self._empty is None:
            return None
        instead = self._empty()
        instead.problem = problem
        return instead


class SparseDict(StoredJSON):
    """A dict that takes no room in a row while it is empty: it is NULL there."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return {} if value is None else super().from_db_value(value, expression, connection)

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        return super().get_db_prep_save(None if value == {} else value, connection)
