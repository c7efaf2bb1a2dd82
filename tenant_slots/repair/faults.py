"""What an error during a sweep is about: the whole sweep, or only the step and the row that met it."""

from __future__ import annotations

from django.db import DataError, Error, IntegrityError, OperationalError, ProgrammingError, connections
from redis.exceptions import RedisError
from rq.timeouts import BaseTimeoutException

from tenant_slots.conf import app_settings

OF_A_STATEMENT = (DataError, IntegrityError, OperationalError, ProgrammingError)
"""What a statement alone may be to blame for: the values that it met, or that it was canceled after a time."""


def ends_the_sweep(error: Exception) -> bool:
    """Whether nothing that comes after it could succeed: the sweep's time is over, or the database is out of reach."""
    if isinstance(error, BaseTimeoutException):
        return True
    if not isinstance(error, Error):
        return False
    return not isinstance(error, OF_A_STATEMENT) or not connections[app_settings.DATABASE].is_usable()


def ends_the_step(error: Exception) -> bool:
    """As well a Redis that cannot be asked: each further row would wait for it again."""
    return isinstance(error, RedisError) or ends_the_sweep(error)
