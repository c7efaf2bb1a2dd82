"""How long a turn waits for a tenant queue that somebody holds, and when that one comes back."""

from __future__ import annotations

import time

import pytest

from tenant_slots import held


def seconds_for(tenant_queues: range) -> float:
    """That it takes to look at all of these, which are held."""
    seconds = 0.0
    for pk in tenant_queues:
        look = held.seconds_to_wait(pk)
        held.note(pk, look)
        seconds += look
    return seconds


def test_a_single_one_is_waited_for() -> None:
    assert held.seconds_to_wait(1) == held.LONGEST_LOOK


def test_nor_is_a_single_one_given_up_sooner_that_was_held_before() -> None:
    """Its own jobs may hold it by turns."""
    held.note(1, 0.2)
    assert held.seconds_to_wait(1) == held.LONGEST_LOOK


def test_the_more_are_held_the_shorter_each_is_waited_for() -> None:
    assert seconds_for(range(100)) < 2 < 100 * held.LONGEST_LOOK
    assert seconds_for(range(100)) < 0.2, "they are known by now"


def test_one_that_is_free_is_waited_for_as_before() -> None:
    held.note(1, 0.2)
    held.forget(1)
    held.forget(2)
    assert held.seconds_to_wait(1) == held.LONGEST_LOOK


def test_one_that_nobody_has_looked_at_for_long_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds_for(range(100))
    later = time.monotonic() + held.REMEMBERED + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    held.note(1000, 0.2)
    assert held.seconds_to_wait(1) == held.LONGEST_LOOK / 2


@pytest.mark.parametrize(("number", "seconds"), [(1, 1.0), (40, 1.0), (100, 2.5), (10_000, 10.0)])
def test_the_longer_it_takes_to_look_at_all_the_later_they_come_back(number: int, seconds: float) -> None:
    seconds_for(range(number))
    assert held.note(0, 0.005) == seconds
