"""Changing the priority of a waiting job."""

from __future__ import annotations

from typing import Any

import pytest

from tenant_slots import exceptions
from tenant_slots.models import State
from tests import jobs
from tests.factories import fresh, release_then_admit, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_higher_priority_moves_a_waiting_job_ahead() -> None:
    row = tenant_queue(max_job=1)
    holding, first, second = (jobs.record.enqueue("acme", name, "") for name in ("holding", "first", "second"))
    assert second.set_priority(5)
    admitted = release_then_admit(fresh(holding), state=State.FINISHED)
    assert [job.pk for job in admitted] == [second.pk]
    assert (fresh(first).state, fresh(row).current_job) == (State.WAITING, 1)


def test_the_priority_of_a_job_that_holds_a_slot_cannot_be_changed() -> None:
    job = jobs.record.enqueue("acme", "name", "")
    assert not job.set_priority(5)
    assert (job.priority, job.state) == (0, State.QUEUED)


@pytest.mark.parametrize("priority", ["high", True, 1.5, 1_000_001])
def test_an_invalid_priority_is_refused(priority: Any) -> None:
    job = waiting_job(tenant_queue())
    with pytest.raises(exceptions.InvalidOption, match="priority"):
        job.set_priority(priority)
