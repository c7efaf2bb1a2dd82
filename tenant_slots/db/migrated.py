"""Turns a missing table into the error that says what to run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.apps import apps
from django.db import DatabaseError, Error, connections

from tenant_slots.conf import app_settings
from tenant_slots.exceptions import NotMigrated


@contextmanager
def naming_missing_tables() -> Iterator[None]:
    """Turns "relation does not exist" into NotMigrated."""
    try:
        yield
    except DatabaseError as error:
        if _tables_are_missing():
            raise NotMigrated(database=app_settings.DATABASE) from error
        raise


def _tables_are_missing() -> bool:
    """False where nobody can say: the error may have broken a transaction of the caller's, to whom it matters."""
    connection = connections[app_settings.DATABASE]
    if connection.needs_rollback:
        return False
    ours = {model._meta.db_table for model in apps.get_app_config("tenant_slots").get_models()}
    with suppress(Error):
        return not ours <= set(connection.introspection.table_names())
    return False
