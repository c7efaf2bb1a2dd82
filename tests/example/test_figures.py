"""The demo's figures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from example_project.demo.figures import highest_overlap, percentile, waits_first_in_first_out
from tenant_slots.models import TenantJob

START = datetime(2026, 1, 1, tzinfo=UTC)


def runs(*pairs: tuple[int, int]) -> list[tuple[datetime, datetime]]:
    return [(START + timedelta(seconds=start), START + timedelta(seconds=end)) for start, end in pairs]


@pytest.mark.parametrize(
    ("pairs", "highest"),
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(0, 1), (1, 2)], 1),
        ([(0, 2), (1, 3)], 2),
        ([(0, 9), (1, 2), (3, 5), (4, 6)], 3),
    ],
)
def test_overlap_is_the_most_runs_at_one_moment(pairs: list[tuple[int, int]], highest: int) -> None:
    assert highest_overlap(runs(*pairs)) == highest


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([], 95) == 0
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile(range(1, 101), 95) == 95


def test_first_in_first_out_all_wait_for_those_before_them() -> None:
    """Three of a big shop come at once, and later one of a small shop; the order in which they ran changes nothing."""
    ran = [(0, 2, 5), (0, 0, 2), (0, 5, 9), (1, 1, 2)]
    jobs = [
        TenantJob(pk=pk, enqueued_at=come, started_at=start, ended_at=end)
        for pk, (come, start, end) in enumerate([(at(a), at(b), at(c)) for a, b, c in ran], start=1)
    ]
    assert [*waits_first_in_first_out(jobs, 1).values()] == [0, 3, 5, 8]
    assert [*waits_first_in_first_out(jobs, 2).values()] == [0, 0, 2, 2]


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)
