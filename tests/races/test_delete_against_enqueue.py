"""A tenant's row that is deleted while somebody enqueues takes no committed job with it."""

from __future__ import annotations

from threading import Event, Thread

import pytest
from django.db import connection

from tenant_slots import receivers
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import fresh, tenant_queue
from tests.processes import somebody_waits_for_a_lock, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


def test_an_enqueue_that_meets_a_deletion_creates_the_row_again(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue(queue="reports")
    checked, go_on = Event(), Event()
    original = receivers.refuse_to_delete_in_use

    def check_then_hold(**facts: object) -> None:
        original(**facts)
        checked.set()
        assert go_on.wait(20)

    receivers.pre_delete.disconnect(original, sender=TenantQueue)
    receivers.pre_delete.connect(check_then_hold, sender=TenantQueue)
    try:
        deletion = Thread(target=lambda: (row.delete(), connection.close()))
        deletion.start()
        assert checked.wait(20)
        enqueued: list[TenantJob] = []
        enqueue = Thread(target=lambda: (enqueued.append(jobs.add.enqueue(1, 2, tenant="acme")), connection.close()))
        enqueue.start()
        wait_until(somebody_waits_for_a_lock)
        go_on.set()
        deletion.join(20)
        enqueue.join(20)
    finally:
        go_on.set()
        receivers.pre_delete.disconnect(check_then_hold, sender=TenantQueue)
        receivers.pre_delete.connect(original, sender=TenantQueue)
    (job,) = enqueued
    assert fresh(job).state == State.QUEUED
    assert job.tenant_queue_id != row.pk
