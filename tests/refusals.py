"""A trigger of the project that lets rows of ours not be changed, or has them wait. PostgreSQL only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import connection
from django.db.models import Model

from tenant_slots.models import TenantJob
from tests.processes import test_database_url

KEPT = 20
"""What jobs of `waiting` wait for."""

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
def constrained(condition: str, model: type[Model] = TenantJob) -> Iterator[None]:
    """Every row has this from now on, or cannot be changed: of a constraint's error the further lines are the row."""
    table = model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT never CHECK ({condition}) NOT VALID")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT never")


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
def _trigger(condition: str, does: str, table: str, events: str) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does}; END $$;
            CREATE TRIGGER never BEFORE {events} ON {table} FOR EACH ROW
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
