"""Databases, drivers and systems that do not work are refused by name, before anything is stored or run."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import django_rq
import pytest
from django.conf import settings
from django.core.checks import CheckMessage, Tags, run_checks
from django.db import connection
from django.test import override_settings
from redis import Redis
from redis.exceptions import NoPermissionError

from tenant_slots import surroundings
from tenant_slots.db import supported
from tenant_slots.exceptions import UnsupportedDatabase
from tenant_slots.repair import doctor
from tests.processes import ROOT, environment, wait_until

PROJECT = """
import os
from tests.settings import *

DATABASES = {"default": {"ENGINE": os.environ["ENGINE"], "NAME": os.environ["NAME"]}}
if "SOCKET" in os.environ:
    DATABASES["default"] |= {"USER": "root", "OPTIONS": {"unix_socket": os.environ["SOCKET"]}}
SILENCED_SYSTEM_CHECKS = os.environ.get("SILENCED", "").split()
"""

CHECK_AS_ON_WINDOWS = """
import asyncio, multiprocessing, os, signal, sys
import django_rq, psycopg, redis, rq
from django.core.management import execute_from_command_line

for name in ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGSTOP", "SIGUSR1", "SIGUSR2"):
    delattr(signal, name)
for name in ("fork", "getpgid", "killpg", "register_at_fork", "setpgid", "waitid", "WNOHANG"):
    vars(os).pop(name, None)
sys.modules["fcntl"] = sys.modules["resource"] = None
sys.platform = "win32"
execute_from_command_line(["manage.py", "check"])
"""
"""What others import is there already: that it works there is theirs to say."""

WITHOUT_PSYCOPG_3 = "import sys\nsys.modules['psycopg'] = None\n"
"""As in a project that has psycopg2 only: to import psycopg fails."""


def messages(deploy: bool = False) -> list[CheckMessage]:
    found = run_checks(tags=["tenant_slots"], include_deployment_checks=deploy)
    return [message for message in found if message.id not in ("tenant_slots.W001", "tenant_slots.W004")]


def manage(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "manage.py", *arguments]
    values = {**environment(), **variables}
    return subprocess.run(command, cwd=ROOT, env=values, capture_output=True, text=True, timeout=60)


# --- a database that is away ----------------------------------------------------------------------------------------

AWAY = "postgresql://nobody@127.0.0.1:1/nothing"
"""As where an image is built, and while a server is down."""


def test_checks_need_no_database() -> None:
    """Django 6.1 asks for the version of the server before it checks a GeneratedField."""
    run = manage("check", DATABASE_URL=AWAY)
    assert (run.returncode, run.stderr) == (0, "")


def test_the_probe_of_a_worker_needs_no_database() -> None:
    run = manage("slots_doctor", "--here", DATABASE_URL=AWAY)
    assert (run.returncode, run.stderr) == (1, "")
    assert run.stdout.startswith("no worker here")


def test_the_doctor_tells_a_database_that_is_away_from_a_finding() -> None:
    run = manage("slots_doctor", DATABASE_URL=AWAY)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("the database cannot be asked: ")


# --- psycopg2 ------------------------------------------------------------------------------------------------------


@pytest.fixture
def with_psycopg2(tmp_path: Path) -> dict[str, str]:
    pytest.importorskip("psycopg2", reason="psycopg2-binary is in the extra `test`")
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PSYCOPG_3)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path[1:], str(ROOT)])}


@pytest.mark.skipif(connection.vendor != "postgresql", reason="a driver of PostgreSQL")
@pytest.mark.parametrize("command", ["check", "migrate", "slots_sweep"])
def test_a_project_with_psycopg2_is_told_to_install_psycopg_3(command: str, with_psycopg2: dict[str, str]) -> None:
    run = manage(command, **with_psycopg2)
    assert run.returncode == 1
    assert "tenant_slots.E011" in run.stderr
    assert 'pip install "psycopg[binary]>=3.2"' in run.stderr
    assert "switches the whole project" in run.stderr


@pytest.mark.skipif(connection.vendor != "postgresql", reason="a driver of PostgreSQL")
def test_the_control_with_psycopg_3_beside_psycopg2_nothing_is_said() -> None:
    run = manage("check")
    assert (run.returncode, run.stderr) == (0, "")


# --- other databases -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["mysql", "oracle"])
def test_a_database_that_is_not_supported_is_named(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not its driver is installed."""
    databases = {"default": {"ENGINE": f"django.db.backends.{engine}", "NAME": "shop"}}
    monkeypatch.setattr(settings, "DATABASES", databases)
    (message,) = messages()
    assert (message.id, engine in message.msg) == ("tenant_slots.E012", True)
    assert "PostgreSQL" in str(message.hint)


def test_a_backend_of_the_project_is_taken_for_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "DATABASES", {"default": {"ENGINE": "tests.odd_backend", "NAME": "shop"}})
    assert [message.id for message in messages()] == ["tenant_slots.E012"]


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.mark.parametrize("silenced", ["", "tenant_slots.E012"])
def test_migrate_refuses_such_a_database_before_it_leaves_tables(tmp_path: Path, silenced: str) -> None:
    """A backend that says so of itself. Who silences the check does not get half of our tables."""
    (tmp_path / "odd_settings.py").write_text(PROJECT)
    path = tmp_path / "odd.sqlite3"
    variables = {"ENGINE": "tests.odd_backend", "NAME": str(path), "SILENCED": silenced}
    search = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "DJANGO_SETTINGS_MODULE": "odd_settings"}
    run = manage("migrate", "tenant_slots", **variables, **search)
    assert run.returncode == 1
    assert ("UnsupportedDatabase" if silenced else "tenant_slots.E012") in run.stderr
    assert not {name for name in tables(path) if name.startswith("tenant_slots")} if path.exists() else True


def test_the_control_migrate_leaves_tables_in_a_database_that_is_supported(tmp_path: Path) -> None:
    (tmp_path / "odd_settings.py").write_text(PROJECT)
    path = tmp_path / "sound.sqlite3"
    variables = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}
    search = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "DJANGO_SETTINGS_MODULE": "odd_settings"}
    assert manage("migrate", "tenant_slots", **variables, **search).returncode == 0
    assert "tenant_slots_tenantjob" in tables(path)


def test_the_error_of_the_migration_says_how_to_keep_our_tables_out() -> None:
    with pytest.raises(UnsupportedDatabase, match="allow_migrate"):
        raise UnsupportedDatabase(database="legacy", vendor="mysql")
    supported.require(None, type("Editor", (), {"connection": connection}))


MARIADB = shutil.which("mariadbd")

AS_MYSQLDB = """
import pymysql

pymysql.version_info = (2, 2, 4, "final", 0)  # of mysqlclient, which Django asks for
pymysql.install_as_MySQLdb()
"""


@pytest.fixture
def mariadb(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A real server, and the variables of a project that uses it."""
    pytest.importorskip("pymysql", reason="it is in the extra `test`")
    if MARIADB is None:
        pytest.skip("apt-get install mariadb-server-core")
    (tmp_path / "sitecustomize.py").write_text(AS_MYSQLDB)
    (tmp_path / "odd_settings.py").write_text(PROJECT)
    data, path = tmp_path / "data", tempfile.mkdtemp(prefix="tenant_slots_mariadb_") + "/socket"
    (data / "mysql").mkdir(parents=True)  # without the tables of the system, in which users and their rights are
    options = [f"--datadir={data}", f"--socket={path}", "--skip-networking", "--skip-grant-tables", "--user=root"]
    process = subprocess.Popen(
        [MARIADB, "--no-defaults", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: listens(path), message="MariaDB did not start")
        ask(path, "CREATE DATABASE shop")
        yield {
            "ENGINE": "django.db.backends.mysql",
            "NAME": "shop",
            "SOCKET": path,
            "DJANGO_SETTINGS_MODULE": "odd_settings",
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path[1:], str(ROOT)]),
        }
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(Path(path).parent)


def ask(path: str, sql: str) -> list[Any]:
    import pymysql

    with pymysql.connect(unix_socket=path, user="root") as session, session.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


@pytest.mark.parametrize("silenced", ["", "tenant_slots.E012"])
def test_a_real_mariadb_is_refused_and_has_no_tables_of_ours(mariadb: dict[str, str], silenced: str) -> None:
    run = manage("migrate", **mariadb, SILENCED=silenced)
    assert run.returncode == 1
    assert ("UnsupportedDatabase" if silenced else "tenant_slots.E012") in run.stderr
    names = {name for (name,) in ask(mariadb["SOCKET"], "SHOW TABLES IN shop")}
    assert not {name for name in names if name.startswith("tenant_slots")}
    assert bool(names) is bool(silenced), "the control: the server takes the tables of Django's own apps"


# --- Redis ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def redis() -> Iterator[Any]:
    """The server of the tests, whose configuration a test changes."""
    server = django_rq.get_connection("imports")
    before = {name: server.config_get(name)[name] for name in ("maxmemory-policy", "maxmemory")}
    yield server
    for name, value in before.items():
        server.config_set(name, value)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("policy", "memory", "expected"),
    [
        ("noeviction", "1gb", []),
        ("allkeys-lru", "0", []),
        ("allkeys-lru", "1gb", ["eviction"]),
        ("allkeys-random", "1gb", ["eviction"]),
        ("volatile-ttl", "1gb", ["eviction"]),
    ],
)
def test_the_doctor_finds_a_redis_that_deletes_what_it_was_given(
    policy: str, memory: str, expected: list[str], redis: Any
) -> None:
    redis.config_set("maxmemory", memory)
    redis.config_set("maxmemory-policy", policy)
    found = doctor.findings()
    assert [finding.kind for finding in found] == expected, "once for each server, not for each queue"
    assert all(policy in finding.meaning and "noeviction" in finding.meaning for finding in found)


@pytest.mark.django_db(transaction=True)
def test_a_redis_that_does_not_tell_its_policy_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise NoPermissionError("this user has no permissions to run the 'info' command")

    monkeypatch.setattr(Redis, "info", refuse)
    assert doctor.findings() == []


REFUSALS = {
    "OutOfMemoryError": (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
    "NOREPLICAS": (["CONFIG", "SET", "min-replicas-to-write", "1"], ["CONFIG", "SET", "min-replicas-to-write", "0"]),
    "ReadOnlyError": (["REPLICAOF", "127.0.0.1", "1"], ["REPLICAOF", "NO", "ONE"]),
}
"""What has a server refuse writes with this error, and what ends that."""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", REFUSALS)
def test_the_doctor_finds_a_redis_that_takes_no_writes(error: str, redis: Any) -> None:
    refuse, take = REFUSALS[error]
    before = sorted(redis.keys())
    redis.execute_command(*refuse)
    try:
        found = doctor.findings("redis")
    finally:
        redis.execute_command(*take)
    assert [(one.kind, one.queue) for one in found] == [("no writes", name) for name in settings.RQ_QUEUES]
    assert all(error in one.meaning for one in found)
    assert doctor.findings("redis") == [], "the control: it takes them"
    assert sorted(redis.keys()) == before, "nothing was written to find that out"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("rights", "finds"),
    [
        ("+@all ~rq:* ~tenant_slots:*", False),
        ("+@all -@write ~*", True),
        ("+@all -@scripting ~*", True),
        ("+@all ~rq:* %R~tenant_slots:*", True),
        ("+@all %R~rq:* ~tenant_slots:*", True),
    ],
)
def test_the_doctor_finds_a_user_of_redis_who_may_not_write(rights: str, finds: bool, redis: Any) -> None:
    redis.execute_command("ACL", "SETUSER", "clerk", "reset", "on", "nopass", "&*", *rights.split())
    options = {**redis.connection_pool.connection_kwargs, "username": "clerk", "password": "any"}
    own = {"imports": {name.upper(): options[name] for name in ("host", "port", "db", "username", "password")}}
    try:
        with override_settings(RQ_QUEUES=own):
            found = [(one.kind, "permissions" in one.meaning) for one in doctor.findings("redis")]
    finally:
        redis.execute_command("ACL", "DELUSER", "clerk")
    assert found == ([("no writes", True)] if finds else [])


# --- the rest ------------------------------------------------------------------------------------------------------


def test_local_times_are_refused() -> None:
    with override_settings(USE_TZ=False):
        (message,) = messages()
    assert (message.id, "USE_TZ = True" in str(message.hint)) == ("tenant_slots.E013", True)


@pytest.mark.parametrize(("system", "expected"), [("win32", ["tenant_slots.E014"]), ("linux", []), ("darwin", [])])
def test_windows_is_refused(system: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "SYSTEM", system)
    assert [message.id for message in messages()] == expected


def test_on_windows_nothing_but_that_is_refused_so_that_a_project_can_silence_it() -> None:
    command = [sys.executable, "-W", "ignore", "-c", CHECK_AS_ON_WINDOWS]
    own = {"DJANGO_SETTINGS_MODULE": "tests.settings", "TEST_WORKER_CLASS": "tenant_slots.workers.TenantPreforkWorker"}
    values = {**environment(), **own}
    ran = subprocess.run(command, cwd=ROOT, env=values, capture_output=True, text=True, timeout=60)
    assert re.findall(r"tenant_slots\.E\d+", ran.stderr) == ["tenant_slots.E014"], ran.stderr


@pytest.mark.parametrize(
    ("engine", "deploy", "expected"),
    [("sqlite3", True, True), ("sqlite3", False, False), ("postgresql", True, False)],
)
def test_sqlite_is_warned_of_where_a_project_is_deployed(
    engine: str, deploy: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {"ENGINE": f"django.db.backends.{engine}", "NAME": "x", "OPTIONS": {}}
    monkeypatch.setattr(settings, "DATABASES", {"default": config})
    found = run_checks(tags=["tenant_slots"], include_deployment_checks=deploy)
    assert ("tenant_slots.W004" in {message.id for message in found}) is expected


def test_check_deploy_says_so() -> None:
    variables = {"DATABASE_URL": "sqlite:////tmp/never-opened.sqlite3"}
    assert "tenant_slots.W004" in manage("check", "--deploy", **variables).stderr
    assert "tenant_slots.W004" not in manage("check", **variables).stderr
    assert Tags.security  # Django's own warnings are there too
