"""django-tenants needs settings of its own, so what is to be seen with it runs in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.databases import another_database

pytest.importorskip("django_tenants", reason="it is in the extra `test`")

ROOT = Path(__file__).resolve().parent.parent.parent
SITE = Path(__file__).parent / "site"

pytestmark = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no schemas")


@pytest.fixture
def database_url() -> Iterator[str]:
    with another_database("schemas") as url:
        yield url


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
        timeout=600,
    )
    assert run.returncode == 0, run.stdout + run.stderr
