"""How long a turn waits for a tenant queue that somebody holds, and when that one comes back."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator

import pytest

from tenant_slots import held


def seconds_for(tenant_queues: range, looks: int = 1) -> float:
    """That it takes to look at all of these so many times, which are held."""
    seconds = 0.0
    for pk in [*tenant_queues] * looks:
        look = held.seconds_to_wait(pk)
        held.note(pk, look)
        seconds += look
    return seconds


def test_a_single_one_is_waited_for() -> None:
    assert held.seconds_to_wait(1) == held.LONGEST_LOOK


def test_nor_is_a_single_one_given_up_sooner_that_was_held_before() -> None:
    """Its own jobs may hold it by turns."""
    seconds_for(range(1, 2), looks=5)
    assert held.seconds_to_wait(1) == held.LONGEST_LOOK


def test_the_more_are_held_the_shorter_each_is_waited_for() -> None:
    assert seconds_for(range(100)) < 100 * held.LONGEST_LOOK / 3
    seconds_for(range(100))
    assert seconds_for(range(100)) < 0.2, "they have been held time and again by now"


def test_one_that_others_want_too_has_time_and_comes_back_soon_however_many_are_held() -> None:
    seconds_for(range(100), looks=3)
    for seconds in (held.FIRST_MOMENT, held.MOMENT):
        assert held.seconds_to_wait(1000) == held.SHORT_LOOK
        assert held.note(1000, held.SHORT_LOOK) == seconds
    assert held.seconds_to_wait(1000) == held.SHORTEST_LOOK


def test_one_that_is_free_is_waited_for_as_before() -> None:
    seconds_for(range(50), looks=3)
    held.forget(1)
    held.forget(1000)
    assert held.seconds_to_wait(1) == held.SHORT_LOOK


def test_one_that_nobody_has_looked_at_for_long_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds_for(range(100))
    later = time.monotonic() + held.REMEMBERED + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    held.note(1000, 0.2)
    assert held.seconds_to_wait(1000) == held.LONGEST_LOOK


@pytest.mark.parametrize(("number", "seconds"), [(1, 1.0), (40, 1.0), (100, 2.5), (10_000, 10.0)])
def test_the_longer_it_takes_to_look_at_all_the_later_they_come_back(number: int, seconds: float) -> None:
    seconds_for(range(number), looks=2)
    assert held.note(0, 0.005) == seconds


@pytest.mark.parametrize("number", [10, 1000])
def test_nor_does_what_was_held_time_and_again_long_ago(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds_for(range(number), looks=3)
    later = time.monotonic() + held.REMEMBERED + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert held.seconds_to_wait(5) == held.LONGEST_LOOK
    assert held.note(5, 0.2) == held.FIRST_MOMENT


class Raced(OrderedDict[int, held.Seen]):
    """Another thread notes one just as this one looks for the oldest."""

    races = 1

    def __iter__(self) -> Iterator[int]:
        found = super().__iter__()
        if self.races:
            self.races = 0
            other = threading.Thread(target=held.note, args=(4711, 0.1))
            other.start()
            other.join()
        return found


def test_threads_that_meet_held_ones_in_the_same_moment_do_no_harm_to_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Raced()
    monkeypatch.setattr(held, "_seen", found)
    found[1] = held.Seen(time.monotonic(), 1)
    with pytest.raises(RuntimeError):  # the control: whoever asks in the midst of it
        next(iter(found))
    found.races = 1
    assert held.note(2, 0.1) == held.FIRST_MOMENT
    assert not found.races
    assert held.is_known(2)
    assert held.is_known(4711)
