"""PostgreSQL says "canceled" of some waits for a row that our lock_timeout has ended."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection, transaction

from tenant_slots import slots
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import TenantQueue
from tests.factories import in_thread, tenant_queue, waiting_job
from tests.processes import wait_until
from tests.races.test_callers_transactions import meanwhile

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]

CANCEL_WHO_WAITS = (
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


def cancel_who_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(CANCEL_WHO_WAITS)
        return bool(cursor.fetchall())


def error_of_a_canceled_wait(statement_timeout: str, *, in_transaction: bool = False) -> Exception:
    """What somebody gets who waits for a tenant queue, with that setting, when his statement is canceled."""
    row = tenant_queue()
    waiting_job(row)

    def wait_for_row() -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET statement_timeout = '{statement_timeout}'")
        if in_transaction:
            with transaction.atomic():
                slots.admit(row.pk, "imports")
        else:
            slots.admit(row.pk, "imports")

    errors: list[Exception] = []
    with transaction.atomic():
        TenantQueue.objects.select_for_update().get()
        waiter = meanwhile(wait_for_row, errors)
        wait_until(lambda: in_thread(cancel_who_waits))
    waiter.join(20)
    (error,) = errors
    return error


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_wait_for_a_row_that_is_said_to_be_canceled_is_one_for_a_locked_row(in_transaction: bool) -> None:
    assert isinstance(error_of_a_canceled_wait("0", in_transaction=in_transaction), TenantQueueLocked)


def test_control_a_time_out_of_the_project_for_its_statements_is_not_our_impatience() -> None:
    error = error_of_a_canceled_wait("60s")
    assert isinstance(error, OperationalError)
    assert not isinstance(error, TenantQueueLocked)
