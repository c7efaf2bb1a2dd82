"""A trigger of the project that lets rows of ours not be changed, or has them wait. PostgreSQL only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
from django.db import connection
from django.db.models import Model

from tenant_slots.models import TenantJob
from tests.processes import test_database_url

KEPT = 20
"""What jobs of `waiting` wait for."""

BEFORE = "CREATE TRIGGER never BEFORE {}"
DEFERRED = "CREATE CONSTRAINT TRIGGER never AFTER {} DEFERRABLE INITIALLY DEFERRED"

RAISED = "raise_exception"
"""What an error is that names no code."""

ERRORS = [
    RAISED,
    "check_violation",
    "internal_error",
    "U0001",
    "insufficient_privilege",
    "undefined_table",
    "object_not_in_prerequisite_state",
    "query_canceled",
]
"""Codes and names of PostgreSQL's: of classes that are errors of different classes in Python, the last ones of such as
may tell of the session or the server as well."""


@contextmanager
def refused(
    condition: str, as_error: str = RAISED, model: type[Model] = TenantJob, events: str = "UPDATE"
) -> Iterator[None]:
    """Every change of a row after which this holds raises an error; NEW is the row."""
    table = model._meta.db_table
    with _trigger(condition, f"RAISE EXCEPTION 'not this one' USING ERRCODE = '{as_error}'", table, events):
        yield


@contextmanager
def waiting(condition: str, events: str = "UPDATE") -> Iterator[None]:
    """Every change of a job for which this holds waits for what another session keeps; NEW or OLD is the row.

    As where the trigger counts jobs in rows of its own, one of which somebody's open transaction has changed.
    """
    table, wait = TenantJob._meta.db_table, f"PERFORM pg_advisory_xact_lock({KEPT}); RETURN coalesce(NEW, OLD)"
    with _trigger(condition, wait, table, events), psycopg.connect(test_database_url()) as keeper:
        keeper.execute(f"SELECT pg_advisory_xact_lock({KEPT})")
        yield


@contextmanager
def taking(seconds: float, condition: str) -> Iterator[None]:
    """Every change of a job for which this holds takes so long; NEW is the row."""
    does = f"PERFORM pg_sleep({seconds}); RETURN NEW"
    with _trigger(condition, does, TenantJob._meta.db_table, "UPDATE"):
        yield


@contextmanager
def waiting_for_each(jobs: Sequence[TenantJob], seconds: float, when: str = BEFORE) -> Iterator[None]:
    """Every change of one of these waits for a lock of its own, and is given each so long after the one before."""
    wait = f"PERFORM pg_advisory_xact_lock({KEPT} + NEW.id); RETURN NEW"
    with (
        _trigger(any_change_of(*jobs), wait, TenantJob._meta.db_table, "UPDATE", when),
        psycopg.connect(test_database_url(), autocommit=True) as keeper,
        ThreadPoolExecutor(1) as meanwhile,
    ):
        for job in jobs:
            keeper.execute(f"SELECT pg_advisory_lock({KEPT} + {job.pk})")

        def give() -> None:
            for job in jobs:
                time.sleep(seconds)
                keeper.execute(f"SELECT pg_advisory_unlock({KEPT} + {job.pk})")

        given = meanwhile.submit(give)
        yield
        given.result()


@contextmanager
def _trigger(condition: str, does: str, table: str, events: str, when: str = BEFORE) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does}; END $$;
            {when.format(f"{events} ON {table}")} FOR EACH ROW
            WHEN ({condition}) EXECUTE FUNCTION never();
            """
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:  # of a new session perhaps: who tries to record something closes it
            cursor.execute(f"DROP TRIGGER never ON {table}; DROP FUNCTION never();")


def any_change_of(*jobs: TenantJob, row: str = "NEW") -> str:
    """A condition of `refused` and `waiting`; of an end of these it is the OLD row."""
    return f"{row}.id IN ({', '.join(str(job.pk) for job in jobs)})"
