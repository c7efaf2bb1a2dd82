"""The servers of a measurement: those of the environment, else embedded ones that end with this process.

A user's own data stays untouched: the database is a new one that is dropped at the end, and a Redis that holds
anything is refused.
"""

from __future__ import annotations

import atexit
import os
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.servers import borrow_redis, start_postgres, start_valkey


def ensure() -> None:
    """Set DATABASE_URL and REDIS_URL for this process and those that it starts."""
    server = os.environ.get("DATABASE_URL") or str(start_postgres(fsync=True).get_uri())
    _require_postgres(server)
    os.environ["DATABASE_URL"] = _create_database(server)
    if os.environ.get("REDIS_URL"):
        borrow_redis(os.environ["REDIS_URL"], "the benchmarks")
    else:
        os.environ["REDIS_URL"] = start_valkey().connection_url


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
