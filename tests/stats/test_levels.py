"""What ran and waited of one tenant queue, in its large charts."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from tenant_slots.models import State, TenantQueue
from tenant_slots.stats.levels import MINUTE, Levels, most_by_period
from tests.factories import tenant_queue, waiting_job

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("within_one_minute")]


def ago(minutes: float) -> datetime:
    return timezone.now() - timedelta(minutes=minutes)


def ran(queue: TenantQueue, enqueued: float, started: float, ended: float) -> None:
    times = {"enqueued_at": ago(enqueued), "started_at": ago(started), "ended_at": ago(ended)}
    waiting_job(queue, state=State.FINISHED, attempt=1, **times)


def of_the_last_ten(queue: TenantQueue) -> Levels:
    TenantQueue.objects.update(created_at=ago(100))
    queue.refresh_from_db()
    return most_by_period(queue, 9, MINUTE)


@pytest.mark.parametrize("times", [(3.5, 3.5, 7.5), (3.5, 7.5, 7.5)], ids=["while it ran", "while it waited"])
def test_a_clock_that_was_set_back_makes_nothing_of_others_that_ran_and_waited_then(
    times: tuple[float, float, float],
) -> None:
    """It was over before it began, by its own row."""
    queue = tenant_queue(max_job=9)
    ran(queue, 9.5, 8.5, 1.5), waiting_job(queue, enqueued_at=ago(8.5))
    before = of_the_last_ten(queue)
    assert before.running == [0, 1, 1, 1, 1, 1, 1, 1, 0, 0]
    assert before.waiting == [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    ran(queue, *times)
    after = of_the_last_ten(queue)
    assert (after.running, after.waiting) == (before.running, before.waiting)
