"""System checks: databases, drivers and systems that tenant_slots does not work with."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning

from tenant_slots.conf import app_settings
from tenant_slots.db import supported

SYSTEM = sys.platform


def check_backend(**_: Any) -> list[CheckMessage]:
    """E011, E012: the database, and what Django reaches it by."""
    alias, backend = app_settings.DATABASE, engine()
    if not backend:
        return []
    if supported.has_psycopg2(backend):
        hint = (
            'pip install "psycopg[binary]>=3.2". This switches the whole project: Django takes psycopg 3 for every '
            "PostgreSQL database as soon as it is installed. psycopg2 may stay."
        )
        return [
            Error(
                f"The database {alias!r} is reached by psycopg2, by which no job runs.",
                hint=hint,
                id="tenant_slots.E011",
            )
        ]
    if vendor := supported.unsupported_vendor(backend):
        hint = (
            'Add a PostgreSQL database to DATABASES, name it in TENANT_SLOTS["DATABASE"], and have a database router '
            "keep the tables of tenant_slots there."
        )
        return [
            Error(
                f"The database {alias!r} is {vendor}, which cannot hold the slots.", hint=hint, id="tenant_slots.E012"
            )
        ]
    return []


def check_time_zones(**_: Any) -> list[CheckMessage]:
    """E013: leases, rates and pauses are compared with the database's clock, which knows time zones."""
    if settings.USE_TZ:
        return []
    hint = "Set USE_TZ = True; TIME_ZONE says which times pages show."
    return [Error("USE_TZ is False, and tenant_slots needs times with a zone.", hint=hint, id="tenant_slots.E013")]


def check_system(**_: Any) -> list[CheckMessage]:
    """E014: no worker of ours or RQ's forks there, and no process can be watched."""
    if SYSTEM != "win32":
        return []
    hint = "Run Django and its workers under WSL 2 or in a container. If this process only enqueues, silence the check."
    return [Error("tenant_slots does not run on Windows.", hint=hint, id="tenant_slots.E014")]


def check_sqlite(**_: Any) -> list[CheckMessage]:
    """W004, with ``check --deploy``: one writer at a time, one host, and no lock of a single row."""
    if not supported.is_sqlite(engine()):
        return []
    hint = "Use PostgreSQL in production."
    text = f"The slots are in the SQLite database {app_settings.DATABASE!r}, which is for trying out."
    return [Warning(text, hint=hint, id="tenant_slots.W004")]


def engine() -> str:
    """By which Django reaches the database. Empty where another check says that there is no such one."""
    alias: object = app_settings.DATABASE
    found: str = settings.DATABASES.get(alias, {}).get("ENGINE", "") if isinstance(alias, str) else ""
    return found
