from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import django_rq
import pytest

from tests.history import History
from tests.processes import Workers


@pytest.fixture(autouse=True)
def _empty_redis() -> None:
    django_rq.get_connection("default").flushdb()


@pytest.fixture
def history(tmp_path: Path) -> History:
    """What jobs wrote about their runs; pass ``history.path`` to a job."""
    return History(tmp_path / "history")


@pytest.fixture
def workers(transactional_db: None) -> Iterator[Workers]:
    """Starts real ``manage.py rqworker`` processes on the test database and ends them after the test."""
    started = Workers()
    yield started
    started.stop()
