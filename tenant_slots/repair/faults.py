"""What an error during a sweep is about: the whole sweep, or only the step and the row that met it."""

from __future__ import annotations

from django.db import Error, connections
from redis.exceptions import RedisError
from rq.timeouts import BaseTimeoutException

from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.refusals import is_refusal


def ends_the_sweep(error: Exception) -> bool:
    """Whether nothing that comes after it could succeed: the sweep's time is over, or the database is out of reach.

    A statement alone may be to blame for all else: the values that it met, a corrupted row, or that it was canceled. A
    server that takes no writes may be another one, which a trigger of the project has asked for its row.
    """
    if isinstance(error, BaseTimeoutException):
        return True
    if not isinstance(error, Error):
        return False
    takes_no_writes = transactions.is_read_only(error) and not is_refusal(error)
    return takes_no_writes or not connections[app_settings.DATABASE].is_usable()


def ends_the_step(error: Exception) -> bool:
    """As well a Redis that cannot be asked: each further row would wait for it again."""
    return isinstance(error, RedisError) or ends_the_sweep(error)
