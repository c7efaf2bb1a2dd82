"""What a job registers with the driver for its database session: the next tenant's job has another session."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from tenant_slots import tenant_job
from tests.processes import Workers
from tests.workers.test_baseline import PREFORK, results_under

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about psycopg"),
]

heard: list[str] = []


def adapt(session: Any) -> None:
    """As many do who come from psycopg2."""
    from psycopg.types.numeric import FloatLoader

    session.adapters.register_loader("numeric", FloatLoader)


def adapt_parameters(session: Any) -> None:
    from psycopg.types.string import StrDumper

    session.adapters.register_dumper(int, StrDumper)


def hear(session: Any) -> None:
    session.add_notice_handler(lambda notice: heard.append(str(notice.message_primary)))


def execute_otherwise(session: Any) -> None:
    from psycopg import Cursor

    class Stealing(Cursor[Any]):
        def fetchone(self) -> Any:
            return ("stolen", "stolen")

    session.cursor_factory = Stealing


def stream_otherwise(session: Any) -> None:
    from psycopg import ServerCursor

    session.server_cursor_factory = type("Own", (ServerCursor,), {})


LEFT: dict[str, Callable[[Any], None]] = {
    "a loader": adapt,
    "a dumper": adapt_parameters,
    "a handler of notices": hear,
    "a class of cursors": execute_otherwise,
    "a class of cursors on the server": stream_otherwise,
    "that each statement is prepared": lambda session: setattr(session, "prepare_threshold", 0),
    "nothing": lambda session: None,
}


@tenant_job("imports", tenant="tenant")
def leave(tenant: str, what: str) -> list[Any]:
    connection.ensure_connection()
    LEFT[what](connection.connection)
    return [os.getpid(), connection.connection.info.backend_pid]


@tenant_job("imports", tenant="tenant")
def meet(tenant: str) -> list[Any]:
    heard.clear()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1.10::numeric, pg_typeof(%s)::text", [1])
        number, kind = cursor.fetchone()
        cursor.execute("DO $$ BEGIN RAISE NOTICE 'private'; END $$")
    return [os.getpid(), connection.connection.info.backend_pid, repr(number), kind, list(heard)]


@pytest.mark.parametrize("what", LEFT)
def test_another_tenants_job_does_not_meet_it(workers: Workers, what: str) -> None:
    jobs = [meet.enqueue("acme"), leave.enqueue("whale", what), meet.enqueue("acme")]
    (horse, _, *before), (_, left_in), (same_horse, found_in, *after) = results_under(workers, PREFORK, jobs)
    assert after == before
    assert horse == same_horse
    assert (left_in == found_in) is (what == "nothing"), "the control keeps its session"
