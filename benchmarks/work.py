"""What the jobs do, without a decorator: plain django-rq runs these. Each run writes a start and an end line.

Nothing of tenant_slots is imported here, so that plain workers do not carry it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

POLL_SECONDS = 0.002


@contextmanager
def noted(tenant: str, name: str) -> Iterator[None]:
    _note("start", tenant, name)
    yield
    _note("end", tenant, name)


def _note(*words: object) -> None:
    """One line, written at once by O_APPEND so that processes do not tear each other's lines."""
    line = " ".join(map(str, (time.time_ns(), os.getpid(), *words))) + "\n"
    handle = os.open(os.environ["BENCHMARK_HISTORY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def sleep(tenant: str, name: str, seconds: float) -> None:
    with noted(tenant, name):
        time.sleep(seconds)


def nothing(tenant: str, name: str) -> None:
    with noted(tenant, name):
        pass


def query(tenant: str, name: str) -> None:
    with noted(tenant, name), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchone()


def hold(tenant: str, name: str, path: str) -> None:
    """Runs until a file exists, so that the harness decides when."""
    with noted(tenant, name):
        while not Path(path).exists():
            time.sleep(POLL_SECONDS)
