"""What a job has left in database sessions: it is rolled back or put back, or the session is closed."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from asgiref.sync import SyncToAsync
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from rq.timeouts import BaseTimeoutException

from tenant_slots import logs
from tenant_slots.alarm import time_limit
from tenant_slots.conf import app_settings
from tenant_slots.db import leftovers
from tenant_slots.db.compiled import takes_one_at_a_time
from tenant_slots.db.sessions import close_if_ended, end, renew, take_left_block
from tenant_slots.db.transactions import has_begun
from tenant_slots.models import TenantJob

logger = logging.getLogger("tenant_slots")

RESET = (
    "RESET ALL; RESET SESSION AUTHORIZATION; UNLISTEN *; CLOSE ALL; SELECT pg_advisory_unlock_all(); DISCARD TEMP; "
    "DISCARD SEQUENCES; SELECT setseed(hashtext(gen_random_uuid()::text) / 2147483648.0)"
)
"""All that ``DISCARD ALL`` does, but for what is prepared, which the driver has done; and nobody can foretell what the
next job draws.
"""

PREPARED_BY_JOB = "SELECT 1 FROM pg_prepared_statements WHERE from_sql LIMIT 1"

NOT_FOR_WRITING = ("default_transaction_read_only", "in_hot_standby")
"""What PostgreSQL tells of a session that takes no writes, from version 14 on."""

SECONDS_TO_CLOSE = 0.2
"""How long a thread may take to close its sessions, which takes it a millisecond."""


class SessionTimeout(BaseTimeoutException):
    """The database did not answer in time; its session may be dead without knowing it."""


def end_thread_of_coroutines() -> None:
    """asgiref's, which makes the ORM calls of coroutines: it ends with its sessions, and another one is made.

    One that still does what a coroutine has left behind goes on.
    """
    executor = SyncToAsync.single_thread_executor
    if not executor._threads:
        return  # nobody has used it
    SyncToAsync.single_thread_executor = ThreadPoolExecutor(max_workers=1)
    closing = executor.submit(connections.close_all)
    executor.shutdown(wait=bool(wait([closing], SECONDS_TO_CLOSE).done))


def leave_transactions(ways: dict[str, leftovers.Way], job: TenantJob | None = None) -> bool:
    """What a job has left open is rolled back: it may lock what the recording of the job's end needs.

    Returns whether it was a block of ``atomic()``, which whatever still holds it may end in the midst of another one.

    Args:
        ways: of queries, as they were before the job. Its own have no say in this, nor in what comes after.
        job: the one that has run, if that was one of ours, for the log.
    """
    leftovers.put_ways_back(ways)
    for connection in connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        if _is_in_transaction(connection):
            logger.error("a job left a transaction open; what it wrote there is rolled back", extra=logs.about(job))
            renew(connection)
        elif not leftovers.is_as_made(connection):
            end(connection)
    return take_left_block()


def close_ended_sessions() -> None:
    """See `close_if_ended`."""
    for connection in connections.all(initialized_only=True):
        close_if_ended(connection)


def restore_sessions() -> None:
    """Keep the database sessions, without what a job left in them; one that cannot be cleaned is closed."""
    for connection in connections.all(initialized_only=True):
        try:
            with time_limit(app_settings.LEASE_TTL / 4, SessionTimeout):
                _restore(connection)
        except Exception:  # the project's receivers of `connection_created` may raise any
            connection.close()
        _close_if_obsolete(connection)


def _close_if_obsolete(connection: BaseDatabaseWrapper) -> None:
    """As Django does after a request. Ours is not closed after each job, as its default for `CONN_MAX_AGE` says."""
    if connection.alias != app_settings.DATABASE or connection.settings_dict["CONN_MAX_AGE"]:
        connection.close_if_unusable_or_obsolete()
    else:
        connection.health_check_done = False  # type: ignore[attr-defined]


def _restore(connection: BaseDatabaseWrapper) -> None:
    if connection.connection is None:
        return
    if connection.vendor != "postgresql":
        connection.close()
        return
    if _reset(connection) or _takes_no_writes(connection):
        end(connection)
        return
    leftovers.ask_same_schema(connection)
    connection.init_connection_state()
    if connection.pool:  # type: ignore[attr-defined]  # which has configured it once; Django 5.1 and later
        connection._configure_connection(connection.connection)  # type: ignore[attr-defined]
    leftovers.forget_what_is_registered(connection)
    connection_created.send(sender=connection.__class__, connection=connection)  # as for one that is new


def _reset(connection: BaseDatabaseWrapper) -> bool:
    """And set the project's time zone in the same round trip, where the driver binds parameters.

    Django sets it where it is another one, as in nearly each session that was reset: see `init_connection_state`.

    Returns whether a job has left a prepared statement.
    """
    with connection.cursor() as cursor:
        if takes_one_at_a_time(connection.alias):
            cursor.execute(f"{RESET}; {PREPARED_BY_JOB}")
        else:
            set_time_zone = connection.ops.set_time_zone_sql()
            cursor.execute(f"{RESET}; {set_time_zone}; {PREPARED_BY_JOB}", [connection.timezone_name])
        return _last_of_several(cursor) is not None


def _last_of_several(cursor: Any) -> Any:
    """The row that the last one of the statements has given."""
    while cursor.nextset():
        pass
    return cursor.fetchone()


def _takes_no_writes(connection: BaseDatabaseWrapper) -> bool:
    """As one of our database that was made when nobody could write there: it would be so for as long as it is kept.

    The server says so by itself.
    """
    status = getattr(connection.connection.info, "parameter_status", None)
    return (
        connection.alias == app_settings.DATABASE
        and status is not None
        and any(status(name) == "on" for name in NOT_FOR_WRITING)
    )


def _is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether or not Django knows of it: a job may have sent BEGIN itself."""
    if connection.in_atomic_block or connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return True
    if connection.vendor == "postgresql":
        return not connection.connection.closed and has_begun(connection)
    return bool(getattr(connection.connection, "in_transaction", False))
