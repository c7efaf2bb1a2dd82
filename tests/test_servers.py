"""The tests run on the servers that they were told to run on."""

from __future__ import annotations

import os
import subprocess

import django_rq
import pytest
from django.db import connection


def told_to(variable: str) -> str:
    if variable not in os.environ:
        pytest.skip(f"{variable} names no other server")
    return os.environ[variable]


def test_the_database_is_the_postgresql_that_was_named(db: None) -> None:
    programs = told_to("POSTGRES_BIN")
    version = subprocess.check_output([f"{programs}/postgres", "--version"], text=True)
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        assert cursor.fetchone()[0] in version


def test_the_server_of_rq_is_the_redis_that_was_named() -> None:
    version = subprocess.check_output([told_to("REDIS_SERVER"), "--version"], text=True)
    info = django_rq.get_connection("imports").info("server")
    assert version.startswith("Redis server")
    assert f"v={info['redis_version']} " in version
    assert "valkey_version" not in info
