"""A sweep's time is over while it waits for the project's code: it ends there, and the next one goes on."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection
from django.dispatch import Signal
from django.test import override_settings

from tenant_slots import signals, slots
from tenant_slots.db import sessions
from tenant_slots.db.clock import in_seconds
from tenant_slots.db.sessions import private_connection
from tenant_slots.enqueueing import on_busy
from tenant_slots.interruptions import SweepTimeout
from tenant_slots.models import State, SweepClaim, TenantJob
from tenant_slots.repair import findings, steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.repair.sweeper import Sweeper
from tests.factories import counters_match, dead_process, running_job, tenant_queue, waiting_job
from tests.processes import test_database_url as database_url
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite's session cannot wait")

SECONDS = 3
"""A sweep has 2."""


def brief_sweep() -> Contact:
    """Of a process that has seen nothing yet; in a session of its own."""
    sweeper = Sweeper("test")
    SweepClaim.objects.update(until=in_seconds(-1))
    with override_settings(TENANT_SLOTS={"LEASE_TTL": 5}), private_connection(5):
        sweeper.sweep_if_due()
    return sweeper.contact


@pytest.mark.parametrize(("lease", "seconds"), [(20, 8.0), (4, 1.6), (2, 1.0)])
def test_a_sweep_has_its_share_of_a_short_lease_too(
    lease: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a whole second alone the look at what a fleet has left would take all, and nothing after it would be done."""
    given: list[float] = []
    monkeypatch.setattr(signal, "setitimer", lambda which, *seconds: given.append(seconds[0]))
    with override_settings(TENANT_SLOTS={"LEASE_TTL": lease}):
        Sweeper("test").sweep_if_due()
    assert given == [seconds]


def hangs() -> None:
    time.sleep(SECONDS)


def tries_again() -> None:
    """As a client of some service does, whatever went wrong."""
    for _ in range(3):
        with suppress(Exception):
            time.sleep(SECONDS)


def waits_for_an_answer() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_sleep({SECONDS})")


WAYS = [hangs, tries_again, pytest.param(waits_for_an_answer, marks=on_postgresql)]


@contextmanager
def heard(signal: Signal, does: Callable[[], object]) -> Iterator[list[TenantJob]]:
    """What is told of by it; the receiver does this then."""
    told: list[TenantJob] = []

    def receive(job: TenantJob, **_: Any) -> None:
        told.append(job)
        does()

    signal.connect(receive)
    try:
        yield told
    finally:
        signal.disconnect(receive)


def lost(number: int) -> None:
    """So many jobs of dead processes."""
    for one in range(number):
        running_job(tenant_queue(f"tenant {one}"), dead_process())


@pytest.mark.parametrize("does", WAYS)
def test_receivers_that_hang_take_no_more_than_the_time_of_the_sweep(does: Callable[[], object]) -> None:
    lost(3)
    with heard(signals.job_put_back, does) as told:
        for number in (1, 2, 3):
            began = time.monotonic()
            contact = brief_sweep()
            assert time.monotonic() - began < SECONDS
            assert len(told) == number, "the next one goes on"
            assert contact.breaks == 0, "that is no outage of the database"
            assert TenantJob.objects.filter(state=State.QUEUED).count() == number, "the order of tenants was told"
    assert counters_match()


def test_control_those_that_end_in_time_are_all_told_in_one_sweep() -> None:
    lost(3)
    with heard(signals.job_put_back, lambda: None) as told:
        brief_sweep()
    assert len(told) == 3


def test_an_asynchronous_receiver_is_interrupted_too() -> None:
    lost(2)
    told: list[TenantJob] = []

    async def receive(job: TenantJob, **_: Any) -> None:
        told.append(job)
        await asyncio.sleep(SECONDS)

    signals.job_put_back.connect(receive)
    try:
        brief_sweep()
    finally:
        signals.job_put_back.disconnect(receive)
    assert len(told) == 1


@pytest.mark.parametrize("does", WAYS)
def test_a_callable_that_hangs_ends_the_sweep_and_the_next_one_asks_another_job(
    does: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def decide(job: TenantJob, row: object) -> str:
        asked.append(job.pk)
        does()
        return "wait"

    monkeypatch.setattr(on_busy, "_on_busy", lambda job: decide)
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row, asks=True) for _ in range(3)]

    def has_asked_another() -> bool:
        """On a busy machine the time of a sweep may be over before it asks anybody."""
        before = len(asked)
        assert brief_sweep().breaks == 0
        return len(asked) > before

    for number in (1, 2, 3):
        wait_until(has_asked_another)
        assert asked == [job.pk for job in jobs[:number]]
        assert set(findings.to_ask().values_list("pk", flat=True)) == {job.pk for job in jobs[number:]}


def test_nor_is_a_job_asked_again_whose_module_takes_as_long_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_busy, "task_of", lambda job: hangs())
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row, asks=True) for _ in range(2)]
    brief_sweep()
    assert list(findings.to_ask()) == jobs[1:]


@on_postgresql
@pytest.mark.parametrize("is_closed", [True, pytest.param(False, id="control")])
def test_a_session_in_whose_statement_the_time_was_over_is_not_gone_on_with(
    is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else can be asked there: "another command is already in progress", which looks like an outage."""
    if not is_closed:
        monkeypatch.setattr(sessions, "_is_busy", lambda connection: False)

    def too_long(report: Report, contact: Contact) -> None:
        raise SweepTimeout

    def no_answer(*_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(3)")

    monkeypatch.setattr(steps, "STEPS", (too_long,))
    with monkeypatch.context() as patched:
        patched.setattr(slots, "beat", no_answer)
        assert Sweeper("test").sweep_if_due() is None
    if is_closed:
        assert TenantJob.objects.count() == 0
    else:
        with pytest.raises(OperationalError, match="in progress"):
            TenantJob.objects.count()
        connection.close()


@on_postgresql
def test_the_sessions_of_other_threads_and_those_that_wait_for_nothing_are_left_alone() -> None:
    with connection.cursor() as cursor, psycopg.connect(database_url()) as other:
        cursor.execute("SELECT pg_backend_pid()")
        before = cursor.fetchone()
        sessions.leave_statements()
        cursor.execute("SELECT pg_backend_pid()")
        assert cursor.fetchone() == before
        assert other.execute("SELECT 1").fetchone() == (1,)


@on_postgresql
def test_a_session_in_whose_statement_the_time_was_over_is_closed_though_another_signal_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where `slots_sweep --loop` is told to end while the server is asked to cancel, and does not answer that."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sessions, "cancel", interrupted)
    connection.ensure_connection()
    connection.connection.pgconn.send_query(b"SELECT 1")  # whose answer nobody reads
    try:
        with pytest.raises(KeyboardInterrupt):
            sessions.leave_statements()
        assert connection.connection.closed
    finally:
        sessions.end(connection)
