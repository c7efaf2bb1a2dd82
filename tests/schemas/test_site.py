"""django-tenants needs settings of its own, so what is to be seen with it runs in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from django.db import connection
from psycopg import sql

pytest.importorskip("django_tenants", reason="it is in the extra `test`")

ROOT = Path(__file__).resolve().parent.parent.parent
SITE = Path(__file__).parent / "site"

pytestmark = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no schemas")


@pytest.fixture
def database_url() -> Iterator[str]:
    """A database of its own on the server of the tests."""
    url, name = os.environ["DATABASE_URL"], f"schemas_{uuid4().hex}"
    parts = urlsplit(url)
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield f"{parts.scheme}://{parts.netloc}/{name}{f'?{parts.query}' if parts.query else ''}"
        session.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_with_django_tenants_every_job_runs_in_its_schema(database_url: str) -> None:
    environment = {**os.environ, "DATABASE_URL": database_url}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    command = [sys.executable, "-m", "pytest", "--ds=tests.schemas.settings", f"--confcutdir={SITE}"]
    run = subprocess.run(
        [*command, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, sorted(SITE.glob("check_*.py")))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
