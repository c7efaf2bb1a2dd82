"""Databases beside that of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from psycopg import sql


@contextmanager
def another_database(prefix: str) -> Iterator[str]:
    """The URL of an empty one on the PostgreSQL of the tests."""
    url, name = os.environ["DATABASE_URL"], f"{prefix}_{uuid4().hex}"
    parts = urlsplit(url)
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield f"{parts.scheme}://{parts.netloc}/{name}{f'?{parts.query}' if parts.query else ''}"
        session.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
