"""What a job registers with the driver for its database session neither the next tenant's job meets nor our books."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import django_rq
import pytest
from django.db import connection

from tenant_slots import tenant_job
from tenant_slots.models import State, TenantJob
from tests.factories import counters_match, fresh
from tests.processes import Workers
from tests.workers.test_baseline import PREFORK, SIMPLE, results_under

STOCK = "rq.Worker"
UNSUSPECTING = "tests.workers.classes.Unsuspecting"

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about psycopg"),
]

heard: list[str] = []


def adapt(session: Any) -> None:
    """As many do who come from psycopg2."""
    from psycopg.types.numeric import FloatLoader

    session.adapters.register_loader("numeric", FloatLoader)


def adapt_and_go_on(session: Any) -> None:
    """A cursor with a loader of its own shares the others with its session."""
    from psycopg.types.string import TextLoader

    adapt(session)
    session.cursor().adapters.register_loader("timestamptz", TextLoader)


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


def read_json_otherwise(session: Any) -> None:
    from psycopg.types.json import set_json_loads

    set_json_loads(lambda _: {"whale": 1}, session)


def refuse_numbers(session: Any) -> None:
    from psycopg.types.string import StrDumper

    class Refusing(StrDumper):
        def dump(self, obj: Any) -> Any:
            raise ValueError("no numbers here")

        quote = dump

    session.adapters.register_dumper(int, Refusing)


def read_times_as_text(session: Any) -> None:
    """As for those that Python has not, like 'infinity'."""
    from psycopg.types.string import TextLoader

    session.adapters.register_loader("timestamptz", TextLoader)


LEFT: dict[str, Callable[[Any], None]] = {
    "a loader": adapt,
    "a loader, before a cursor has one too": adapt_and_go_on,
    "a dumper": adapt_parameters,
    "a handler of notices": hear,
    "a class of cursors": execute_otherwise,
    "a class of cursors on the server": stream_otherwise,
    "that each statement is prepared": lambda session: setattr(session, "prepare_threshold", 0),
    "a reader of JSON": read_json_otherwise,
    "a dumper that refuses": refuse_numbers,
    "a loader of times": read_times_as_text,
    "nothing": lambda session: None,
}


def register(what: str) -> list[Any]:
    connection.ensure_connection()
    LEFT[what](connection.connection)
    return [os.getpid(), connection.connection.info.backend_pid]


@tenant_job("imports", tenant="tenant")
def leave(tenant: str, what: str) -> list[Any]:
    return register(what)


@tenant_job("imports", tenant="tenant")
def leave_in_session_of_its_own(tenant: str, what: str) -> list[Any]:
    """As what runs for long does, which has Django close the one that it was called in."""
    connection.close()
    return register(what)


def register_before_a_job(what: str) -> None:
    register(what)
    meet.enqueue("acme")


@tenant_job("imports", tenant="tenant")
def meet(tenant: str) -> list[Any]:
    heard.clear()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1.10::numeric, pg_typeof(%s)::text", [1])
        number, kind = cursor.fetchone()
        cursor.execute("DO $$ BEGIN RAISE NOTICE 'private'; END $$")
    return [os.getpid(), connection.connection.info.backend_pid, repr(number), kind, list(heard)]


@pytest.mark.parametrize("worker_class", [PREFORK, SIMPLE])
@pytest.mark.parametrize("leaving", [leave, leave_in_session_of_its_own])
def test_the_next_job_in_its_process_does_not_meet_it(workers: Workers, leaving: Any, worker_class: str) -> None:
    """Without work-horses the worker keeps its books in the same session."""
    jobs = [meet.enqueue("acme")]
    for what in LEFT:
        jobs += [leaving.enqueue("acme", what), meet.enqueue("acme")]
    results = results_under(workers, worker_class, jobs)
    assert len({process for process, *_ in results}) == 1
    (_, _, *before), *met = results[::2]
    assert {what: after for what, (_, _, *after) in zip(LEFT, met, strict=True)} == dict.fromkeys(LEFT, before)
    sessions = zip(LEFT, results[1::2], met, strict=True)
    kept = [what for what, (_, left_in), (_, found_in, *_) in sessions if left_in == found_in]
    assert kept == ["nothing"], "the control keeps its session"


@pytest.mark.parametrize("worker_class", [SIMPLE, pytest.param(f"{UNSUSPECTING}SimpleWorker", id="control")])
def test_nor_what_a_plain_rq_job_registers_that_takes_no_slot(workers: Workers, worker_class: str) -> None:
    django_rq.get_queue("imports").enqueue(register_before_a_job, "a loader")
    assert workers.run("--burst", worker_class=worker_class).returncode == 0
    met = TenantJob.objects.get().result[2]
    assert met == ("Decimal('1.10')" if worker_class == SIMPLE else "1.1")


@pytest.mark.parametrize("worker_class", [STOCK, pytest.param(f"{UNSUSPECTING}StockWorker", id="control")])
@pytest.mark.parametrize("leaving", [leave, leave_in_session_of_its_own])
@pytest.mark.parametrize("what", ["a loader of times", "a class of cursors"])
def test_it_does_not_keep_a_stock_worker_from_recording_that_the_job_has_ended(
    workers: Workers, what: str, leaving: Any, worker_class: str
) -> None:
    job = leaving.enqueue("whale", what)
    workers.run("--burst", worker_class=worker_class)
    assert (fresh(job).state == State.FINISHED and counters_match()) is (worker_class == STOCK)


@pytest.mark.parametrize("who", ["its caller", "the job"])
def test_a_job_that_is_run_where_it_is_enqueued_leaves_its_callers_session_alone(who: str) -> None:
    """What the caller has registered since the last such job is no leftover of this one."""
    queue = django_rq.get_queue("imports", is_async=False)
    queue.enqueue(leave, "acme", "nothing")
    connection.ensure_connection()
    session: Any = connection.connection
    if who == "its caller":
        adapt(session)
    queue.enqueue(leave, "acme", "a loader" if who == "the job" else "nothing")
    try:
        assert set(TenantJob.objects.values_list("state", flat=True)) == {State.FINISHED}
        assert (connection.connection is session) is (who == "its caller"), "the control gets another session"
    finally:
        connection.close()
