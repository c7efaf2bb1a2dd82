"""Rule 3: two releases of one slot give back one slot, in whatever order they meet."""

from __future__ import annotations

from functools import partial
from threading import Barrier, Thread
from typing import Any

import pytest
from django.db import connection

from tenant_slots import slots
from tenant_slots.models import State
from tests.factories import admit, counters_match, fresh, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


def at_once(*actions: Any) -> list[Any]:
    """Run the actions in threads that leave together; their answers in order."""
    barrier, answers = Barrier(len(actions)), [None] * len(actions)

    def run(index: int) -> None:
        try:
            barrier.wait(20)
            answers[index] = actions[index]()
        finally:
            connection.close()

    threads = [Thread(target=run, args=(index,)) for index in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def test_of_two_releases_one_wins() -> None:
    row = tenant_queue(max_job=2)
    for _ in range(10):
        waiting_job(row)
        waiting_job(row)
        first, second = admit(row)
        results = at_once(*[partial(slots.release, first, state=State.FINISHED)] * 2)
        assert sorted(map(bool, results)) == [False, True]
        assert fresh(row).current_job == 1
        slots.release(second, state=State.FINISHED)
        assert counters_match()


def test_many_admissions_at_once_take_no_slot_twice() -> None:
    row = tenant_queue(max_job=3)
    for _ in range(12):
        waiting_job(row)
    admitted = [job for batch in at_once(*[lambda: admit(row)] * 6) for job in batch]
    assert len({job.pk for job in admitted}) == len(admitted) == 3
    assert fresh(row).current_job == 3
