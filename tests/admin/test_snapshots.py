"""One computation for many viewers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from tenant_slots.admin.snapshots import Shared


def test_twenty_askers_at_once_cost_one_computation() -> None:
    asked: list[list[int]] = []
    entered, go_on = threading.Event(), threading.Event()

    def compute(keys: list[int]) -> dict[int, int]:
        asked.append(keys)
        entered.set()
        go_on.wait(10)
        return {key: key * 2 for key in keys}

    shared: Shared[int, int] = Shared(60)
    answers: list[dict[int, int]] = []
    askers = [threading.Thread(target=lambda: answers.append(shared.get([1, 2], compute))) for _ in range(20)]
    askers[0].start()
    entered.wait(10)
    for asker in askers[1:]:
        asker.start()
    go_on.set()
    for asker in askers:
        asker.join(10)

    assert answers == [{1: 2, 2: 4}] * 20
    assert asked == [[1, 2]]


class Bench:
    """Askers that sit there while one of them has its answer computed."""

    def __init__(self, compute: Callable[[list[int]], dict[int, int]]) -> None:
        self.shared: Shared[int, int] = Shared(60)
        self.asked: list[list[int]] = []
        self.outcomes: list[Any] = []
        self._compute = compute
        self._entered, self._go_on = threading.Event(), threading.Event()

    def ask(self, *keys: int) -> None:
        try:
            self.outcomes.append(self.shared.get(keys, self._computed))
        except Exception as error:
            self.outcomes.append(error)

    def all_at_once(self, first: int, *others: int) -> None:
        """The others come while that of the first is computed."""
        askers = [threading.Thread(target=self.ask, args=[key]) for key in (first, *others)]
        askers[0].start()
        assert self._entered.wait(10)
        coming = threading.Semaphore(0)
        lock = self.shared._lock
        self.shared._lock = _Counted(lock, coming)  # type: ignore[assignment]
        for asker in askers[1:]:
            asker.start()
        for _ in others:
            assert coming.acquire(timeout=10)
        self._go_on.set()
        for asker in askers:
            asker.join(10)

    def _computed(self, keys: list[int]) -> dict[int, int]:
        self.asked.append(keys)
        self._entered.set()
        assert self._go_on.wait(10)
        return self._compute(keys)


class _Counted:
    """A lock that says when somebody comes to it."""

    def __init__(self, lock: Any, coming: threading.Semaphore) -> None:
        self._lock, self._coming = lock, coming

    def __enter__(self) -> None:
        self._coming.release()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def failing(error: Exception) -> Callable[[list[int]], dict[int, int]]:
    def fail(keys: list[int]) -> dict[int, int]:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "others"), [(LookupError("one"), [1] * 9), (OperationalError("statement timeout"), [1, 2, 3] * 3)]
)
def test_whoever_waited_for_a_computation_that_failed_does_not_ask_again(error: Exception, others: list[int]) -> None:
    bench = Bench(failing(error))
    bench.all_at_once(1, *others)
    assert bench.asked == [[1]]
    assert bench.outcomes == [error] * 10
    bench.ask(1)
    assert bench.asked == [[1], [1]], "the control: who comes later asks"


def test_whoever_waited_for_one_that_failed_and_is_about_another_key_asks_for_that() -> None:
    bench = Bench(failing(LookupError("one")))
    bench.all_at_once(1, 2)
    assert bench.asked == [[1], [2]]


def test_the_traceback_of_a_failure_does_not_grow_with_those_who_waited_for_it() -> None:
    error = LookupError("one")
    bench = Bench(failing(error))
    bench.all_at_once(1, *[1] * 9)
    depth, frame = 0, error.__traceback__
    while frame is not None:
        depth, frame = depth + 1, frame.tb_next
    assert depth < 10


def test_a_shared_answer_ages_and_only_what_is_missing_is_computed() -> None:
    def compute(keys: list[int]) -> dict[int, int]:
        asked.append(keys)
        return dict.fromkeys(keys, 0)

    asked: list[list[int]] = []
    shared: Shared[int, int] = Shared(60)
    shared.get([1, 2], compute)
    shared.get([2, 3], compute)
    assert asked == [[1, 2], [3]]
    aged: Shared[int, int] = Shared(0)
    aged.get([1], compute), aged.get([1], compute)
    assert asked[2:] == [[1], [1]]
