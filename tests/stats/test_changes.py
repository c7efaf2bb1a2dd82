"""The changes of limits within a time."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots.models import KeptChange
from tenant_slots.models.queue_minute import ALL_QUEUES
from tenant_slots.stats.changes import changes_within, last_changes
from tests.factories import tenant_queue
from tests.plans import explained

pytestmark = pytest.mark.django_db


def changed(number: int, minutes: float = 0, queue: str = "imports") -> None:
    row = tenant_queue(f"{number} of {queue}", queue=queue)
    at = timezone.now() - timedelta(minutes=minutes)
    KeptChange.objects.bulk_create([KeptChange(at=at, what="limit", tenant_queue=row) for _ in range(number)])


def test_of_each_period_the_latest_and_how_many() -> None:
    changed(5, minutes=30.5), changed(600), changed(3, minutes=61)
    found = last_changes(ALL_QUEUES, 60, 60, most=20, most_named=2)
    assert {back: (one.number, len(one.named)) for back, one in found.by_period.items()} == {0: (600, 2), 30: (5, 2)}
    of_five = KeptChange.objects.filter(tenant_queue__tenant__startswith="5").order_by("-pk")
    assert found.by_period[30].named == list(of_five[:2])
    assert [change.tenant_queue.tenant for change in found.latest] == ["600 of imports"] * 20


def test_a_time_to_come_counts_as_now() -> None:
    changed(2, minutes=-600)
    assert last_changes(ALL_QUEUES, 60, 60, most=1, most_named=1).by_period[0].number == 2


def test_as_many_queries_for_many_changes() -> None:
    changed(900), changed(2, minutes=9.5, queue="reports")
    with CaptureQueriesContext(connection) as captured:
        found = last_changes("reports", 60, 60, most=20, most_named=3)
    assert len(captured) == 2
    assert (len(found.latest), list(found.by_period)) == (2, [9])


@pytest.mark.skipif(connection.vendor != "postgresql", reason="how PostgreSQL plans")
def test_those_before_are_not_read() -> None:
    changed(3, minutes=600)
    assert "Index Scan using tenant_slots_change_times" in explained(changes_within(ALL_QUEUES, 3600))
