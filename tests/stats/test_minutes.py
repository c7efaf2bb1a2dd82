"""What the overview reads: a week of minutes as some periods, with gaps where nobody has counted."""

from __future__ import annotations

from typing import Any

import pytest

from tenant_slots.db import clock
from tenant_slots.db.clock import minute_of, start_of
from tenant_slots.models import QueueMinute
from tenant_slots.models.queue_minute import ALL_QUEUES, DELAYS
from tenant_slots.stats import minutes

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("within_one_minute")]


def counted(back: int, queue: str = ALL_QUEUES, **figures: Any) -> None:
    """The minute that was over so many minutes ago."""
    minute = minute_of(clock.now()) - 1 - back
    QueueMinute.objects.create(queue=queue, minute=start_of(minute), **figures)


def test_a_period_has_sums_and_its_busiest_minute() -> None:
    for back, (finished, failed) in enumerate([(1, 0), (500, 3), (2, 4)]):
        counted(back, finished=finished, failed=failed, running=back, runnable=7, held_back=0, workers=9 - back)
    *before, last = minutes.last_periods(ALL_QUEUES, 5, 900)
    assert before == [None] * 5
    assert last is not None
    assert (last.finished, last.failed, last.ended, last.most_ended, last.most_failed) == (503, 7, 510, 503, 4)
    assert (last.running, last.runnable, last.held_back, last.workers) == (2, 7, 0, 7)


def test_minutes_fall_into_their_periods() -> None:
    for back in (0, 14, 15, 60):
        counted(back, finished=back + 1)
    found = minutes.last_periods(ALL_QUEUES, 4, 900)
    assert [period and period.finished for period in found] == [61, None, None, 16, 16]


def test_what_nobody_counted_is_a_gap_and_a_queue_without_a_row_had_nothing() -> None:
    counted(2, finished=5, running=3, runnable=0, held_back=0, workers=1)
    counted(0, finished=2)
    counted(0, "reports", finished=2)
    two_ago, one_ago, last = minutes.last_periods("reports", 2, 60)
    assert one_ago is None
    assert two_ago is not None
    assert last is not None
    assert (two_ago.finished, two_ago.running, two_ago.workers) == (0, 0, 0)
    assert (last.finished, last.running, last.workers) == (2, None, None)


def test_another_queues_minutes_are_not_added() -> None:
    counted(0, finished=7), counted(0, "imports", finished=5), counted(0, "reports", finished=2)
    for queue, finished in ((ALL_QUEUES, 7), ("imports", 5), ("reports", 2)):
        (last,) = minutes.last_periods(queue, 0, 60)
        assert last is not None
        assert last.finished == finished


def test_a_percentile_is_spread_between_the_bounds_of_its_place() -> None:
    none = (0,) * len(DELAYS)
    assert minutes.percentile(none, 95) is None
    assert minutes.percentile((*none[:2], 10, *none[3:]), 50) == 0.75
    assert minutes.percentile((*none[:-1], 1), 95) == 12 * 3600
    assert minutes.percentile((98, 0, 2, *none[3:]), 95) == pytest.approx(0.25 * 95 / 98)
    assert minutes.percentile((90, 0, 10, *none[3:]), 95) == 0.75


def test_periods_are_added_up() -> None:
    counted(1, finished=5, running=3, runnable=0, held_back=1, workers=2, delays_0=4)
    counted(0, failed=2, delays_0=1, delays_3=1)
    total = minutes.added_up(minutes.last_periods(ALL_QUEUES, 3, 60))
    assert (total.finished, total.failed, total.most_ended, total.running, total.workers) == (5, 2, 5, 3, 2)
    assert (total.delays[0], total.delays[3]) == (5, 1)
    assert minutes.added_up([None]).start_delay(95) is None
