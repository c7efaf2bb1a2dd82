"""Row-level security of the project on our tables. PostgreSQL only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection
from django.db.models import Model


@contextmanager
def policy(model: type[Model], condition: str) -> Iterator[str]:
    """Those who take the role whose name this gives see and write only rows for which the condition holds."""
    role, table = f"restricted_{os.getpid()}", model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            CREATE ROLE {role}; GRANT pg_read_all_data, pg_write_all_data TO {role};
            ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
            CREATE POLICY restricted ON {table} USING ({condition});
            """
        )
    try:
        yield role
    finally:
        connection.close()  # in whatever state the test has left it
        with connection.cursor() as cursor:
            cursor.execute(
                f"""
                RESET ROLE;
                DROP POLICY restricted ON {table}; ALTER TABLE {table} DISABLE ROW LEVEL SECURITY;
                DROP ROLE {role};
                """
            )
