"""Which databases hold the slots: the statements of ``slots.py`` are PostgreSQL's, and SQLite takes them too."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db.utils import load_backend

from tenant_slots.exceptions import UnsupportedDatabase

VENDORS = ("postgresql", "sqlite")


WITHOUT_DRIVER = {"django.db.backends.mysql": "mysql", "django.db.backends.oracle": "oracle"}
"""Of which nothing more can be learnt where their driver is missing."""


def unsupported_vendor(engine: str) -> str:
    """What a backend is made for, where that cannot hold the slots; else empty."""
    backend = _backend(engine)
    vendor = str(backend.vendor) if backend else WITHOUT_DRIVER.get(engine, "")
    return "" if vendor in VENDORS else vendor


def is_sqlite(engine: str) -> bool:
    backend = _backend(engine)
    return bool(backend) and backend.vendor == "sqlite"


def has_psycopg2(engine: str) -> bool:
    """Whether it is PostgreSQL by way of psycopg2, which Django takes where psycopg 3 is not installed."""
    backend = _backend(engine)
    return bool(backend) and backend.vendor == "postgresql" and backend.Database.__name__ == "psycopg2"


def require(apps: Any, schema_editor: Any) -> None:
    """The first step of our first migration: not every database takes back the tables of one that fails.

    Raises:
        UnsupportedDatabase: it could not hold the slots.
    """
    connection = schema_editor.connection
    if connection.vendor not in VENDORS:
        raise UnsupportedDatabase(database=connection.alias, vendor=connection.vendor)


def _backend(engine: str) -> Any:
    try:
        return load_backend(engine).DatabaseWrapper
    except (ImproperlyConfigured, ImportError):  # Django says so itself, when it needs the database
        return None
