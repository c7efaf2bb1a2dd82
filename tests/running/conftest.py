"""What tests of RQ's jobs have in common."""

from __future__ import annotations

import django_rq
import pytest
from rq import Queue

from tests.running.meeting import meanwhile


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    meanwhile.clear()


@pytest.fixture
def queue() -> Queue:
    found: Queue = django_rq.get_queue("imports")
    return found
