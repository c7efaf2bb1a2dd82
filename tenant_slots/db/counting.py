"""Counters that stay at their end, where SQL from outside may have put them: no statement fails for one."""

from __future__ import annotations

from typing import Any

from django.db.models import BigIntegerField, F, Value
from django.db.models.functions import Least

from tenant_slots.validation import HIGHEST_TOTAL


def grown(column: str, by: int = 1) -> Any:
    """The new value of a column of totals."""
    most = Value(HIGHEST_TOTAL - by, BigIntegerField())  # else psycopg binds it as a smaller one, on the server's side
    return Least(F(column), most) + by
