"""Two sweeps count the same minutes at the same moment."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
from django.db import connection

from tenant_slots.models import QueueMinute
from tenant_slots.models.queue_minute import ALL_QUEUES
from tenant_slots.repair import minutes, row_of_all
from tests.factories import tenant_queue
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.repair.test_minutes import count, ended, start_of, this_minute, total

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


def meanwhile() -> Thread:
    def run() -> None:
        try:
            count()
        finally:
            connection.close()

    thread = Thread(target=run)
    thread.start()
    return thread


def count_beside_another(monkeypatch: pytest.MonkeyPatch) -> int:
    """Another sweep waits before this one stores what it has counted. How often something was stored."""
    original, others, stored = minutes._store, [], []

    def store(*arguments: Any) -> None:
        if not others:
            others.append(meanwhile())
            wait_until(somebody_waits_for_a_lock)
        stored.append(arguments)
        original(*arguments)

    monkeypatch.setattr(minutes, "_store", store)
    monkeypatch.setattr(row_of_all, "seconds_to_wait", lambda: 20)  # until somebody has seen that it waits
    count()
    others[0].join(20)
    assert not others[0].is_alive()
    return len(stored)


def test_the_second_one_waits_and_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the second one has committed meanwhile would be lost if it did not read after it has the lock."""
    row, now = tenant_queue(), this_minute()
    QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(now - 30))
    for minute in range(now - 29, now):
        ended(row, minute)
    assert count_beside_another(monkeypatch) == 2
    assert total("finished") == total("finished", "imports") == 29
    within = start_of(now - 30), start_of(now - 1)  # another minute may be over by now
    assert QueueMinute.objects.filter(queue=ALL_QUEUES, minute__range=within).count() == 30


def test_two_that_are_the_first_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    ended(tenant_queue(), this_minute() - 2)
    assert count_beside_another(monkeypatch) == 2
    assert total("finished") == total("finished", "imports") == 1
