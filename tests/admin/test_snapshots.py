"""One computation for many viewers."""

from __future__ import annotations

import threading

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
