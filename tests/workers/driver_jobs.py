"""Jobs that change the driver's connection, or Django's object of it, and one that just works with the database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
from django.db import OperationalError, connection, transaction
from psycopg.rows import dict_row

from tenant_slots import tenant_job
from tenant_slots.models import TenantQueue

kept: list[object] = []


def sql(statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None


def raw() -> Any:
    connection.ensure_connection()
    return connection.connection


def _autocommit_off() -> None:
    """As for a COPY in a transaction of its own, which it has committed."""
    raw().autocommit = False
    raw().execute("SELECT 1")
    raw().commit()


def _read_only() -> None:
    raw().read_only = True


def _serializable() -> None:
    raw().isolation_level = psycopg.IsolationLevel.SERIALIZABLE


def _row_factory() -> None:
    raw().row_factory = dict_row


def _wrapper() -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("no queries here")

    manager = connection.execute_wrapper(refuse)
    manager.__enter__()
    kept.append(manager)


def _copy() -> None:
    copying = raw().cursor().copy("COPY (SELECT generate_series(1, 100000)) TO STDOUT")
    kept.extend((copying, copying.__enter__()))


def _pipeline() -> None:
    pipeline = raw().pipeline()
    pipeline.__enter__()
    kept.append(pipeline)


def _two_phases() -> None:
    """Prepared by SQL, as a server may allow no prepared transactions."""
    raw().autocommit = False
    raw().tpc_begin("of the job")
    sql("ROLLBACK")
    raw().autocommit = True


def _transaction_block() -> None:
    """psycopg's own, whose transaction SQL has ended."""
    block = raw().transaction()
    block.__enter__()
    kept.append(block)
    sql("COMMIT")


def _transaction_of_a_generator() -> None:
    def rows() -> Iterator[Any]:
        with raw().transaction():
            yield from raw().execute("SELECT generate_series(1, 3)")

    reading = rows()
    next(reading)
    kept.append(reading)
    sql("COMMIT")


LEFT = {
    "autocommit off": _autocommit_off,
    "read only": _read_only,
    "serializable": _serializable,
    "row factory": _row_factory,
    "execute_wrapper": _wrapper,
    "copy": _copy,
    "pipeline": _pipeline,
    "transaction block": _transaction_block,
    "transaction of a generator": _transaction_of_a_generator,
    "two phases": _two_phases,
}


@tenant_job("imports", tenant="tenant")
def leave(tenant: str, kind: str) -> list[object]:
    LEFT[kind]()
    return [os.getpid()]


@tenant_job("imports", tenant="tenant")
def innocent(tenant: str, name: str) -> list[object]:
    TenantQueue.objects.create(tenant=f"plain {name}", queue="reports")
    with transaction.atomic():
        TenantQueue.objects.create(tenant=f"atomic {name}", queue="reports")
        isolation = sql("SHOW transaction_isolation")
    return [os.getpid(), isolation]


@tenant_job("imports", tenant="tenant")
def fail_while_streaming(tenant: str) -> None:
    """What the traceback's frames hold is alive as long as the error is looked at."""
    rows = raw().cursor().stream("SELECT generate_series(1, 100000)")
    for _ in rows:
        raise ValueError("a row that is wrong")


@tenant_job("imports", tenant="tenant")
def lose_session(tenant: str, how: str) -> str:
    """Everything that it wrote is committed; then its session ends, as when PostgreSQL restarts."""
    TenantQueue.objects.create(tenant="committed", queue="reports")
    if how == "closed":
        raw().close()
        return how
    with suppress(OperationalError):
        sql("SELECT pg_terminate_backend(pg_backend_pid())")
    return how


@tenant_job("imports", tenant="tenant")
def leave_begin_open(tenant: str) -> None:
    sql("BEGIN")
    sql("SELECT 1")
