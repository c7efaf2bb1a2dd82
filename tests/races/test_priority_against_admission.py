"""A transaction that changes a priority and then cancels: it locks the tenant's row first, as everybody does."""

from __future__ import annotations

from threading import Thread

import pytest
from django.db import connection, transaction

from tenant_slots import slots
from tenant_slots.models import State, TenantQueue
from tests.factories import fresh, tenant_queue, waiting_job
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


def somebody_waits() -> bool:
    """As pg_locks says it: within a transaction pg_stat_activity does not change."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        return bool(cursor.fetchone()[0])


def test_a_priority_that_is_changed_while_the_job_is_admitted_deadlocks_with_nobody() -> None:
    row = tenant_queue(max_job=1)
    first, second = waiting_job(row), waiting_job(row)
    errors: list[Exception] = []

    def admit() -> None:
        try:
            slots.admit(row.pk)
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    admission = Thread(target=admit)
    with transaction.atomic():
        first.set_priority(-5)
        admission.start()
        wait_until(somebody_waits)
        second.cancel()
    admission.join(20)
    assert errors == []
    assert (fresh(first).state, fresh(second).state) == (State.QUEUED, State.CANCELED)
    assert TenantQueue.objects.get().current_job == 1
