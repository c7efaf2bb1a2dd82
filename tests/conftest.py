from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django_rq
import pytest
from django.core.management.commands import flush
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import Client
from django.utils import timezone, translation
from hypothesis import HealthCheck, settings

from tenant_slots import held, redis_servers, transitions
from tests import redis_connections, servers
from tests.factories import pretend_idle
from tests.history import History
from tests.processes import Workers, threads_of_reservations, wait_until

WRITTEN_BY_MIGRATING = {"auth_permission", "django_content_type"}
"""Tables whose rows no test changes."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """For ``-n auto`` and ``-n logical``: more than there are processors, as tests often wait for workers."""
    return 0 if servers.redis_is_given() else max(2, (os.cpu_count() or 1) * 3 // 2)


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")
    if servers.redis_is_given() and config.getoption("numprocesses", None):
        raise pytest.UsageError(
            "REDIS_URL names one Redis, and every process of -n needs its own: leave out one of them"
        )


def pytest_report_header(config: pytest.Config) -> str | None:
    if servers.redis_is_given() and config.getoption("numprocesses", None) == 0:
        return "xdist: no further processes, because REDIS_URL names one Redis and the tests flush it"
    return None


@pytest.fixture(autouse=True, scope="session")
def _quick_flush() -> Iterator[None]:
    """After a test with transactions its few rows are deleted, and what migrating has written stays.

    TRUNCATE gives every table new files, which takes a quarter of a second. To write permissions and content types anew
    takes a hundred statements.
    """

    def sql_flush(style: Any, connection: BaseDatabaseWrapper, **_: Any) -> list[str]:
        tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
        return [
            f"DELETE FROM {connection.ops.quote_name(table)};"  # noqa: S608 - names of our tables
            for table in sorted({*tables} - WRITTEN_BY_MIGRATING)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flush, "sql_flush", sql_flush)
        patch.setattr(flush, "emit_post_migrate_signal", lambda *_: None)
        yield


@pytest.fixture(autouse=True)
def _redis_connections_closed() -> Iterator[None]:
    with redis_connections.closed_at_the_end():
        yield


@pytest.fixture(autouse=True)
def _empty_redis(request: pytest.FixtureRequest, _redis_connections_closed: None) -> None:
    """And, unless a test starts workers or asks for none, a hundred that are idle: what may run is then admitted."""
    redis_servers.forget_absences()  # an earlier test may have had it away
    django_rq.get_connection("default").flushdb()
    if not {"workers", "no_workers"} & set(request.fixturenames):
        pretend_idle(100)


@pytest.fixture
def no_workers() -> None:
    """Nobody listens: one job of each queue is admitted ahead, as for a worker that is not ours."""


@pytest.fixture
def boss(db: None) -> Client:
    return _signed_in(superuser=True)


@pytest.fixture
def viewer(db: None) -> Client:
    return _signed_in("view_tenantqueue", "view_tenantjob")


def _signed_in(*permissions: str, superuser: bool = False) -> Client:
    from tests.admin.site import signed_in  # its models exist only once Django is set up

    return signed_in(*permissions, superuser=superuser)


@pytest.fixture(autouse=True)
def _nothing_shared() -> None:
    """What one test's viewers were shown is not shown to the next one's, and who was held then is not any more."""
    from tenant_slots.admin.snapshots import forget_shared

    forget_shared()
    held._seen.clear()


@pytest.fixture(autouse=True)
def _reservations_are_over() -> Iterator[None]:
    """Before the tables are emptied: a thread whose caller has left it would write to those of the next test."""
    yield
    for thread in threads_of_reservations():
        thread.join(30)


@pytest.fixture(autouse=True)
def _told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: what takes half a second would be left to a sweep. A test of that has its own."""
    monkeypatch.setattr(transitions, "SECONDS_TO_TELL", 60)


@pytest.fixture(autouse=True)
def _own_language() -> Iterator[None]:
    """What a request of the test has asked for does not last."""
    yield
    translation.deactivate()


@pytest.fixture
def within_one_minute() -> None:
    """What is done once a minute is not done in the midst of the test, which would have to count with it."""
    wait_until(lambda: timezone.now().second < 55)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """What jobs wrote about their runs; pass ``history.path`` to a job."""
    return History(tmp_path / "history")


@pytest.fixture(scope="session")
def _nobody_is_left(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The server needs a moment to notice that a killed worker is gone; until then its database cannot be dropped.

    Nor while it vacuums that by itself, which takes more than a moment on a loaded machine.
    """
    yield
    if connection.vendor == "postgresql":
        with django_db_blocker.unblock():
            try:
                wait_until(lambda: not _other_sessions())
            except AssertionError:
                pytest.fail(f"a test left sessions, or processes with sessions, behind: {_other_sessions()}")


def _other_sessions() -> list[tuple[Any, ...]]:
    """What they did last, and when they began: this leads to the test."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, backend_type, backend_start::text, state, query FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return cursor.fetchall()


@pytest.fixture
def workers(transactional_db: None, _nobody_is_left: None) -> Iterator[Workers]:
    """Starts real ``manage.py rqworker`` processes on the test database and kills them after the test."""
    started = Workers()
    yield started
    started.stop()
