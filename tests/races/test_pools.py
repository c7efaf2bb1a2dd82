"""Django's connection pool: what we do outside of a caller's transaction does not wait for a session of the pool."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import django
import pytest
from django.db import connection

from tests.processes import ROOT, environment

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no pool"),
    pytest.mark.skipif(find_spec("psycopg_pool") is None or django.VERSION < (5, 1), reason="needs psycopg[pool]"),
]


@pytest.mark.parametrize("what", ["hold_slot", "enqueue"])
def test_callers_that_have_all_of_its_sessions_do_not_wait_for_each_other(what: str) -> None:
    """Each waited for a session that another one had, and everybody else in the process with them."""
    pool = {"min_size": 2, "max_size": 2, "timeout": 3}
    variables = environment() | {"TEST_DATABASE_POOL": json.dumps(pool)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.pooled_callers", what]
    ran = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, '["done", "done"]'), ran.stderr
    assert "no other session" not in ran.stderr
