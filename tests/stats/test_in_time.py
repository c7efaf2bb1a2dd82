"""Monitoring is told that the database is away before it gives up itself."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import Error, close_old_connections, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from psycopg import capabilities

from tenant_slots.contrib.prometheus import TenantSlotsCollector
from tenant_slots.db.sessions import cut
from tenant_slots.models import TenantQueue
from tenant_slots.stats import in_time
from tests.faults.proxy import Proxy
from tests.processes import wait_until
from tests.sentinels import silent_servers

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no host"),
]

LONGER = 30
"""Seconds, than any of it takes; psycopg by itself waits for more."""

PROMETHEUS_SECONDS = 10
"""After which it gives a scrape up."""


def everybody(request: HttpRequest) -> bool:
    return True


@pytest.fixture(autouse=True)
def _open() -> Iterator[None]:
    path = f"{__name__}.everybody"
    with override_settings(TENANT_SLOTS={"MAY_VIEW_HEALTH": path, "MAY_VIEW_METRICS": path}):
        yield


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New sessions go to a host that accepts them and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        lead_to(server.getsockname()[1], monkeypatch)
        yield


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """New sessions go through it."""
    connection.ensure_connection()
    server = connection.connection.info
    is_file = server.host.startswith("/")
    with closing(Proxy(f"{server.host}/.s.PGSQL.{server.port}" if is_file else (server.host, server.port))) as proxy:
        lead_to(proxy.port, monkeypatch)
        yield proxy


def lead_to(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HOST": "127.0.0.1", "PORT": port}.items():
        monkeypatch.setitem(connection.settings_dict, name, value)


def in_thread(function: Callable[[], Any]) -> Any:
    """What it gives in a thread without a session so far. One that does not end is left behind."""
    given: list[Any] = []

    def call() -> None:
        try:
            given.append(function())
        finally:
            connections.close_all()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(LONGER)
    assert given, "it has not answered"
    return given[0]


def answer_of(view: str) -> tuple[int, bytes]:
    response = Client().get(reverse(view))
    return response.status_code, response.content


ANSWERS = {
    "health": (503, b'"findings": {"database": 1}'),
    "autoscaling": (503, b"the database cannot be asked"),
    "metrics": (200, b"tenant_slots_database_up 0.0"),
}


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("view", ANSWERS)
def test_a_host_that_says_nothing_is_waited_for_a_moment(view: str) -> None:
    status, content = in_thread(lambda: answer_of(view))
    assert status == ANSWERS[view][0]
    assert ANSWERS[view][1] in content


@pytest.mark.usefixtures("silent")
def test_a_scrape_is_over_before_prometheus_gives_up_while_four_redis_servers_say_nothing_either() -> None:
    def scrape() -> tuple[float, tuple[int, bytes]]:
        began = time.monotonic()
        answer = answer_of("metrics")
        return time.monotonic() - began, answer

    with silent_servers(4) as ports:
        queues = {f"silent_{port}": {"URL": f"redis://127.0.0.1:{port}/0"} for port in ports}
        with override_settings(RQ_QUEUES=settings.RQ_QUEUES | queues):
            seconds, (status, content) = in_thread(scrape)
    assert (status, ANSWERS["metrics"][1] in content) == (200, True)
    assert b'tenant_slots_redis_up{queue="imports"} 1.0' in content
    assert content.count(b'tenant_slots_redis_up{queue="silent_') == len(ports)
    assert seconds < PROMETHEUS_SECONDS, "one after the other they take ten"


@pytest.mark.parametrize("has_health_checks", [False, True])
@pytest.mark.parametrize("view", ANSWERS)
def test_a_host_that_falls_silent_is_waited_for_a_moment(
    view: str, has_health_checks: bool, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a session is open, of an earlier request."""
    for name, setting in {"CONN_HEALTH_CHECKS": has_health_checks, "CONN_MAX_AGE": None}.items():
        monkeypatch.setitem(connection.settings_dict, name, setting)
    monkeypatch.setattr(in_time, "ANSWER_SECONDS", 0.3)

    def fall_silent() -> tuple[int, bytes]:
        TenantQueue.objects.count()
        close_old_connections()
        proxy.black_hole()
        return answer_of(view)

    status, content = in_thread(fall_silent)
    assert status == ANSWERS[view][0]
    assert ANSWERS[view][1] in content


@pytest.mark.parametrize("view", ANSWERS)
def test_a_session_that_was_lost_while_it_was_idle_does_not_make_a_database_look_away(
    view: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a firewall forgets it; new ones go through."""
    for name, setting in {"CONN_HEALTH_CHECKS": True, "CONN_MAX_AGE": None}.items():
        monkeypatch.setitem(connection.settings_dict, name, setting)

    def lose_the_session() -> tuple[int, bytes]:
        TenantQueue.objects.count()
        close_old_connections()
        proxy.forget()
        return answer_of(view)

    status, content = in_thread(lose_the_session)
    assert status == 200
    assert ANSWERS[view][1] not in content


@pytest.mark.parametrize("seconds", [0, 0.5])
def test_a_host_that_falls_silent_after_the_login_is_waited_for_a_moment(
    seconds: float, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler, which lets everybody in by itself. Django sets the time zone then.

    Also where the login has taken longer than it is given, as a `connect_timeout` of the project's allows.
    """
    for name in ("CONNECT_SECONDS", "CHECK_SECONDS"):
        monkeypatch.setattr(in_time, name, 0.1)
    monkeypatch.setitem(connection.settings_dict, "TIME_ZONE", "Europe/Berlin")
    log_in = type(connections["default"]).get_new_connection

    def log_in_to_silence(self: Any, params: Any) -> Any:
        session = log_in(self, params)
        time.sleep(seconds)
        proxy.black_hole()
        return session

    monkeypatch.setattr(type(connections["default"]), "get_new_connection", log_in_to_silence)
    status, content = in_thread(lambda: answer_of("autoscaling"))
    assert status == ANSWERS["autoscaling"][0]
    assert ANSWERS["autoscaling"][1] in content


def test_a_slow_login_is_no_absence_and_what_is_set_after_it_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may be busy with many new sessions; how long psycopg waits for it is the project's own decision."""
    for name, seconds in {"CONNECT_SECONDS": 0.1, "CHECK_SECONDS": 1}.items():
        monkeypatch.setattr(in_time, name, seconds)
    log_in = type(connections["default"]).get_new_connection
    set_up = type(connections["default"]).init_connection_state

    def log_in_slowly(self: Any, params: Any) -> Any:
        time.sleep(1)
        return log_in(self, params)

    def set_up_slowly(self: Any) -> None:
        time.sleep(0.4)
        set_up(self)

    monkeypatch.setattr(type(connections["default"]), "get_new_connection", log_in_slowly)
    monkeypatch.setattr(type(connections["default"]), "init_connection_state", set_up_slowly)
    status, content = in_thread(lambda: answer_of("autoscaling"))
    assert status == 200
    assert ANSWERS["autoscaling"][1] not in content


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("view", ANSWERS)
def test_control_while_it_answers_the_session_that_is_open_is_used(view: str) -> None:
    def ask() -> tuple[tuple[int, bytes], int]:
        TenantQueue.objects.count()
        with CaptureQueriesContext(connection) as asked:
            return answer_of(view), len(asked)

    (status, content), asked = in_thread(ask)
    assert status == 200
    assert ANSWERS[view][1] not in content
    assert asked >= 2


def test_answers_that_take_too_long_only_together_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_time, "ANSWER_SECONDS", 0.3)

    def ask() -> None:
        with in_time.answered_in_time(), connection.cursor() as cursor:
            for _ in range(20):
                cursor.execute("SELECT pg_sleep(0.1)")

    with pytest.raises(Error):
        ask()
    connection.close()


def test_what_is_done_between_two_questions_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Redis is asked there."""
    monkeypatch.setattr(in_time, "ANSWER_SECONDS", 0.3)
    with in_time.answered_in_time():
        threading.Event().wait(0.5)
        assert TenantQueue.objects.count() == 0


def test_a_cut_that_comes_just_after_the_answer_breaks_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_time, "ANSWER_SECONDS", 0.1)
    too_long, answered, was_cut = threading.Event(), threading.Event(), threading.Event()

    def cut_late(session: BaseDatabaseWrapper) -> None:
        too_long.set()
        answered.wait(LONGER)
        cut(session)
        was_cut.set()

    def answer_at_last(execute: Callable[..., Any], *args: Any) -> Any:
        too_long.wait(LONGER)
        answer = execute(*args)
        answered.set()
        return answer

    monkeypatch.setattr(in_time, "cut", cut_late)
    connection.ensure_connection()
    with in_time.answered_in_time(), connection.execute_wrapper(answer_at_last):
        assert TenantQueue.objects.count() == 0
    assert was_cut.wait(LONGER)
    assert TenantQueue.objects.count() == 0


def test_in_a_transaction_of_the_callers_answers_take_as_long_as_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A project's own page may have begun one, and goes on in it."""
    monkeypatch.setattr(in_time, "ANSWER_SECONDS", 0.1)
    with transaction.atomic():
        with in_time.answered_in_time(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.5)")
        assert TenantQueue.objects.count() == 0


def scraped() -> dict[str, float]:
    """What the collector tells that has no labels, as a page of the project's or `make_wsgi_app` gives it."""
    return {sample.name: sample.value for metric in TenantSlotsCollector().collect() for sample in metric.samples}


@pytest.mark.parametrize("is_refused", [True, pytest.param(False, id="control")])
def test_what_fails_in_a_transaction_of_the_callers_undoes_nothing_of_it(is_refused: bool) -> None:
    """A page of the project's has written who has asked, and says 200."""

    def refuse(execute: Callable[..., Any], sql: Any, *given: Any) -> Any:
        is_ours = is_refused and "tenant_slots" in str(sql)
        return execute("SELECT 1 / 0" if is_ours else sql, () if is_ours else given[0], *given[1:])

    with transaction.atomic():
        User.objects.create(username="scraper")
        with connection.execute_wrapper(refuse):
            assert scraped()["tenant_slots_database_up"] == float(not is_refused)
        assert User.objects.count() == 1
    assert User.objects.count() == 1


def test_each_scrape_looks_whether_the_session_lives_though_no_request_of_djangos_began(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind `make_wsgi_app`, of which Django hears nothing."""
    for name, setting in {"CONN_HEALTH_CHECKS": True, "CONN_MAX_AGE": None}.items():
        monkeypatch.setitem(connection.settings_dict, name, setting)

    def lose_the_session() -> float:
        TenantQueue.objects.count()
        close_old_connections()
        assert scraped()["tenant_slots_database_up"] == 1
        proxy.forget()
        return scraped()["tenant_slots_database_up"]

    assert in_thread(lose_the_session) == 1


@pytest.mark.skipif(not capabilities.has_cancel_safe(), reason="libpq is older than 17")
def test_a_server_does_not_go_on_with_what_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_time, "ANSWER_SECONDS", 0.3)

    def ask() -> int:
        connection.ensure_connection()
        pid: int = connection.connection.info.backend_pid
        with pytest.raises(Error), in_time.answered_in_time(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")
        return pid

    pid = in_thread(ask)

    def is_there() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
            return bool(cursor.fetchone()[0])

    wait_until(lambda: not is_there())
