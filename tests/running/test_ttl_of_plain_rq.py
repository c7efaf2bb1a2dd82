"""A plain RQ job whose ``ttl`` has run out while it was put off: it takes no slot away from those after it."""

from __future__ import annotations

import django_rq
import pytest
from rq.job import Job

from tenant_slots.models import State, TenantJob
from tests import jobs
from tests.factories import counters_match, tenant_queue, work
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def put_off(number: int) -> list[str]:
    """Plain jobs that wait for their busy tenant until RQ has forgotten them."""
    queue = django_rq.get_queue("reports")
    ids = [queue.enqueue(jobs.add, 1, 2, tenant="acme", ttl=600).id for _ in range(number)]
    work()
    assert TenantJob.objects.waiting().count() == number
    for one in ids:
        queue.connection.pexpire(Job.key_for(one), 1)  # what RQ has set with ttl is over
    wait_until(lambda: not any(queue.fetch_job(one) for one in ids))
    return ids


@pytest.mark.parametrize("number", [1, 60])
def test_its_slot_is_free_at_once_for_the_next_job(number: int) -> None:
    """Without a sweep; and many of them, one after the other, are not too deep for Python's stack."""
    row = tenant_queue(queue="reports", max_job=0)
    put_off(number)
    following = jobs.add.enqueue(3, 4, tenant="acme")
    row.set_limit(1)
    forgotten = TenantJob.objects.exclude(rq_job_id="")
    assert {job.state for job in forgotten} == {State.FAILED}
    assert all("ttl" in job.error for job in forgotten)
    following.refresh_from_db()
    assert following.state == State.QUEUED
    work()
    following.refresh_from_db()
    assert (following.state, following.result) == (State.FINISHED, 7)
    assert counters_match()


def test_the_control_one_that_rq_still_has_runs() -> None:
    row = tenant_queue(queue="reports", max_job=0)
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme", ttl=600)
    work()
    row.set_limit(1)
    work()
    assert rq_job.return_value(refresh=True) == 3
